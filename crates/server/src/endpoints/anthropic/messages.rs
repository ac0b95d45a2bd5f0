//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use tinkrs_backend::SamplingExtras;
use tinkrs_types::SamplingParams;
use tinkrs_types::sampling::SampleOptions;
use tinkrs_wire::anthropic::{
    AnswerMessage, BetaQuery, CountTokensRequest, MessageUsage, MessagesRequest, TokenCount,
};

use super::blocks::{blocks, stop_reason};
use super::check_version;
use super::conversation::{Asked, Translated, translate};
use super::stream::MessageStream;
use crate::Server;
use crate::api::Plain;
use crate::api::sampling::Weights;
use crate::auth::Owner;
use crate::endpoints::answers::Answers;
use crate::endpoints::question::{AnswerShape, Draw, OptionNames, Prepared, Question, prompt};
use crate::endpoints::text::stop_texts;
use crate::endpoints::{found, missing, read, server_sent};
use crate::error::ApiError;
use crate::extract::{Caller, Parameters};
use crate::intake::Upload;

/// What is needed to write the answer to a request.
pub(super) struct Begun {
    id: String,
    model: String,
    streams: bool,
    pub(super) prompt_tokens: u64,
    /// How many tokens were asked for.
    pub(super) max_tokens: u32,
}

impl Begun {
    /// Writes the message without content.
    pub(super) fn message(&self) -> AnswerMessage {
        AnswerMessage {
            id: self.id.clone(),
            kind: "message".to_owned(),
            role: "assistant".to_owned(),
            model: self.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: MessageUsage::new(self.prompt_tokens, 0, 0),
        }
    }
}

pub(crate) async fn create(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(_): Parameters<BetaQuery>,
    headers: HeaderMap,
    body: Upload,
) -> Result<Response, ApiError> {
    check_version(&headers)?;
    let begin = {
        let server = server.clone();
        move |request, _: &[u8]| begin(&server, owner, &request)
    };
    let (mut begun, weights, prepared) = read(&server, body, begin).await?;
    let answers = server.ask(owner, &weights, prepared).await?;
    begun.id = format!("msg_{}", answers.id());
    if begun.streams {
        return Ok(server_sent::respond(MessageStream::new(begun, answers)));
    }
    whole(begun, answers).await.map(IntoResponse::into_response)
}

pub(crate) async fn count_tokens(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(_): Parameters<BetaQuery>,
    headers: HeaderMap,
    body: Upload,
) -> Result<Plain<TokenCount>, ApiError> {
    check_version(&headers)?;
    let count = {
        let server = server.clone();
        move |request: CountTokensRequest, _: &[u8]| {
            let weights = server.served_model(owner, &request.model)?;
            let mut translated = translate(Asked::from(&request))?;
            let prompt = written(&weights, &mut translated)?;
            let input_tokens = prompt.len() as u64;
            Ok(TokenCount { input_tokens })
        }
    };
    read(&server, body, count).await.map(Plain)
}

/// Reads a request, and writes its prompt.
fn begin(
    server: &Server,
    owner: Owner,
    request: &MessagesRequest,
) -> Result<(Begun, Weights, Prepared), ApiError> {
    let max_tokens = request.max_tokens.ok_or_else(|| missing("max_tokens"))?;
    let draw = draw(request)?;
    let mut translated = translate(Asked::from(request))?;
    let weights = server.served_model(owner, &request.model)?;
    let prompt = written(&weights, &mut translated)?;
    // What does not fit the context is not drawn, and the reason of the end says so.
    let context = weights.base.description.context;
    let room = u32::try_from(context.saturating_sub(prompt.len()).max(1)).unwrap_or(u32::MAX);
    let shape = shape(request, translated.shape)?;
    let question = Question {
        options: translated.options,
        draw,
        max_tokens: Some(max_tokens.min(room)),
        parallel_calls: translated.parallel_calls,
        shape,
    };
    let prompt_tokens = prompt.len() as u64;
    let prepared = question.prepare(&weights, prompt)?;
    let begun = Begun {
        id: String::new(),
        model: request.model.clone(),
        streams: request.stream.unwrap_or(false),
        prompt_tokens,
        max_tokens,
    };
    Ok((begun, weights, prepared))
}

/// What this API calls what a format may lack.
const OPTIONS: OptionNames = OptionNames {
    thinking: "thinking",
    effort: "output_config.effort",
};

/// Writes the prompt. Where nothing was said of thoughts they are turned off, if the format can.
fn written(weights: &Weights, translated: &mut Translated) -> Result<Vec<u32>, ApiError> {
    if translated.has_default_thinking {
        translated.options.thinking = Some(false);
        let prompt = prompt(
            weights,
            &translated.conversation,
            &translated.options,
            OPTIONS,
        );
        if prompt.is_ok() {
            return prompt;
        }
        translated.options.thinking = None;
    }
    prompt(
        weights,
        &translated.conversation,
        &translated.options,
        OPTIONS,
    )
}

async fn whole(begun: Begun, answers: Answers) -> Result<Plain<AnswerMessage>, ApiError> {
    let (answers, cached) = answers.finish().await?;
    let mut message = begun.message();
    if let Some(answer) = answers.into_iter().next() {
        let (reason, text) = stop_reason(&answer, begun.max_tokens);
        let drawn = answer.sequence.tokens.len() as u64;
        message.usage = MessageUsage::new(begun.prompt_tokens, cached.into(), drawn);
        message.content = blocks(&answer);
        message.stop_reason = Some(reason);
        message.stop_sequence = text;
    }
    Ok(Plain(message))
}

/// Reads what the answer has to be.
fn shape(
    request: &MessagesRequest,
    call: Option<AnswerShape>,
) -> Result<Option<AnswerShape>, ApiError> {
    let config = request.output_config.as_ref();
    let Some(format) = config.and_then(|config| config.format.as_ref()) else {
        return Ok(call);
    };
    if call.is_some() {
        let expected = "nothing where a tool has to be called";
        return Err(found("output_config.format", "a format", expected));
    }
    if format.kind != "json_schema" {
        let kind = format!("`{}`", format.kind);
        return Err(found("output_config.format.type", kind, "`json_schema`"));
    }
    let member = "output_config.format.schema";
    let schema = format.schema.clone().ok_or_else(|| missing(member))?;
    Ok(Some(AnswerShape::JsonSchema { member, schema }))
}

/// Reads how to draw.
fn draw(request: &MessagesRequest) -> Result<Draw, ApiError> {
    let defaults = SamplingParams::default();
    let temperature = request.temperature.unwrap_or(defaults.temperature);
    if !(0.0..=1.0).contains(&temperature) {
        return Err(found("temperature", temperature, "0 to 1"));
    }
    let top_k = match request.top_k {
        None | Some(0) => defaults.top_k,
        Some(k) => i32::try_from(k).unwrap_or(i32::MAX),
    };
    let stops = request.stop_sequences.iter().flatten().cloned();
    let stops = stop_texts("stop_sequences", stops)?;
    Ok(Draw {
        num_samples: 1,
        params: SamplingParams {
            temperature,
            top_k,
            top_p: request.top_p.unwrap_or(defaults.top_p),
            ..defaults
        },
        extras: SamplingExtras::default(),
        stops,
        stop_tokens: Vec::new(),
        ignore_eos: false,
        options: SampleOptions::default(),
    })
}
