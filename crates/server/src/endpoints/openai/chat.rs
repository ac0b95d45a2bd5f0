//! `POST /v1/chat/completions`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use tinkrs_chat::Json;
use tinkrs_wire::openai::chat::{
    AnswerMessage, ChatChoice, ChatCompletion, ChatCompletionRequest, ChatRole, FunctionCall,
    FunctionKind, ToolCall,
};
use tinkrs_wire::openai::{FinishReason, TokenUsage};

use super::chat_stream::ChatStream;
use super::found;
use super::sampling::draw;
use super::{conversation, logprobs, missing, now, read};
use crate::Server;
use crate::api::Plain;
use crate::api::sampling::Weights;
use crate::auth::Owner;
use crate::endpoints::answers::{Answer, AnswerEnd, Answers};
use crate::endpoints::question::{Prepared, Question, prompt};
use crate::endpoints::server_sent;
use crate::error::ApiError;
use crate::extract::Caller;
use crate::intake::Upload;

/// What is needed to write the answers to a request.
pub(super) struct Asked {
    /// That of the completion, once it has begun.
    pub(super) id: String,
    pub(super) created: i64,
    pub(super) model: String,
    pub(super) weights: Weights,
    pub(super) wants_logprobs: bool,
    pub(super) wants_token_ids: bool,
    pub(super) includes_usage: bool,
    streams: bool,
}

pub(crate) async fn complete(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Upload,
) -> Result<Response, ApiError> {
    let begin = {
        let server = server.clone();
        move |request, body: &[u8]| begin(&server, owner, request, body)
    };
    let (mut asked, prepared) = read(&server, body, begin).await?;
    let answers = server.ask(owner, &asked.weights, prepared).await?;
    asked.id = format!("chatcmpl-{}", answers.id());
    if asked.streams {
        return Ok(server_sent::respond(ChatStream::new(asked, answers)));
    }
    whole(&asked, answers)
        .await
        .map(IntoResponse::into_response)
}

/// Reads a request, and writes its prompt.
fn begin(
    server: &Server,
    owner: Owner,
    request: ChatCompletionRequest,
    body: &[u8],
) -> Result<(Asked, Prepared), ApiError> {
    let tools = match &request.tools {
        Some(_) => conversation::ordered_tools(body),
        None => Vec::new(),
    };
    begin_with(server, owner, request, tools)
}

/// Writes the prompt of a request whose tools are these.
pub(super) fn begin_with(
    server: &Server,
    owner: Owner,
    request: ChatCompletionRequest,
    tools: Vec<Json>,
) -> Result<(Asked, Prepared), ApiError> {
    if request.messages.is_none() {
        return Err(missing("messages"));
    }
    let modalities = request.modalities.as_deref().unwrap_or_default();
    if let Some(other) = modalities.iter().find(|name| *name != "text") {
        return Err(found("modalities", format!("`{other}`"), "`text`"));
    }
    let wants_logprobs = request.logprobs.unwrap_or(false);
    let top = request.top_logprobs.map(|count| ("top_logprobs", count));
    if let Some((member, count)) = top.filter(|(_, count)| *count > 0 && !wants_logprobs) {
        return Err(found(member, count, "`logprobs` to be true as well"));
    }
    let max_tokens = match (request.max_completion_tokens, request.max_tokens) {
        (Some(new), Some(old)) if new != old => {
            let expected = format!("{new}, as `max_completion_tokens` says, or nothing");
            return Err(found("max_tokens", old, expected));
        }
        (new, old) => new.or(old),
    };
    let weights = server.served_model(owner, &request.model)?;
    let conversation = conversation::conversation(&request, tools)?;
    let options = conversation::options(&request)?;
    let names = conversation::option_names(&request);
    let (draw, shape) = (
        draw(request.sampling(), top)?,
        conversation::shape(&request)?,
    );
    // Last, because it takes longest.
    let prompt = prompt(&weights, &conversation, &options, names)?;
    let question = Question {
        options,
        draw,
        max_tokens,
        parallel_calls: request.parallel_tool_calls.unwrap_or(true),
        shape,
    };
    let prepared = question.prepare(&weights, prompt)?;
    let asked = Asked {
        id: String::new(),
        created: now(),
        weights,
        wants_logprobs,
        wants_token_ids: request.wants_token_ids(),
        includes_usage: request.includes_usage(),
        streams: request.streams(),
        model: request.model,
    };
    Ok((asked, prepared))
}

async fn whole(asked: &Asked, answers: Answers) -> Result<Plain<ChatCompletion>, ApiError> {
    let prompt = answers.prompt.clone();
    let (answers, cached) = answers.finish().await?;
    let drawn = answers.iter().map(|answer| answer.sequence.tokens.len());
    let usage = usage(prompt.len(), cached, drawn.sum());
    let choices = answers
        .into_iter()
        .zip(0..)
        .map(|(answer, index)| ChatChoice {
            index,
            finish_reason: finish_reason(&answer),
            logprobs: asked.wants_logprobs.then(|| {
                let tokens = logprobs::of_sequence(&answer.sequence);
                logprobs::chat(&asked.weights.base, tokens)
            }),
            message: message(&answer),
            token_ids: asked.wants_token_ids.then_some(answer.sequence.tokens),
        });
    Ok(Plain(ChatCompletion {
        id: asked.id.clone(),
        object: "chat.completion".to_owned(),
        created: asked.created,
        model: asked.model.clone(),
        choices: choices.collect(),
        usage,
        prompt_token_ids: asked.wants_token_ids.then_some(prompt),
    }))
}

pub(super) fn usage(prompt: usize, cached: u32, drawn: usize) -> TokenUsage {
    TokenUsage::new(prompt as u64, cached.into(), drawn as u64)
}

pub(super) fn finish_reason(answer: &Answer) -> FinishReason {
    match answer.end {
        AnswerEnd::Length => FinishReason::Length,
        _ if !answer.calls.is_empty() => FinishReason::ToolCalls,
        AnswerEnd::Model | AnswerEnd::Text(_) => FinishReason::Stop,
    }
}

fn message(answer: &Answer) -> AnswerMessage {
    let calls = calls(answer);
    AnswerMessage {
        role: ChatRole::Assistant,
        content: (!answer.content.is_empty() || calls.is_empty()).then(|| answer.content.clone()),
        reasoning_content: answer.thinking.clone(),
        tool_calls: (!calls.is_empty()).then_some(calls),
        refusal: None,
    }
}

/// Writes the calls of an answer.
pub(super) fn calls(answer: &Answer) -> Vec<ToolCall> {
    let calls = answer.calls.iter().map(|call| ToolCall {
        index: None,
        id: call.id.clone().unwrap_or_default(),
        kind: FunctionKind::Function,
        function: FunctionCall {
            name: call.name.clone(),
            arguments: call.arguments.to_string(),
        },
    });
    calls.collect()
}
