//! Losses that are traced once and used in many passes.
//!
//! A server that computes custom losses gets the traced graph, once a session; passes then name
//! it. For other servers the graph runs here, between two passes, with the same result.

use super::forward_backward::ForwardBackward;
use super::request::{BoxFuture, Operation, Request};
use crate::autodiff::TracedLoss;
use crate::connection::call::Call;
use crate::future::poll::{self, PollTarget};
use crate::future::{Pending, QueueObserver, result_size};
use crate::session::Session;
use crate::{Error, ServiceClient, TrainingClient};
use std::future::IntoFuture;
use std::sync::Arc;
use tinkrs_types::protocol::{Promise, RequestType};
use tinkrs_types::{Datum, ForwardBackwardOutput, InvalidInput, LossFn, LossId, SessionId};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::create_custom_loss::{CreateCustomLossRequest, CreateCustomLossResult};
use tokio::time::Instant;

const CREATE: &str = "create_custom_loss";
const PASS: &str = "forward_backward_traced";

/// A loss that a session knows. It works with the training clients of that session.
#[derive(Clone, Debug)]
pub struct CustomLossHandle {
    session_id: SessionId,
    loss: Arc<TracedLoss>,
    /// `None` if the server computes no custom losses.
    loss_id: Option<LossId>,
}

impl CustomLossHandle {
    /// Returns the session that knows the loss.
    pub fn session_id(&self) -> &SessionId {
        &self.session_id
    }

    /// Returns the loss.
    pub fn loss(&self) -> &TracedLoss {
        &self.loss
    }

    /// Returns the loss's id at the server; `None` if it is computed here.
    pub fn loss_id(&self) -> Option<&LossId> {
        self.loss_id.as_ref()
    }
}

/// A custom loss that has been described but not created. Await it to create it.
#[derive(Clone, Debug)]
#[must_use = "nothing is created until this is awaited"]
pub struct CreateCustomLoss {
    service: ServiceClient,
    loss: TracedLoss,
}

impl ServiceClient {
    /// Makes a traced loss known to this client's session.
    ///
    /// A loss is known by what it computes, so creating the same one again, from however many tasks, gives the
    /// first handle. The Python client refuses that: its caller has to keep the handle.
    pub fn create_custom_loss(&self, loss: TracedLoss) -> CreateCustomLoss {
        CreateCustomLoss {
            service: self.clone(),
            loss,
        }
    }
}

impl CreateCustomLoss {
    async fn create(self) -> Result<CustomLossHandle, Error> {
        let session = self.service.session(CREATE).await?;
        let created = session.custom_loss(self.loss.key());
        let create = || upload(&session, self.loss);
        created.get_or_try_init(create).await.cloned()
    }
}

impl IntoFuture for CreateCustomLoss {
    type Output = Result<CustomLossHandle, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.create())
    }
}

async fn upload(session: &Session, loss: TracedLoss) -> Result<CustomLossHandle, Error> {
    let connection = &session.connection;
    let loss_id = if connection.server.config.custom_loss_server_side {
        let start = Instant::now();
        let request = CreateCustomLossRequest {
            session_id: session.id.clone(),
            custom_loss_seq_id: session.next_custom_loss(),
            name: loss.name().to_owned(),
            inputs: loss.inputs().to_vec(),
            graph: loss.graph().clone(),
        };
        let call = Call::new(&endpoint::CREATE_CUSTOM_LOSS).json(&request);
        let promise: Promise = connection.json(call).await?;
        let target = PollTarget {
            operation: CREATE,
            request_id: &promise.request_id,
            request_type: RequestType::CreateCustomLoss,
            roundtrip: start.elapsed(),
            observer: &QueueObserver::training(loss.name()),
            size_known: false,
            max_result_bytes: result_size::BASE_BYTES,
        };
        let created: CreateCustomLossResult = poll::wait_json(connection, &target).await?;
        Some(created.loss_id)
    } else {
        None
    };
    Ok(CustomLossHandle {
        session_id: session.id.clone(),
        loss: Arc::new(loss),
        loss_id,
    })
}

/// Computes a traced loss and its gradients.
#[derive(Clone, Debug)]
pub struct ForwardBackwardTraced {
    batch: Vec<Datum>,
    loss: CustomLossHandle,
}

impl TrainingClient {
    /// Computes a traced loss over `batch` and accumulates its gradients.
    ///
    /// ```no_run
    /// # async fn run(service: tinkrs::ServiceClient, client: tinkrs::TrainingClient, batch: Vec<tinkrs::Datum>)
    /// # -> Result<(), tinkrs::Error> {
    /// use tinkrs::autodiff::TracedLoss;
    ///
    /// let nll = TracedLoss::trace("nll", [("logprobs", 1), ("weights", 1)], |[lp, w]| {
    ///     (-(lp * w).sum(), vec![])
    /// })?;
    /// let nll = service.create_custom_loss(nll).await?;
    /// let output = client.forward_backward_traced(batch, &nll).await?;
    /// # Ok(()) }
    /// ```
    pub fn forward_backward_traced(
        &self,
        batch: impl Into<Vec<Datum>>,
        loss: &CustomLossHandle,
    ) -> Request<ForwardBackwardTraced> {
        self.request(ForwardBackwardTraced {
            batch: batch.into(),
            loss: loss.clone(),
        })
    }
}

impl Operation for ForwardBackwardTraced {
    type Output = ForwardBackwardOutput;

    fn submit(self, client: &TrainingClient) -> Pending<ForwardBackwardOutput> {
        let Self { batch, loss } = self;
        if loss.session_id != *client.session_id() {
            let found = format!("a loss of session {}", loss.session_id);
            let allowed = format!("one of session {}", client.session_id());
            let error = InvalidInput::new("loss", found, allowed);
            return Pending::ready(PASS, Err(error.into()));
        }
        if let Err(error) = loss.loss.check(&batch) {
            return Pending::ready(PASS, Err(error.into()));
        }
        match loss.loss_id {
            Some(loss_id) => ForwardBackward::new(batch, LossFn::Custom { loss_id }).submit(client),
            None => {
                let traced = loss.loss;
                client
                    .forward_backward_custom(batch, move |data, logprobs| {
                        traced.evaluate_batch(data, logprobs)
                    })
                    .submit()
            }
        }
    }
}
