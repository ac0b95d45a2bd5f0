//! The tokenizer and the chat template of a model, for clients that do not have its folder.

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use ring::digest::{Context, SHA256};
use tinkrs_types::InvalidInput;
use tinkrs_wire::op::tokenizer::{TokenizerFiles, hash_files};
use tinkrs_wire::query::TokenizerQuery;
use tinkrs_wire::text::hex;

use super::json;
use crate::Server;
use crate::error::ApiError;
use crate::extract::Parameters;
use crate::state::Base;

/// The most bytes of all files together. The largest tokenizers that are in use have half of it.
const MOST_BYTES: usize = 64 << 20;

/// What is sent of a model's tokenizer: read and encoded when it is first asked for, and shared by all answers, so
/// that many requests take no more memory than one.
#[derive(Debug, Default)]
pub(crate) struct SentTokenizer(OnceLock<Arc<Sent>>);

#[derive(Debug)]
struct Sent {
    digest: String,
    body: Bytes,
}

pub(crate) async fn files(
    State(server): State<Server>,
    Parameters(query): Parameters<TokenizerQuery>,
) -> Result<Response, ApiError> {
    let base = Arc::clone(server.bases().get(&query.model).ok_or_else(|| {
        let names: Vec<_> = server.bases().keys().map(String::as_str).collect();
        let allowed = match names.as_slice() {
            [] => "none: this server was started without models".to_owned(),
            names => format!("one of: {}", names.join(", ")),
        };
        InvalidInput::new("model", format!("`{}`", query.model), allowed)
    })?);
    let sent = tokio::task::spawn_blocking(move || sent(&base)).await;
    let sent = sent.map_err(|_| ApiError::not_found("the tokenizer could not be read"))??;
    let body = if query.digest.as_deref() == Some(&sent.digest) {
        let digest = sent.digest.clone();
        let unchanged = TokenizerFiles {
            digest,
            files: None,
        };
        serde_json::to_vec(&unchanged)
            .expect("answers have text keys")
            .into()
    } else {
        sent.body.clone()
    };
    Ok(json(body))
}

fn sent(base: &Base) -> Result<Arc<Sent>, ApiError> {
    if let Some(sent) = base.tokenizer_files.0.get() {
        return Ok(Arc::clone(sent));
    }
    let absent = |why: String| ApiError::not_found(format!("the model `{}` {why}", base.name));
    let tokenizer = base.tokenizer.as_ref();
    let tokenizer = tokenizer.ok_or_else(|| absent("has no tokenizer".to_owned()))?;
    let files = tokenizer.text_files().map_err(|error| {
        tracing::warn!(model.name = %base.name, %error, "a tokenizer cannot be sent");
        absent("has a tokenizer that cannot be read any more".to_owned())
    })?;
    let size: usize = files.values().map(String::len).sum();
    if size > MOST_BYTES {
        return Err(absent(format!(
            "has a tokenizer of {size} bytes; at most {MOST_BYTES} are sent"
        )));
    }
    let mut hash = Context::new(&SHA256);
    hash_files(
        files.iter().map(|(name, text)| (*name, text.as_str())),
        |part| hash.update(part),
    );
    let digest = hex(hash.finish().as_ref());
    let files = files.into_iter();
    let files = files.map(|(name, text)| (name.to_owned(), text));
    let whole = TokenizerFiles {
        digest: digest.clone(),
        files: Some(files.collect()),
    };
    let body = serde_json::to_vec(&whole).expect("answers have text keys");
    let sent = Sent {
        digest,
        body: body.into(),
    };
    // Two may have read at once; what they read is the same.
    Ok(Arc::clone(
        base.tokenizer_files.0.get_or_init(|| Arc::new(sent)),
    ))
}
