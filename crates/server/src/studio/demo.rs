//! The demo that a first visit offers: training that this server's program brings with it.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use axum::extract::State;
use jiff::Timestamp;
use tinkrs_wire::json::Empty;
use tinkrs_wire::op::studio::StartDemoRequest;

use crate::Server;
use crate::api::Plain;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded};

/// What a demo does: it is given a credential of whoever started it, and trains on this server as any client does.
type Work =
    dyn Fn(String) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync;

/// The demo, if this server has one.
#[derive(Default)]
pub(crate) struct Demo {
    work: OnceLock<Arc<Work>>,
    is_running: Arc<AtomicBool>,
}

impl fmt::Debug for Demo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_there = self.work.get().is_some();
        f.debug_struct("Demo")
            .field("is_there", &is_there)
            .finish_non_exhaustive()
    }
}

/// Notes that a demo has ended, however it ended.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Server {
    /// Gives this server a demo, which the page of runs then offers. `work` is called with a credential of whoever
    /// starts it, and is expected to train on this server with it. A second call changes nothing.
    pub fn offer_demo<F>(&self, work: impl Fn(String) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let work: Arc<Work> = Arc::new(move |credential| Box::pin(work(credential)));
        let _ = self.shared().demo.work.set(work);
    }

    pub(crate) fn has_demo(&self) -> bool {
        self.shared().demo.work.get().is_some()
    }
}

/// Starts the demo as the caller.
pub(crate) async fn start(
    State(server): State<Server>,
    Caller(owner): Caller,
    _: Decoded<StartDemoRequest>,
) -> Result<Plain<Empty>, ApiError> {
    let demo = &server.shared().demo;
    let work = demo.work.get().ok_or_else(|| {
        ApiError::not_found("this server has no demo; `tinkrs serve` and `tinkrs studio` have one")
    })?;
    if demo.is_running.swap(true, Ordering::AcqRel) {
        return Err(ApiError::conflict("the demo is running already"));
    }
    let running = Running(demo.is_running.clone());
    let credential = server.auth().issue(owner, Timestamp::now());
    let (work, mut closing) = (work(credential), server.shared().closing.subscribe());
    tokio::spawn(async move {
        let _running = running;
        tokio::select! {
            ended = work => if let Err(error) = ended {
                tracing::warn!(error, "the demo ended early");
            },
            // What it has done so far is in the data folder.
            _ = closing.wait_for(|is_closing| *is_closing) => {}
        }
    });
    Ok(Plain(Empty {}))
}
