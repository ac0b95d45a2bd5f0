//! The completions of all samples of one client in a single long poll, instead of one poll each.
//!
//! Servers that offer the feed say so in their settings. It tells which requests are done and
//! how large their results are; the results are fetched one by one as usual. Delivery is at
//! least once: the cursor of the last completions that arrived goes out with the next poll.

use crate::Error;
use crate::connection::Connection;
use crate::connection::billing;
use crate::connection::call::Call;
use crate::connection::policy::Policy;
use crate::future::poll;
use crate::lock::lock;
use crate::retry::{A_FEW_TIMES, Caller, Reaction, reaction};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;
use tinkrs_types::protocol::Completion;
use tinkrs_types::{RequestId, SamplingSessionId};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::retrieve_futures::{
    FuturesTarget, RetrieveFuturesRequest, RetrieveFuturesResponse,
};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

const OPERATION: &str = "retrieve_futures";
const PAUSE: Duration = Duration::from_secs(1);
/// How many completions are kept that nothing waits for yet, and how many requests whose waiters have
/// gone. A completion only has to outlast the response to its own submission, and there are never more
/// than a few hundred submissions under way.
const MAX_EARLY: usize = 4_096;

/// Dropping it ends its task.
#[derive(Debug)]
pub(crate) struct CompletionFeed {
    state: Mutex<State>,
    something_to_ask: Arc<Notify>,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug, Default)]
struct State {
    cursor: u64,
    /// The waiters, by request.
    waiters: HashMap<RequestId, oneshot::Sender<Completion>>,
    /// Requests whose waiters have gone, oldest first, so that their completions are not taken for
    /// early ones. Completions may never come, so only so many are kept.
    abandoned: VecDeque<RequestId>,
    /// Completions of requests that have no waiter yet, oldest first.
    early: VecDeque<Completion>,
    retrieved: BTreeSet<RequestId>,
    broken: Option<String>,
}

impl CompletionFeed {
    /// Starts polling whenever there is a waiter. It ends when the feed is dropped.
    pub(crate) fn start(
        connection: Arc<Connection>,
        id: SamplingSessionId,
        clone_id: u64,
    ) -> Arc<Self> {
        let feed = Arc::new(Self {
            state: Mutex::default(),
            something_to_ask: Arc::default(),
            task: OnceLock::new(),
        });
        let target = FuturesTarget::SamplingSession {
            sampling_session_id: id,
            cloned_sampler_id: clone_id,
        };
        let runtime = connection.runtime.clone();
        let wake = Arc::clone(&feed.something_to_ask);
        let task = runtime.spawn(poll_feed(Arc::downgrade(&feed), wake, connection, target));
        // The feed is new, so it has no other task.
        let _ = feed.task.set(task.abort_handle());
        feed
    }

    /// Waits until a request is done.
    pub(crate) async fn wait_for(&self, request_id: &RequestId) -> Result<Completion, Error> {
        let done = {
            let mut state = self.lock();
            let early = state
                .early
                .iter()
                .position(|done| done.request_id() == request_id);
            if let Some(completion) = early.and_then(|index| state.early.remove(index)) {
                return Ok(completion);
            }
            if let Some(message) = &state.broken {
                return Err(broken(message));
            }
            let (sender, done) = oneshot::channel();
            state.waiters.insert(request_id.clone(), sender);
            done
        };
        let _waiting = Waiting {
            feed: self,
            request_id,
        };
        self.something_to_ask.notify_one();
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
            if let Some(waiter) = state.waiters.remove(&request_id) {
                if waiter.send(completion).is_ok() {
                    continue;
                }
            } else if !state.forget_abandoned(&request_id) {
                push_bounded(&mut state.early, completion);
                continue;
            }
            // Its waiter is gone and will not fetch it: the server need not keep it.
            state.retrieved.insert(request_id);
        }
    }

    fn fail(&self, error: &Error) {
        let mut state = self.lock();
        state.broken = Some(error.to_string());
        state.waiters.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Returns whether a request's waiter has gone, and forgets it.
    fn forget_abandoned(&mut self, request_id: &RequestId) -> bool {
        let place = self.abandoned.iter().position(|id| id == request_id);
        place
            .and_then(|index| self.abandoned.remove(index))
            .is_some()
    }
}

/// A wait for a request. Dropping it early removes its place in the feed.
struct Waiting<'a> {
    feed: &'a CompletionFeed,
    request_id: &'a RequestId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.feed.lock();
        if state.waiters.remove(self.request_id).is_some() {
            push_bounded(&mut state.abandoned, self.request_id.clone());
        }
    }
}

/// Appends an item; the oldest makes room for it.
fn push_bounded<T>(items: &mut VecDeque<T>, item: T) {
    items.push_back(item);
    if items.len() > MAX_EARLY {
        items.pop_front();
    }
}

fn broken(message: &str) -> Error {
    Error::answer(OPERATION, message.to_owned())
}

impl Drop for CompletionFeed {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// The feed's task. It never holds the feed while it waits, so that it ends with it.
async fn poll_feed(
    feed: Weak<CompletionFeed>,
    something_to_ask: Arc<Notify>,
    connection: Arc<Connection>,
    target: FuturesTarget,
) {
    let mut bad_requests = 0;
    loop {
        let Some(next) = feed.upgrade().map(|feed| feed.next_request(&target)) else {
            return;
        };
        let Some(request) = next else {
            something_to_ask.notified().await;
            continue;
        };
        let call = Call::new(&endpoint::RETRIEVE_FUTURES)
            .json(&request)
            .policy(Policy::ONCE)
            .timeout(poll::TIMEOUT);
        match connection.json(call).await {
            Ok(response) => {
                bad_requests = 0;
                if let Some(feed) = feed.upgrade() {
                    feed.took(&request, response);
                }
            }
            Err(error) => {
                let failure = error.failure_kind();
                match failure.map(|failure| reaction(Caller::CompletionFeed, failure)) {
                    Some(Reaction::Retry) => tokio::time::sleep(PAUSE).await,
                    Some(Reaction::RetryAFewTimes) if bad_requests < A_FEW_TIMES => {
                        bad_requests += 1;
                        tokio::time::sleep(PAUSE).await;
                    }
                    Some(Reaction::WaitForBilling) if connection.billing_may_pause(&error) => {
                        tokio::time::sleep(billing::PAUSE).await;
                    }
                    _ => return feed.upgrade().iter().for_each(|feed| feed.fail(&error)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn feed() -> CompletionFeed {
        CompletionFeed {
            state: Mutex::default(),
            something_to_ask: Arc::default(),
            task: OnceLock::new(),
        }
    }

    fn target() -> FuturesTarget {
        FuturesTarget::SamplingSession {
            sampling_session_id: "s".into(),
            cloned_sampler_id: 0,
        }
    }

    fn completed(ids: impl IntoIterator<Item = String>) -> RetrieveFuturesResponse {
        let finished = |id: String| Completion::Finished {
            request_id: id.into(),
            response_payload_uncompressed_size: None,
        };
        RetrieveFuturesResponse {
            completions: ids.into_iter().map(finished).collect(),
            cursor: 7,
        }
    }

    #[tokio::test]
    async fn a_completion_may_come_before_its_waiter() {
        let feed = feed();
        feed.lock().retrieved.insert("old".into());
        let request = feed.next_request(&target()).expect("there is a report");
        feed.took(&request, completed(["a".to_owned()]));
        let completion = feed.wait_for(&"a".into()).await.unwrap();
        assert_eq!(completion.request_id(), &RequestId::from("a"));
        assert!(feed.lock().early.is_empty());
        assert!(feed.next_request(&target()).is_none(), "the report arrived");
    }

    #[test]
    fn a_completion_without_a_waiter_is_not_kept() {
        let feed = feed();
        for id in ["a", "b"] {
            let waiting = feed.wait_for(&id.into()).now_or_never();
            assert!(waiting.is_none(), "nothing is done yet");
        }
        assert!(feed.lock().waiters.is_empty(), "no waiter is left");
        assert!(feed.next_request(&target()).is_none());
        feed.lock().retrieved.insert("old".into());
        let request = feed.next_request(&target()).expect("there is a report");
        feed.took(&request, completed(["a".to_owned(), "b".to_owned()]));
        let state = feed.lock();
        assert!(state.abandoned.is_empty() && state.early.is_empty());
        assert_eq!(state.retrieved.len(), 2, "the server may forget them");
        drop(state);

        feed.took(&request, completed((0..5_000).map(|n| n.to_string())));
        assert_eq!(feed.lock().early.len(), MAX_EARLY);
        for n in 5_000..10_000 {
            let _ = feed.wait_for(&n.to_string().into()).now_or_never();
        }
        assert_eq!(feed.lock().abandoned.len(), MAX_EARLY);
    }
}
