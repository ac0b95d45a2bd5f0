//! What the server's connections and the test share.

use super::reply::Reply;
use super::script::{Effect, Moment, Script};
use super::{Recorded, State, training};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The server behind its connections.
#[derive(Debug)]
pub(super) struct Shared {
    /// Where the server is that answers instead.
    pub(super) upstream: Option<String>,
    state: Mutex<State>,
    script: Mutex<Script>,
    requests: Mutex<Vec<Recorded>>,
    arrivals: watch::Sender<usize>,
    complaints: Mutex<Vec<String>>,
    stop: watch::Sender<bool>,
}

/// Locks without regard to panics, which are complained about elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(upstream: Option<String>) -> Self {
        Self {
            upstream,
            state: Mutex::default(),
            script: Mutex::default(),
            requests: Mutex::default(),
            arrivals: watch::Sender::new(0),
            complaints: Mutex::default(),
            stop: watch::Sender::new(false),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn script(&self) -> MutexGuard<'_, Script> {
        lock(&self.script)
    }

    pub(super) fn pick(&self, request: &Recorded, unread: bool) -> Option<(Moment, Effect)> {
        self.script().pick(request, unread)
    }

    /// Records a request and returns its index.
    pub(super) fn record(&self, mut request: Recorded) -> usize {
        let mut requests = lock(&self.requests);
        let index = requests.len();
        request.index = index;
        requests.push(request);
        self.arrivals.send_replace(index + 1);
        index
    }

    pub(super) fn requests(&self) -> Vec<Recorded> {
        lock(&self.requests).clone()
    }

    pub(super) fn requests_to(&self, endpoint: &str) -> Vec<Recorded> {
        let requests = lock(&self.requests);
        let of = requests.iter().filter(|r| r.endpoint == endpoint);
        of.cloned().collect()
    }

    pub(super) fn count(&self, endpoint: &str) -> usize {
        let requests = lock(&self.requests);
        requests.iter().filter(|r| r.endpoint == endpoint).count()
    }

    pub(super) fn arrivals(&self) -> watch::Receiver<usize> {
        self.arrivals.subscribe()
    }

    pub(super) fn refuses_connection(&self) -> bool {
        let mut state = self.state();
        let refuses = state.connections_to_reset > 0;
        state.connections_to_reset -= usize::from(refuses);
        refuses
    }

    /// Notes that a rule refused a request for good: its sequence number will not come again.
    pub(super) fn refused(&self, request: &Recorded, reply: &Reply) {
        let broken = reply.status == 400 && reply.body.is_empty();
        let for_now = matches!(reply.status, 402 | 408 | 409 | 429 | 500..);
        if reply.status >= 400 && !for_now && !broken {
            training::skip(&mut self.state(), request);
        }
    }

    pub(super) fn complain(&self, complaint: String) {
        lock(&self.complaints).push(complaint);
    }

    pub(super) fn take_complaints(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.complaints))
    }

    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(super) async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        let _ = stop.wait_for(|stop| *stop).await;
    }
}
