//! Cancelling samples on the server whose `Pending` was dropped.

use crate::connection::Connection;
use crate::connection::call::Call;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tinkrs_types::RequestId;
use tinkrs_wire::endpoint;
use tinkrs_wire::op::cancel_future::CancelFutureRequest;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Takes requests to cancel, from wherever a result is dropped.
#[derive(Clone, Debug)]
pub(crate) struct CancelQueue {
    sender: mpsc::UnboundedSender<RequestId>,
    connection: Arc<Connection>,
}

impl CancelQueue {
    /// Makes a queue and the task that empties it.
    pub(crate) fn new(connection: Arc<Connection>) -> (Self, impl Future<Output = ()> + use<>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (
            Self {
                sender,
                connection: Arc::clone(&connection),
            },
            drain(connection, receiver),
        )
    }

    /// Cancels a request, if the server takes such requests.
    pub(crate) fn cancel(&self, request_id: RequestId) {
        if self
            .connection
            .server
            .dynamic_config()
            .sample_cancel_enabled
        {
            // The other end is only gone once the session is closed, and all its requests with it.
            let _ = self.sender.send(request_id);
        }
    }
}

async fn drain(connection: Arc<Connection>, mut receiver: mpsc::UnboundedReceiver<RequestId>) {
    let mut batch = Vec::new();
    loop {
        let config = connection.server.dynamic_config();
        let limit = config.sample_cancel_max_batch_size.max(1);
        if receiver.recv_many(&mut batch, limit).await == 0 {
            return;
        }
        let mut cancels = JoinSet::new();
        for request_id in batch.drain(..) {
            let connection = Arc::clone(&connection);
            cancels.spawn(async move {
                let request = CancelFutureRequest { request_id };
                let call = Call::new(&endpoint::CANCEL_FUTURE)
                    .json(&request)
                    .timeout(TIMEOUT);
                if let Err(error) = connection.call(&call).await {
                    tracing::debug!(request.id = %request.request_id, %error, "could not cancel");
                }
            });
        }
        cancels.join_all().await;
    }
}
