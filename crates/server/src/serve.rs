//! Answering requests until told to stop.

use std::future::Future;
use std::io;

use tokio::net::TcpListener;

use crate::faults::{Connections, Peer};
use crate::{Server, router};

/// Answers requests on `listener` until `shutdown` completes.
///
/// Polls that wait for a result are then answered with "not yet". The call returns when the last
/// request under way has its answer, the operation under way has ended, and everything is stored.
/// Operations that have not begun by then wait in the data folder for the next server.
///
/// # Errors
///
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    server: Server,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    server.run_maintenance();
    let stopping = server.clone();
    let shutdown = async move {
        shutdown.await;
        stopping.close();
    };
    let service = router(server.clone()).into_make_service_with_connect_info::<Peer>();
    let served = axum::serve(Connections(listener), service)
        .with_graceful_shutdown(shutdown)
        .await;
    tokio::task::spawn_blocking(move || server.stop()).await?;
    served
}
