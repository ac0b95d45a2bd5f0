//! Results: waiting for them, and giving up on them.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use tinkrs_types::QueueStatus;
use tinkrs_wire::header as names;
use tinkrs_wire::op::cancel_future::CancelFutureRequest;
use tinkrs_wire::op::retrieve_future::{RetrieveFutureRequest, encode_try_again};
use tinkrs_wire::op::{asample, forward_backward};

use super::{Plain, json};
use crate::Server;
use crate::error::Refusal;
use crate::extract::Decoded;
use crate::futures::{Lookup, Outcome};
use crate::worker::Command;

pub(crate) async fn retrieve(
    State(server): State<Server>,
    headers: HeaderMap,
    Decoded(request): Decoded<RetrieveFutureRequest>,
) -> Result<Response, Refusal> {
    let id = &request.request_id;
    match server.wait(&request).await {
        Lookup::Done(outcome) => Ok(encode(outcome, takes_messages(&headers))),
        Lookup::Pending(status) => {
            let body = Plain(encode_try_again(id, &status));
            Ok((StatusCode::REQUEST_TIMEOUT, body).into_response())
        }
        Lookup::Expired => Err(Refusal::gone(format!(
            "the result of request `{id}` was fetched before, and is not kept any longer"
        ))),
        Lookup::Unknown => Err(Refusal::not_found(format!("there is no request `{id}`"))),
    }
}

pub(crate) async fn cancel(
    State(server): State<Server>,
    Decoded(request): Decoded<CancelFutureRequest>,
) -> Plain<Map<String, Value>> {
    server.cancel(&request);
    Plain(Map::new())
}

impl Server {
    async fn wait(&self, request: &RetrieveFutureRequest) -> Lookup {
        let patience = self.inner().settings.poll_patience;
        tokio::select! {
            lookup = self.inner().futures.wait(&request.request_id, patience) => lookup,
            () = self.closing() => Lookup::Pending(QueueStatus::default()),
        }
    }

    /// Gives up on a sample. Requests that are unknown, finished or of another kind are not harmed.
    fn cancel(&self, request: &CancelFutureRequest) {
        for base in self.inner().bases.values() {
            base.send(Command::Cancel(request.request_id.clone()));
        }
    }
}

/// Whether the client takes results as messages. Those to 0.18 do not.
fn takes_messages(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter();
    let mut accepts = accepts.filter_map(|value| value.to_str().ok());
    accepts.any(|value| value.contains(names::PROTOBUF))
}

fn encode(outcome: Outcome, as_message: bool) -> Response {
    let message =
        |bytes: Vec<u8>| ([(header::CONTENT_TYPE, names::PROTOBUF)], bytes).into_response();
    match outcome {
        Outcome::Json(bytes) => json(bytes),
        Outcome::Failed(failure) => Plain(failure).into_response(),
        Outcome::Pass(output) if as_message => {
            message(forward_backward::encode_result((*output).clone()))
        }
        Outcome::Pass(output) => {
            Plain(forward_backward::encode_json_result(&output)).into_response()
        }
        Outcome::Sample(output) if as_message => message(asample::encode_result((*output).clone())),
        Outcome::Sample(output) => Plain(asample::encode_json_result(&output)).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tinkrs_engine::weights::{Dtype, RandomWeights};
    use tinkrs_engine::{Model, ModelConfig, Precision, Threads};

    use super::*;
    use crate::{BaseModel, Settings};

    #[tokio::test]
    async fn a_server_that_stops_answers_the_polls_that_wait() {
        let weights = RandomWeights::new(ModelConfig::tiny_llama(), 1, Dtype::F32).unwrap();
        let threads = Threads::new(1).unwrap();
        let model = Model::load(&weights, Precision::Stored, &threads).unwrap();
        let data = tempfile::tempdir().unwrap();
        let base = BaseModel::new("tiny", Arc::new(model));
        let server = Server::start(vec![base], Settings::new(data.path())).unwrap();
        let answer = server.inner().futures.promise();
        let request = RetrieveFutureRequest {
            request_id: answer.id().clone(),
            allow_metadata_only: true,
        };
        let (lookup, ()) = tokio::join!(server.wait(&request), async { server.close() });
        assert!(matches!(lookup, Lookup::Pending(_)), "{lookup:?}");
    }
}
