//! Results: waiting for them, and giving up on them.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use tinkrs_types::protocol::{Completion, QueueStatus};
use tinkrs_wire::header as names;
use tinkrs_wire::op::cancel_future::CancelFutureRequest;
use tinkrs_wire::op::retrieve_future::{RetrieveFutureRequest, encode_metadata, encode_try_again};
use tinkrs_wire::op::retrieve_futures::{
    FuturesTarget, RetrieveFuturesRequest, RetrieveFuturesResponse,
};

use super::{Plain, json};
use crate::Server;
use crate::auth::Owner;
use crate::body::{json_bytes, read_json};
use crate::error::ApiError;
use crate::extract::{Caller, Decoded};
use crate::intake::Upload;
use crate::results::completion_feed::CompletionFeed;
use crate::results::{Lookup, OperationResult, ResultFormat};
use crate::worker::Command;

pub(crate) async fn retrieve(
    State(server): State<Server>,
    Caller(owner): Caller,
    headers: HeaderMap,
    Decoded(request): Decoded<RetrieveFutureRequest>,
) -> Result<Response, ApiError> {
    let id = &request.request_id;
    match server.wait(owner, &request).await {
        Lookup::Done(outcome) => encode(outcome, takes_messages(&headers)),
        Lookup::Large(size) => Ok(Plain(encode_metadata(size)).into_response()),
        Lookup::Pending(status) => {
            let body = Plain(encode_try_again(id, &status));
            Ok((StatusCode::REQUEST_TIMEOUT, body).into_response())
        }
        Lookup::Expired => Err(ApiError::gone(format!(
            "the result of request `{id}` was fetched before, and is not kept any longer"
        ))),
        Lookup::Unknown => Err(ApiError::not_found(format!("there is no request `{id}`"))),
        Lookup::Unreadable(error) => Err(ApiError::unavailable(format!(
            "could not read the result of request `{id}`: {error}"
        ))),
    }
}

pub(crate) async fn retrieve_many(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Upload,
) -> Result<Plain<RetrieveFuturesResponse>, ApiError> {
    let (request, held) = body
        .decode(&server, json_bytes, |body| read_json(&body))
        .await?;
    drop(held);
    server.completions(owner, request).await.map(Plain)
}

pub(crate) async fn cancel(
    State(server): State<Server>,
    Caller(owner): Caller,
    Decoded(request): Decoded<CancelFutureRequest>,
) -> Plain<Map<String, Value>> {
    server.cancel(owner, &request);
    Plain(Map::new())
}

impl Server {
    async fn wait(&self, owner: Owner, request: &RetrieveFutureRequest) -> Lookup {
        let settings = &self.shared().settings;
        let inline = if request.allow_metadata_only {
            settings.inline_bytes
        } else {
            u64::MAX
        };
        let results = &self.shared().results;
        let id = &request.request_id;
        tokio::select! {
            lookup = results.wait(owner, id, settings.poll_timeout, inline) => lookup,
            () = self.closing() => Lookup::Pending(QueueStatus::default()),
        }
    }

    /// Waits for requests of a sampling client to end.
    async fn completions(
        &self,
        owner: Owner,
        request: RetrieveFuturesRequest,
    ) -> Result<RetrieveFuturesResponse, ApiError> {
        let FuturesTarget::SamplingSession {
            sampling_session_id,
            cloned_sampler_id,
        } = request.target;
        self.registry().sampler(owner, &sampling_session_id)?;
        let longest = self.shared().settings.poll_timeout;
        let timeout = match request.timeout {
            None => longest,
            Some(seconds) => Duration::try_from_secs_f64(seconds)
                .map_err(|_| {
                    ApiError::bad_request(format!(
                        "`timeout`: found {seconds}, expected seconds, 0 or more"
                    ))
                })?
                .min(longest),
        };
        let results = &self.shared().results;
        results.release(owner, &request.retrieved_request_ids);
        let feed = CompletionFeed {
            sampler: sampling_session_id,
            clone: cloned_sampler_id,
        };
        let (completions, cursor) = tokio::select! {
            news = results.feeds.after(&feed, request.prev_cursor, timeout) => news,
            () = self.closing() => (Vec::new(), request.prev_cursor),
        };
        let completion =
            |completion: crate::results::completion_feed::Completion| match completion.size {
                Some(size) => Completion::Finished {
                    request_id: completion.request_id,
                    response_payload_uncompressed_size: Some(size),
                },
                None => Completion::Failed {
                    request_id: completion.request_id,
                },
            };
        Ok(RetrieveFuturesResponse {
            completions: completions.into_iter().map(completion).collect(),
            cursor,
        })
    }

    /// Gives up on a sample. Requests that are unknown, finished, of another kind or of somebody
    /// else are not harmed.
    fn cancel(&self, owner: Owner, request: &CancelFutureRequest) {
        // The threads are not troubled with others: their channels are bounded by what waits.
        if !self.shared().results.is_pending(owner, &request.request_id) {
            return;
        }
        for base in self.bases().values() {
            base.send(Command::Cancel {
                owner,
                id: request.request_id.clone(),
            });
        }
    }
}

/// Whether the client takes results as messages. Those to 0.18 do not.
fn takes_messages(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter();
    let mut accepts = accepts.filter_map(|value| value.to_str().ok());
    accepts.any(|value| value.contains(names::PROTOBUF))
}

fn encode(outcome: OperationResult, as_message: bool) -> Result<Response, ApiError> {
    match outcome.kind {
        ResultFormat::Pass | ResultFormat::Sample if as_message => {
            let content_type = [(header::CONTENT_TYPE, names::PROTOBUF)];
            Ok((content_type, outcome.bytes).into_response())
        }
        _ => {
            let bytes = outcome.to_json();
            let bytes = bytes.map_err(|error| ApiError::unavailable(error.to_string()))?;
            Ok(json(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use tinkrs_testkit::FakeBackend;

    use super::*;
    use crate::{BaseModel, Settings};

    #[tokio::test]
    async fn a_server_that_stops_answers_the_polls_that_wait() {
        let data = tempfile::tempdir().unwrap();
        let base = BaseModel::new("tiny", FakeBackend::new());
        let server = Server::start(vec![base], Settings::new(data.path())).unwrap();
        let owner = Owner::of_key(b"me");
        let answer = server.shared().results.promise(owner, None);
        let request = RetrieveFutureRequest {
            request_id: answer.id().clone(),
            allow_metadata_only: true,
        };
        let (lookup, ()) = tokio::join!(server.wait(owner, &request), async { server.close() });
        assert!(matches!(lookup, Lookup::Pending(_)), "{lookup:?}");
    }
}
