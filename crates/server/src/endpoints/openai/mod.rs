//! The OpenAI API.

pub(crate) mod chat;
mod chat_stream;
mod completion_stream;
pub(crate) mod completions;
mod conversation;
mod logprobs;
pub(crate) mod responses;
mod responses_places;
mod responses_stream;
mod sampling;

use axum::extract::State;
use jiff::Timestamp;
use tinkrs_wire::endpoint::Dialect;
use tinkrs_wire::openai::models::{ModelCard, ModelList};

use super::{found, missing, read};
use crate::Server;
use crate::api::Plain;
use crate::error::ApiError;
use crate::extract::{Caller, InPath};

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

/// Returns the time for `created`.
fn now() -> i64 {
    Timestamp::now().as_second()
}
