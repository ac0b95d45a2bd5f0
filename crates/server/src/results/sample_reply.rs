//! Where the result of a request for samples goes.

use jiff::Timestamp;
use tinkrs_types::protocol::FailedRequest;
use tinkrs_types::service::ErrorCategory;
use tinkrs_types::{RequestId, SampleOutput, SessionId};
use tokio::sync::oneshot;

use super::{OperationResult, Responder};
use crate::store::{Change, Ending, Store, Usage};

/// The right and the duty to answer a request for samples.
#[derive(Debug)]
pub(crate) enum SampleReply {
    /// The result is stored, for polls that fetch it.
    Promised(Responder),
    /// The result goes to whoever waits for it, and to nobody else: of such a request nothing is stored but how
    /// many tokens it took. If the process ends, so does the connection, and the client knows.
    Direct(DirectReply),
}

/// The way to whoever waits for a result.
#[derive(Debug)]
pub(crate) struct DirectReply {
    pub(crate) id: RequestId,
    pub(crate) result: oneshot::Sender<Result<SampleOutput, FailedRequest>>,
}

/// The session that something was done for, and since when.
pub(crate) type Begun = Option<(SessionId, Timestamp)>;

impl SampleReply {
    /// Returns the id of the request.
    pub(crate) fn id(&self) -> &RequestId {
        match self {
            Self::Promised(responder) => responder.id(),
            Self::Direct(reply) => &reply.id,
        }
    }

    /// Ends the request with its samples, for which these tokens were used.
    pub(crate) fn finish(
        self,
        output: SampleOutput,
        usage: Vec<Usage>,
        begun: Begun,
        store: &Store,
    ) {
        match self {
            Self::Promised(responder) => responder.finish(Ending {
                usage,
                begun,
                ..OperationResult::sample(output).into()
            }),
            Self::Direct(reply) => {
                store.note(Change::Usage(usage));
                // Sending fails if the connection has ended and dropped the receiver.
                let _ = reply.result.send(Ok(output));
            }
        }
    }

    /// Ends the request with a failure.
    pub(crate) fn fail(self, outcome: OperationResult, begun: Begun) {
        match self {
            Self::Promised(responder) => responder.finish(Ending {
                begun,
                ..outcome.into()
            }),
            Self::Direct(reply) => {
                let failed = serde_json::from_slice(&outcome.bytes);
                let failed = failed.unwrap_or_else(|_| FailedRequest {
                    error: "the request failed".to_owned(),
                    category: ErrorCategory::Server,
                });
                let _ = reply.result.send(Err(failed));
            }
        }
    }
}
