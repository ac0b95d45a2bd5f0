//! The client of one model under training.

use super::sequencer::{Sequencer, Submitted};
use crate::connection::call::Call;
use crate::connection::errors::SubmitError;
use crate::connection::transport::Traffic;
use crate::future::poll::{self, PollTarget, RawResult};
use crate::future::{Pending, QueueObserver, report, result_size};
use crate::session::Session;
use crate::{Error, Request};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tinkrs_types::protocol::{Promise, RequestType};
use tinkrs_types::training::ModelInfo;
use tinkrs_types::{ModelId, SessionId};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::get_info::GetInfoRequest;
use tokio::time::Instant;

/// Trains one model.
///
/// A client is a handle: cloning it is cheap, and clones share the model's order of
/// operations. That order is the order of the calls to `submit` (or of the first polls, for
/// requests that are awaited), whatever is awaited when.
///
/// ```no_run
/// # async fn run(client: tinkrs::TrainingClient, batch: Vec<tinkrs::Datum>) -> Result<(), tinkrs::Error> {
/// use tinkrs::AdamParams;
///
/// let output = client.forward_backward(batch.clone()).await?; // simple
/// client.optim_step(AdamParams::new(1e-4)).await?;
///
/// let step = client.forward_backward(batch).submit(); // pipelined
/// let update = client.optim_step(AdamParams::new(1e-4)).submit(); // queued right behind it
/// println!("loss {:?}", step.await?.loss());
/// update.await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TrainingClient {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) session: Arc<Session>,
    pub(crate) model_id: ModelId,
    pub(crate) observer: QueueObserver,
    pub(crate) sequencer: Sequencer,
    /// Whether the server takes no reports of metrics.
    pub(crate) is_unreported: AtomicBool,
}

impl TrainingClient {
    pub(crate) fn new(session: Arc<Session>, model_id: ModelId) -> Self {
        let connection = Arc::clone(&session.connection);
        let on_error = move |error: &Error| connection.lifecycle.report_error(error);
        let sequencer = Sequencer::start(&session.connection.runtime, Arc::new(on_error));
        let observer = QueueObserver::training(model_id.as_str());
        Self {
            inner: Arc::new(Inner {
                session,
                model_id,
                observer,
                sequencer,
                is_unreported: AtomicBool::new(false),
            }),
        }
    }

    /// Returns the model's id, which is also its training run's.
    pub fn model_id(&self) -> &ModelId {
        &self.inner.model_id
    }

    /// Returns the session that the model belongs to.
    pub fn session_id(&self) -> &SessionId {
        &self.inner.session.id
    }

    /// Asks the server what it knows of the model.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn get_info(&self) -> Result<ModelInfo, Error> {
        let request = GetInfoRequest {
            model_id: self.inner.model_id.clone(),
        };
        let mut call = Call::new(&endpoint::GET_INFO).json(&request);
        call.traffic = Traffic::Training;
        let connection = &self.inner.session.connection;
        connection.lifecycle.reporting(connection.json(call)).await
    }

    pub(crate) fn request<O>(&self, operation: O) -> Request<O> {
        Request {
            client: self.clone(),
            operation,
        }
    }

    /// Returns the connection to the server.
    #[cfg(feature = "tokenizers")]
    pub(crate) fn connection(&self) -> Arc<crate::connection::Connection> {
        Arc::clone(&self.inner.session.connection)
    }
}

impl Inner {
    /// Submits one request in its turn and fetches its result.
    ///
    /// `make` gets the sequence number, which is taken now, at the call.
    pub(crate) fn enqueue<T: Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        request_type: RequestType,
        make: impl FnOnce(i64) -> Call + Send + 'static,
        read: impl FnOnce(RawResult) -> Result<T, Error> + Send + 'static,
    ) -> Pending<T> {
        let inner = Arc::clone(self);
        self.sequencer
            .enqueue(operation, 1, move |seq_id| async move {
                let mut call = make(seq_id.into());
                call.traffic = Traffic::Training;
                let submitted = inner.submit(&call).await;
                let submitted = submitted.map_err(|failed| {
                    if !failed.sent {
                        inner.sequencer.give_back(1);
                    }
                    failed.error
                })?;
                Ok(async move {
                    let result = inner.fetch(operation, request_type, &submitted).await?;
                    let fetched = result.fetched;
                    read(result).inspect_err(|error| {
                        let (connection, id) = (&inner.session.connection, &submitted.request_id);
                        report::unreadable(connection, id, request_type, fetched, error);
                    })
                })
            })
    }

    /// Makes a call whose response is the promise of a result.
    pub(crate) async fn submit(&self, call: &Call) -> Result<Submitted, SubmitError> {
        let start = Instant::now();
        let connection = &self.session.connection;
        let open = connection.lifecycle.check_open(call.operation);
        open.map_err(SubmitError::unsent)?;
        let response = connection.call_noting_sent(call).await?;
        let promise = response.json(call.operation);
        let promise: Promise = promise.map_err(SubmitError::sent)?;
        Ok(Submitted {
            request_id: promise.request_id,
            roundtrip: start.elapsed(),
            max_result_bytes: result_size::BASE_BYTES,
        })
    }

    /// Fetches the result of a submitted request.
    pub(crate) async fn fetch(
        &self,
        operation: &'static str,
        request_type: RequestType,
        submitted: &Submitted,
    ) -> Result<RawResult, Error> {
        let target = PollTarget {
            operation,
            request_id: &submitted.request_id,
            request_type,
            roundtrip: submitted.roundtrip,
            observer: &self.observer,
            size_known: false,
            max_result_bytes: submitted.max_result_bytes,
        };
        poll::wait(&self.session.connection, &target).await
    }
}
