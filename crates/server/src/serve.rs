//! Answering requests until told to stop.

use std::future::Future;
use std::io;

use tokio::net::TcpListener;

use crate::connections::{self, Limits};
use crate::otel::ExportedMetrics;
use crate::{Server, router};

/// Answers requests on `listener` until `shutdown` completes.
///
/// Polls that wait for a result are then answered with "not yet". The call returns when the last
/// request under way has its answer, the operation under way has ended, and everything is stored.
/// Operations that have not begun by then wait in the data folder for the next server.
///
/// It raises the process's limit on open files to what it may be.
///
/// # Errors
///
/// When storing what there is ends in a panic.
pub async fn serve(
    listener: TcpListener,
    server: Server,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    server.run_maintenance();
    let metrics = ExportedMetrics::start(&server);
    let stopping = server.clone();
    tokio::spawn(async move {
        shutdown.await;
        stopping.close();
    });
    let limits = Limits::from(&server.shared().settings);
    let closing = server.shared().closing.subscribe();
    connections::serve(listener, router(server.clone()), limits, closing).await;
    tokio::task::spawn_blocking(move || {
        server.stop();
        metrics.keep_last(&server);
    })
    .await?;
    Ok(())
}
