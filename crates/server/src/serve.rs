//! Answering requests until told to stop.

use std::future::Future;
use std::io;

use tokio::net::TcpListener;

use crate::{Server, router};

/// Answers requests on `listener` until `shutdown` completes.
///
/// Polls that wait for a result are then answered with "not yet", and the call returns when the
/// last request under way has its answer. Operations that have not run by then are lost.
///
/// # Errors
///
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    server: Server,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let stopping = server.clone();
    let shutdown = async move {
        shutdown.await;
        stopping.close();
    };
    axum::serve(listener, router(server))
        .with_graceful_shutdown(shutdown)
        .await
}
