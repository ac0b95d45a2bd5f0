//! The OpenAI API.

pub(crate) mod chat;
mod chat_stream;
mod completion_stream;
pub(crate) mod completions;
mod conversation;
mod logprobs;
pub(crate) mod responses;
mod responses_stream;
mod sampling;

use axum::extract::State;
use bytes::Bytes;
use jiff::Timestamp;
use tinkrs_wire::Body;
use tinkrs_wire::endpoint::Dialect;
use tinkrs_wire::openai::models::{ModelCard, ModelList};

use crate::Server;
use crate::api::Plain;
use crate::body::{json_bytes, read_json};
use crate::error::ApiError;
use crate::extract::{Caller, InPath};
use crate::intake::Upload;

pub(crate) async fn models(
    State(server): State<Server>,
    Caller(owner): Caller,
) -> Result<Plain<ModelList>, ApiError> {
    Ok(Plain(ModelList {
        object: "list".to_owned(),
        data: server.served_models(owner)?,
    }))
}

pub(crate) async fn model(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(model): InPath<String>,
) -> Result<Plain<ModelCard>, ApiError> {
    let mut cards = server.served_models(owner)?.into_iter();
    let found = cards.find(|card| card.id == model);
    found.map(Plain).ok_or_else(|| {
        ApiError::not_found(format!(
            "`model`: found `{model}`, which is not one of those that `GET /v1/models` lists"
        ))
    })
}

/// What of the API needs models that write something else than text.
const ABSENT: [&str; 4] = ["embeddings", "images", "audio", "videos"];

/// Refuses by its name what the API has and the models of this server do not.
pub(crate) fn absent(path: &str) -> Option<ApiError> {
    let hosted = path.strip_prefix(Dialect::OpenAi.hosted_prefix());
    let path = hosted.unwrap_or(path).strip_prefix("/v1/")?;
    let name = path.split('/').next().unwrap_or_default();
    ABSENT.contains(&name).then(|| {
        ApiError::not_found(format!(
            "`{name}`: the models of this server read and write text, and nothing else"
        ))
    })
}

/// Reads a request and prepares it, where that holds up nobody.
async fn read<T: Body + Send + 'static, P: Send + 'static>(
    server: &Server,
    body: Upload,
    prepare: impl FnOnce(T, &[u8]) -> Result<P, ApiError> + Send + 'static,
) -> Result<P, ApiError> {
    let read = move |body: Bytes| prepare(read_json(&body)?, &body);
    // What was sent is not needed any more once it is prepared.
    let (prepared, _held) = body.decode(server, json_bytes, read).await?;
    Ok(prepared)
}

/// Returns the time for `created`.
fn now() -> i64 {
    Timestamp::now().as_second()
}

/// Refuses a request that lacks a member.
fn missing(member: &str) -> ApiError {
    ApiError::bad_request(format!("`{member}` is missing"))
}
