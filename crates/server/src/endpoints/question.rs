//! A conversation that is to be continued: from what a request asks for to answers that are being drawn.

use std::sync::Arc;

use serde_json::Value;
use tinkrs_backend::{self as backend, EndOfSequence, SamplingExtras};
use tinkrs_chat::{Conversation, RenderOptions, Renderer};
use tinkrs_types::SamplingParams;
use tinkrs_types::sampling::{SampleOptions, Stop};

use super::answers::Answers;
use super::found;
use super::generation::{check_text, too_long};
use super::text::Prefill;
use crate::Server;
use crate::api::sampling::Weights;
use crate::auth::Owner;
use crate::error::{ApiError, chain};
use crate::grammar::{self, Thinking, Wanted};

/// How to draw, whichever API says so.
#[derive(Debug)]
pub(crate) struct Draw {
    pub(crate) num_samples: u32,
    /// Without `stop` and `max_tokens`.
    pub(crate) params: SamplingParams,
    /// Without what ends an answer.
    pub(crate) extras: SamplingExtras,
    /// Texts that end an answer and are not a part of it.
    pub(crate) stops: Arc<[String]>,
    /// Tokens that end an answer.
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) options: SampleOptions,
}

impl Draw {
    /// Makes the request for a prompt. `renderer` says what else ends an answer.
    pub(crate) fn request(
        self,
        prompt: Vec<u32>,
        max_tokens: u32,
        renderer: Option<&Renderer>,
    ) -> backend::SampleRequest {
        let mut texts = self.stops.to_vec();
        let mut extras = self.extras;
        extras.stop_tokens = self.stop_tokens;
        extras.end_of_sequence = EndOfSequence::Ignored;
        if !self.ignore_eos {
            extras.end_of_sequence = EndOfSequence::Always;
            match renderer.map(Renderer::stop) {
                Some(Stop::Text(text)) => texts.push(text),
                Some(Stop::AnyText(also)) => texts.extend(also),
                Some(Stop::AnyToken(tokens)) => extras.stop_tokens.extend(tokens),
                Some(Stop::Never) | None => {}
            }
        }
        let mut params = self.params;
        params.max_tokens = Some(max_tokens);
        params.stop = Some(Stop::from(texts));
        backend::SampleRequest {
            adapter: None,
            prompt,
            num_samples: self.num_samples,
            params,
            extras: Arc::new(extras),
            options: self.options,
            fallback_seed: fastrand::u64(..),
            share: 0,
        }
    }
}

/// A conversation that is to be continued.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) options: RenderOptions,
    pub(crate) draw: Draw,
    /// As many as the context has room for, if it is `None`.
    pub(crate) max_tokens: Option<u32>,
    /// Whether an answer may have several calls.
    pub(crate) parallel_calls: bool,
    /// What an answer has to be.
    pub(crate) shape: Option<AnswerShape>,
}

/// What an answer has to be, besides the thoughts before it.
#[derive(Debug)]
pub(crate) enum AnswerShape {
    /// A JSON object.
    JsonObject,
    /// JSON that a schema allows, which was sent as this member.
    JsonSchema { member: &'static str, schema: Value },
    /// A call: an object with the `name` and the `arguments`, as the schema says, and nothing else.
    Call { schema: Value },
}

impl AnswerShape {
    /// Returns what an answer has to keep to, with the member that it was sent as: any JSON object, if there is no schema.
    fn schema(&self) -> (&'static str, Option<&Value>) {
        match self {
            Self::JsonObject => ("response_format", None),
            Self::JsonSchema { member, schema } => (member, Some(schema)),
            Self::Call { schema } => ("tools", Some(schema)),
        }
    }
}

/// A question whose prompt is written.
#[derive(Debug)]
pub(crate) struct Prepared {
    request: backend::SampleRequest,
    /// What the prompt has begun of each answer.
    begun: String,
    /// What of that is the client's.
    prefill: Prefill,
    stops: Arc<[String]>,
    parallel_calls: bool,
    shape: Option<AnswerShape>,
    may_think: bool,
}

impl Question {
    /// Prepares to draw. `prompt` is what [`prompt`] made of the conversation.
    pub(crate) fn prepare(self, weights: &Weights, prompt: Vec<u32>) -> Result<Prepared, ApiError> {
        let renderer = renderer(weights)?;
        // A schema of megabytes does not wait for its turn to be compiled.
        if let Some((member, Some(schema))) = self.shape.as_ref().map(AnswerShape::schema) {
            grammar::check_size(member, schema)?;
        }
        let context = weights.base.description.context;
        // A prompt that does not fit is refused with its length.
        let room = context.saturating_sub(prompt.len()).max(1);
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let begun = begun(renderer, &prompt, &self.options);
        let begun = begun.map_err(|error| unwritable(&error))?;
        let stops = Arc::clone(&self.draw.stops);
        let max_tokens = self.max_tokens.unwrap_or(room);
        Ok(Prepared {
            request: self.draw.request(prompt, max_tokens, Some(renderer)),
            begun,
            prefill: Prefill(self.options.prefill.unwrap_or_default()),
            stops,
            parallel_calls: self.parallel_calls,
            shape: self.shape,
            may_think: self.options.thinking != Some(false),
        })
    }
}

impl Server {
    /// Begins to draw the answers to a question.
    pub(crate) async fn ask(
        &self,
        owner: Owner,
        weights: &Weights,
        prepared: Prepared,
    ) -> Result<Answers, ApiError> {
        let Prepared {
            mut request,
            begun,
            prefill,
            stops,
            parallel_calls,
            shape,
            may_think,
        } = prepared;
        // What is wrong is said before anything is compiled.
        super::generation::check(&weights.base, &request, "messages")?;
        let renderer = renderer(weights)?;
        let is_call = matches!(shape, Some(AnswerShape::Call { .. }));
        if let Some(shape) = shape {
            let begun = may_think.then_some(begun.as_str());
            let wanted = wanted(owner, weights, renderer, &request, &shape, begun);
            let grammar = self.shared().grammars.compile(wanted).await?;
            Arc::make_mut(&mut request.extras).grammar = Some(grammar);
        }
        let prompt = request.prompt.clone();
        let (samples, stop_tokens) = (request.num_samples, request.extras.stop_tokens.clone());
        let generation = self.generate(owner, weights, request, "messages")?;
        let ends = weights.base.description.end_of_sequence.iter().copied();
        let ends = ends.filter(|token| !stop_tokens.contains(token));
        Ok(Answers::new(
            prompt,
            generation,
            renderer,
            begun,
            prefill,
            stops,
            parallel_calls,
            is_call,
            ends.collect(),
            samples,
        ))
    }
}

/// What thoughts are written between, where a model has a token for it.
const THINK: (&str, &str) = ("<think>", "</think>");

/// Says what samples may be. `begun` is what the prompt has begun of an answer that may have thoughts before it.
fn wanted(
    owner: Owner,
    weights: &Weights,
    renderer: &Renderer,
    request: &backend::SampleRequest,
    shape: &AnswerShape,
    begun: Option<&str>,
) -> Wanted {
    let (member, schema) = shape.schema();
    let (opening, closing) = THINK;
    let tokenizer = renderer.vocabulary().tokenizer();
    let has_token = tokenizer.token_id(opening).is_some();
    let mut end_tokens = weights.base.description.end_of_sequence.clone();
    end_tokens.extend(&request.extras.stop_tokens);
    Wanted {
        owner,
        base: Arc::clone(&weights.base),
        member,
        schema: schema.cloned(),
        end_tokens,
        thinking: begun.filter(|_| has_token).map(|begun| Thinking {
            opening,
            closing,
            is_open: begun.trim_start().starts_with(opening),
        }),
    }
}

/// Finds how the conversations of a model are written.
pub(crate) fn renderer(weights: &Weights) -> Result<&Renderer, ApiError> {
    let base = &weights.base;
    base.renderer.as_ref().ok_or_else(|| {
        ApiError::bad_request(format!(
            "`model`: `{}` has no chat format: ask for completions of a prompt instead",
            base.name
        ))
    })
}

/// What an API calls what a chat format may lack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptionNames {
    pub(crate) thinking: &'static str,
    pub(crate) effort: &'static str,
}

/// Renders a conversation as the prompt for an answer, which takes time if it is long.
pub(crate) fn prompt(
    weights: &Weights,
    conversation: &Conversation,
    options: &RenderOptions,
    names: OptionNames,
) -> Result<Vec<u32>, ApiError> {
    let (messages, context) = (&conversation.messages, weights.base.description.context);
    // Every one takes a token at least, and a chat template takes longer the more there are.
    if messages.len() > context {
        let count = format!("{} messages", messages.len());
        let expected = format!("at most {context}, the tokens of the context");
        return Err(found("messages", count, expected));
    }
    let said = messages.iter().map(|message| message.content.len()).sum();
    check_text(&weights.base, said, "messages")?;
    // Tools, calls and thoughts are text, too, where the format writes them.
    let mut options = options.clone();
    options.max_text_bytes = weights.base.context_bytes();
    let refused = match renderer(weights)?.render_with(conversation, &options) {
        Ok(rendered) => return Ok(rendered.tokens),
        Err(refused) => refused,
    };
    let member = match &refused {
        tinkrs_chat::Error::TooLong { found, most } => {
            return Err(too_long(&weights.base, *found, *most, "messages"));
        }
        tinkrs_chat::Error::Option { what, .. } if what.contains("switch") => names.thinking,
        tinkrs_chat::Error::Option { what, .. } if what.contains("effort") => names.effort,
        _ => return Err(unwritable(&refused)),
    };
    let detail = format!("`{member}`: {}", chain(&refused));
    Err(ApiError::bad_request(detail))
}

fn unwritable(error: &tinkrs_chat::Error) -> ApiError {
    ApiError::bad_request(format!("`messages`: {}", chain(error)))
}

fn begun(
    renderer: &Renderer,
    prompt: &[u32],
    options: &RenderOptions,
) -> Result<String, tinkrs_chat::Error> {
    let end = &prompt[prompt.len().saturating_sub(8)..];
    let end = renderer.vocabulary().decode(end)?;
    let begun = renderer.format().begun(&end);
    Ok(format!(
        "{begun}{}",
        options.prefill.as_deref().unwrap_or_default()
    ))
}
