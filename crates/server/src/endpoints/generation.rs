//! Samples for somebody who holds a connection.

use std::sync::Arc;

use tinkrs_backend as backend;
use tinkrs_types::protocol::FailedRequest;
use tinkrs_types::service::ErrorCategory;
use tinkrs_types::{RequestId, SampleOutput};
use tokio::sync::oneshot;

use super::found;
use crate::Server;
use crate::api::sampling::Weights;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::operations::sample::WaitingSample;
use crate::results::{DirectReply, SampleReply};
use crate::state::Base;
use crate::token_watch::{DrawnToken, TokenWatch, Watched};
use crate::worker::{Command, SampleJob};

/// A request for samples that is under way. Dropping it cancels the request.
#[derive(Debug)]
pub(crate) struct Generation {
    server: Server,
    tokens: TokenWatch,
    result: oneshot::Receiver<Result<SampleOutput, FailedRequest>>,
    _cancel: CancelOnDrop,
}

impl Server {
    /// Queues a request for samples, in the line of its owner. `what` is the member that the prompt came from.
    pub(crate) fn generate(
        &self,
        owner: Owner,
        weights: &Weights,
        request: backend::SampleRequest,
        what: &str,
    ) -> Result<Generation, ApiError> {
        let base = &weights.base;
        check(base, &request, what)?;
        let place = base.sample_place(owner)?;
        let request = WaitingSample::in_memory(request, self.shared().room(owner));
        let request = request
            .ok_or_else(|| ApiError::busy("too many bytes of samples of this key are waiting"))?;
        let id = self.shared().results.new_id(owner);
        let streams = &self.shared().token_streams;
        let sender = streams.open(&id, None);
        let tokens = streams.watch_request(&id).expect("it was just opened");
        let (answer, result) = oneshot::channel();
        let reply = DirectReply {
            id: id.clone(),
            result: answer,
        };
        let adapter = weights.adapter.as_deref();
        base.send(Command::Sample(SampleJob {
            owner,
            session: None,
            adapter: adapter.map(|folder| self.shared().checkpoints.folder(folder)),
            request,
            is_suspect: false,
            reply: SampleReply::Direct(reply),
            place: Some(place),
            tokens: sender,
        }));
        Ok(Generation {
            server: self.clone(),
            tokens,
            result,
            _cancel: CancelOnDrop {
                base: Arc::clone(base),
                owner,
                id,
            },
        })
    }
}

impl Generation {
    /// Returns the id of the request.
    pub(crate) fn id(&self) -> &RequestId {
        self.tokens.request_id()
    }

    /// Waits for the next token of any sample; `None` once there are no more.
    pub(crate) async fn next(&mut self) -> Result<Option<DrawnToken>, ApiError> {
        let watched = tokio::select! {
            watched = self.tokens.next() => watched,
            () = self.server.closing() => return Err(stopping()),
        };
        match watched {
            None => Ok(None),
            Some(Watched::Token(drawn)) => Ok(Some(drawn)),
            Some(Watched::Lagged { missed }) => Err(ApiError::too_slow(format!(
                "the stream was read too slowly: {missed} tokens are gone"
            ))),
        }
    }

    /// Waits for the whole result.
    pub(crate) async fn finish(&mut self) -> Result<SampleOutput, ApiError> {
        let result = tokio::select! {
            result = &mut self.result => result,
            () = self.server.closing() => return Err(stopping()),
        };
        match result {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(failed)) if failed.category == ErrorCategory::User => {
                Err(ApiError::bad_request(failed.error))
            }
            Ok(Err(failed)) => Err(ApiError::unavailable(failed.error)),
            Err(_) => Err(stopping()),
        }
    }
}

fn stopping() -> ApiError {
    ApiError::unavailable("the server is stopping")
}

/// Finds out what is wrong with a request before it is queued, so that it is refused with a status also where its
/// answer would be a stream.
pub(super) fn check(
    base: &Base,
    request: &backend::SampleRequest,
    what: &str,
) -> Result<(), ApiError> {
    let (context, vocabulary) = (base.description.context, base.description.vocabulary);
    let named = |error: tinkrs_types::InvalidInput| {
        let text = error.to_string();
        // Members are not inside of another one here, and one of them has another name.
        let text = text.replace("sampling_params.", "");
        ApiError::bad_request(text.replace("`stop_tokens`", "`stop_token_ids`"))
    };
    let max_tokens = request.check().map_err(named)?;
    let checked = request.extras.check(vocabulary, max_tokens);
    checked.map_err(named)?;
    if request.prompt.is_empty() {
        return Err(ApiError::bad_request(format!(
            "`{what}`: found no tokens, expected at least one"
        )));
    }
    let mut prompt = request.prompt.iter();
    if let Some(token) = prompt.find(|token| **token as usize >= vocabulary) {
        return Err(ApiError::bad_request(format!(
            "`{what}`: found token {token}, expected tokens below {vocabulary}, the size of the vocabulary"
        )));
    }
    let length = request.prompt.len();
    if length >= context {
        return Err(ApiError::bad_request(format!(
            "`{what}`: found {length} tokens, expected fewer than {context}, the context of `{}`",
            base.name
        )));
    }
    if length + max_tokens > context {
        return Err(ApiError::bad_request(format!(
            "`max_tokens`: found {max_tokens}, expected at most {}: the prompt has {length} tokens, and the context of \
             `{}` is {context}",
            context - length,
            base.name
        )));
    }
    Ok(())
}

/// Refuses a text that does not fit the context however it is divided into tokens. That is known at once, while the tokens
/// of megabytes take seconds.
pub(super) fn check_text(base: &Base, bytes: usize, what: &str) -> Result<(), ApiError> {
    match base.context_bytes().filter(|most| bytes > *most) {
        Some(most) => Err(too_long(base, bytes, most, what)),
        None => Ok(()),
    }
}

/// Says that a text does not fit the context.
pub(super) fn too_long(base: &Base, bytes: usize, most: usize, what: &str) -> ApiError {
    let (name, context) = (&base.name, base.description.context);
    found(
        what,
        format!("{bytes} bytes of text"),
        format!("at most {most}: the context of `{name}` is {context} tokens"),
    )
}

/// Cancels a request that nobody waits for any longer.
#[derive(Debug)]
struct CancelOnDrop {
    base: Arc<Base>,
    owner: Owner,
    id: RequestId,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        // For a request that has ended it means nothing.
        self.base.send(Command::Cancel {
            owner: self.owner,
            id: self.id.clone(),
        });
    }
}
