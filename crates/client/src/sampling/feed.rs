//! News of all samples of one client in a single long poll, instead of one poll each.
//!
//! Servers that offer the feed say so in their settings. It tells which requests are done and
//! how large their results are; the results are fetched one by one as usual. Delivery is at
//! least once: the cursor of the last news that arrived goes out with the next poll.

use crate::Error;
use crate::connection::Connection;
use crate::connection::billing;
use crate::connection::call::Call;
use crate::connection::retry::Policy;
use crate::future::poll;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tinkrs_types::{Completion, RequestId, SamplingSessionId};
use tinkrs_wire::op::retrieve_futures::{
    FuturesTarget, RetrieveFuturesRequest, RetrieveFuturesResponse,
};
use tinkrs_wire::route;
use tokio::sync::{Notify, oneshot};

const OPERATION: &str = "retrieve_futures";
const PAUSE: Duration = Duration::from_secs(1);
const BAD_REQUESTS: u32 = 3;

#[derive(Debug)]
pub(crate) struct Feed {
    state: Mutex<State>,
    something_to_ask: Notify,
}

#[derive(Debug, Default)]
struct State {
    cursor: u64,
    waiters: HashMap<RequestId, oneshot::Sender<Completion>>,
    completed: HashMap<RequestId, Completion>,
    retrieved: BTreeSet<RequestId>,
    broken: Option<String>,
}

impl Feed {
    /// Starts polling whenever somebody waits. It ends when the feed is dropped.
    pub(crate) fn start(
        connection: Arc<Connection>,
        id: SamplingSessionId,
        clone_id: u64,
    ) -> Arc<Self> {
        let feed = Arc::new(Self {
            state: Mutex::default(),
            something_to_ask: Notify::new(),
        });
        let target = FuturesTarget::SamplingSession {
            sampling_session_id: id,
            cloned_sampler_id: clone_id,
        };
        let runtime = connection.runtime.clone();
        runtime.spawn(poll_feed(Arc::downgrade(&feed), connection, target));
        feed
    }

    /// Waits until a request is done.
    pub(crate) async fn wait_for(&self, request_id: &RequestId) -> Result<Completion, Error> {
        let done = {
            let mut state = self.lock();
            if let Some(completion) = state.completed.remove(request_id) {
                return Ok(completion);
            }
            if let Some(message) = &state.broken {
                return Err(broken(message));
            }
            let (sender, done) = oneshot::channel();
            state.waiters.insert(request_id.clone(), sender);
            done
        };
        self.something_to_ask.notify_one();
        let _forget = Forget {
            feed: self,
            request_id,
        };
        done.await
            .map_err(|_| broken(self.lock().broken.as_deref().unwrap_or("the feed ended")))
    }

    /// Says that a result was fetched and may be forgotten.
    pub(crate) fn retrieved(&self, request_id: RequestId) {
        self.lock().retrieved.insert(request_id);
        self.something_to_ask.notify_one();
    }

    /// Returns what to ask for next, if there is anything.
    fn next_request(&self, target: &FuturesTarget) -> Option<RetrieveFuturesRequest> {
        let state = self.lock();
        if state.waiters.is_empty() && state.retrieved.is_empty() {
            return None;
        }
        Some(RetrieveFuturesRequest {
            target: target.clone(),
            prev_cursor: state.cursor,
            timeout: None,
            retrieved_request_ids: state.retrieved.iter().cloned().collect(),
        })
    }

    fn took(&self, request: &RetrieveFuturesRequest, response: RetrieveFuturesResponse) {
        let mut state = self.lock();
        for reported in &request.retrieved_request_ids {
            state.retrieved.remove(reported);
        }
        state.cursor = response.cursor;
        for completion in response.completions {
            let request_id = completion.request_id().clone();
            match state.waiters.remove(&request_id) {
                // Whoever has stopped waiting does not want to know.
                Some(waiter) => drop(waiter.send(completion)),
                None => drop(state.completed.insert(request_id, completion)),
            }
        }
    }

    fn fail(&self, error: &Error) {
        let mut state = self.lock();
        state.broken = Some(error.to_string());
        state.waiters.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn broken(message: &str) -> Error {
    Error::answer(OPERATION, message.to_owned())
}

/// Removes a waiter that has stopped waiting.
struct Forget<'a> {
    feed: &'a Feed,
    request_id: &'a RequestId,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.feed.lock().waiters.remove(self.request_id);
    }
}

async fn poll_feed(feed: Weak<Feed>, connection: Arc<Connection>, target: FuturesTarget) {
    let mut bad_requests = 0;
    while let Some(feed) = feed.upgrade() {
        let Some(request) = feed.next_request(&target) else {
            // Looking again now and then lets the task end once nobody has the feed any more.
            let _ = tokio::time::timeout(PAUSE, feed.something_to_ask.notified()).await;
            continue;
        };
        let call = Call::post(OPERATION, route::RETRIEVE_FUTURES, &request)
            .policy(Policy::ONCE)
            .timeout(poll::TIMEOUT);
        match connection.json(call).await {
            Ok(response) => {
                bad_requests = 0;
                feed.took(&request, response);
            }
            Err(error) => match error.status() {
                Some(402) if connection.billing_may_pause() => {
                    tokio::time::sleep(billing::PAUSE).await
                }
                Some(400) if bad_requests < BAD_REQUESTS => {
                    bad_requests += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                _ if error.is_retryable() && error.status() != Some(402) => {
                    tokio::time::sleep(PAUSE).await
                }
                _ => return feed.fail(&error),
            },
        }
    }
}
