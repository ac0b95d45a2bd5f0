//! Endpoints of other APIs over every model and checkpoint: what their clients send is drawn by the same
//! machine as the samples of the SDK.
//!
//! - [`models`]: from the text in `model` to weights, once for each request; `run@latest` may mean another checkpoint
//!   in the next one, never in the middle of one;
//! - [`generation`]: from tokens to a stream of tokens. A request takes a place in the owner's line, its bytes count, it shares prompt
//!   beginnings with all others, and whoever hangs up stops it at the next step;
//! - [`question`]: from a conversation to a prompt, and to what an answer has to be;
//! - [`answers`]: from tokens to thoughts, words and calls, as they are drawn and as a whole;
//! - [`calls`]: what an answer is that has to be a call;
//! - [`text`], [`server_sent`], [`dialect`]: stop texts, streams of events, and each API's form of errors;
//! - [`openai`] and [`anthropic`]: the two APIs on top of these.
//!
//! Nothing of these requests is in the journal, because nobody could ask for the result again: their clients
//! have no key to repeat a request with, and see the connection end. Only how many tokens were used is stored, in
//! the same sums as that of all others.

pub(crate) mod answers;
pub(crate) mod anthropic;
pub(crate) mod calls;
pub(crate) mod dialect;
pub(crate) mod generation;
pub(crate) mod models;
pub(crate) mod openai;
pub(crate) mod question;
pub(crate) mod server_sent;
pub(crate) mod text;

use bytes::Bytes;
use tinkrs_wire::Body;

use crate::Server;
use crate::body::{json_bytes, read_json};
use crate::error::ApiError;
use crate::intake::Upload;

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

/// Refuses a request that lacks a member.
fn missing(member: &str) -> ApiError {
    ApiError::bad_request(format!("`{member}` is missing"))
}

/// Refuses a value by the name of its member.
fn found(
    member: &str,
    found: impl std::fmt::Display,
    expected: impl std::fmt::Display,
) -> ApiError {
    ApiError::bad_request(format!("`{member}`: found {found}, expected {expected}"))
}
