//! Results of operations, from the promise until they are fetched.
//!
//! The worker holds an [`Answer`] and finishes it once; any number of polls wait on the entry
//! behind it. An answer that is dropped unfinished finishes as a failure, so that no poll waits
//! for a worker that is gone.
//!
//! A result that was fetched may be asked for again (the answer may have been lost on its way), so
//! the newest fetched ones are kept, up to a number and a size; later polls for others get
//! [`Lookup::Expired`].

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tinkrs_types::{
    ErrorCategory, FailedRequest, ForwardBackwardOutput, QueueState, QueueStatus, RequestId,
    SampleOutput,
};
use tokio::sync::watch;

/// How many fetched results are kept.
const KEPT_RESULTS: usize = 4_096;
/// How many bytes of fetched results are kept, about.
const KEPT_BYTES: usize = 256 << 20;

/// How an operation ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// With a JSON object.
    Json(Bytes),
    /// With the result of a pass.
    Pass(Arc<ForwardBackwardOutput>),
    /// With samples.
    Sample(Arc<SampleOutput>),
    /// With a failure.
    Failed(FailedRequest),
}

impl Outcome {
    /// Makes a failure that the caller can do something about.
    pub(crate) fn user_error(message: impl Into<String>) -> Self {
        Self::Failed(FailedRequest {
            error: message.into(),
            category: ErrorCategory::User,
        })
    }

    /// Makes a failure of this server.
    pub(crate) fn server_error(message: impl Into<String>) -> Self {
        Self::Failed(FailedRequest {
            error: message.into(),
            category: ErrorCategory::Server,
        })
    }

    /// About how much memory it takes.
    fn size_bytes(&self) -> usize {
        match self {
            Self::Json(bytes) => bytes.len(),
            Self::Pass(output) => {
                let fields = output.records.iter().flat_map(|r| r.fields().values());
                fields.map(|field| 4 * field.values().len()).sum()
            }
            Self::Sample(output) => {
                let sequences = output.sequences.iter().map(|s| 8 * s.tokens.len());
                sequences.sum::<usize>() + 4 * output.prompt_logprobs.as_ref().map_or(0, Vec::len)
            }
            Self::Failed(failure) => failure.error.len(),
        }
    }
}

#[derive(Debug)]
struct Entry {
    outcome: watch::Sender<Option<Outcome>>,
    /// Why the operation does not run yet, if there is something to say.
    reason: Mutex<Option<String>>,
    fetched: AtomicBool,
}

/// The right and the duty to finish an operation.
#[derive(Debug)]
pub(crate) struct Answer {
    id: RequestId,
    entry: Arc<Entry>,
}

impl Answer {
    /// Returns the id under which the result is fetched.
    pub(crate) fn id(&self) -> &RequestId {
        &self.id
    }

    /// Ends the operation.
    pub(crate) fn finish(self, outcome: Outcome) {
        self.entry.outcome.send_replace(Some(outcome));
    }

    /// Tells polls why the operation waits; `None` takes that back.
    pub(crate) fn waits(&self, reason: Option<String>) {
        *lock(&self.entry.reason) = reason;
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.entry.outcome.send_if_modified(|outcome| {
            let unfinished = outcome.is_none();
            if unfinished {
                *outcome = Some(Outcome::server_error(
                    "the server stopped working on this request",
                ));
            }
            unfinished
        });
    }
}

/// What a poll finds.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The operation has ended.
    Done(Outcome),
    /// It has not, and this is why.
    Pending(QueueStatus),
    /// Its result was fetched and then dropped.
    Expired,
    /// There was never such a request.
    Unknown,
}

/// All operations that were promised.
#[derive(Debug)]
pub(crate) struct Futures {
    /// Sets the ids of this process apart from those of the one before it.
    prefix: String,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    entries: HashMap<u64, Arc<Entry>>,
    fetched: VecDeque<(u64, usize)>,
    fetched_bytes: usize,
}

impl Futures {
    pub(crate) fn new() -> Self {
        Self {
            prefix: format!("{:016x}", fastrand::u64(..)),
            table: Mutex::default(),
        }
    }

    /// Makes room for a result.
    pub(crate) fn promise(&self) -> Answer {
        let entry = Arc::new(Entry {
            outcome: watch::Sender::new(None),
            reason: Mutex::new(None),
            fetched: AtomicBool::new(false),
        });
        let mut table = lock(&self.table);
        let number = table.next;
        table.next += 1;
        table.entries.insert(number, Arc::clone(&entry));
        let id = RequestId::new(format!("{}-{number}", self.prefix));
        Answer { id, entry }
    }

    /// Makes a promise that is kept already.
    pub(crate) fn finished(&self, outcome: Outcome) -> RequestId {
        let answer = self.promise();
        let id = answer.id().clone();
        answer.finish(outcome);
        id
    }

    /// Waits for a result, but not longer than `patience`.
    pub(crate) async fn wait(&self, id: &RequestId, patience: Duration) -> Lookup {
        let Some(number) = self.number(id) else {
            return Lookup::Unknown;
        };
        let entry = {
            let table = lock(&self.table);
            match table.entries.get(&number) {
                Some(entry) => Arc::clone(entry),
                None if number < table.next => return Lookup::Expired,
                None => return Lookup::Unknown,
            }
        };
        let mut news = entry.outcome.subscribe();
        let outcome = tokio::time::timeout(patience, news.wait_for(Option::is_some)).await;
        match outcome {
            Ok(Ok(outcome)) => {
                let outcome = outcome.clone().expect("waited until there is one");
                if !entry.fetched.swap(true, Ordering::Relaxed) {
                    self.fetched(number, outcome.size_bytes());
                }
                Lookup::Done(outcome)
            }
            Ok(Err(_)) | Err(_) => {
                let reason = lock(&entry.reason).clone();
                Lookup::Pending(QueueStatus {
                    state: QueueState::Active,
                    reason,
                })
            }
        }
    }

    fn number(&self, id: &RequestId) -> Option<u64> {
        let number = id.as_str().strip_prefix(&self.prefix)?.strip_prefix('-')?;
        number.parse().ok()
    }

    /// Notes that a result was fetched for the first time, and drops those fetched longest ago.
    fn fetched(&self, number: u64, size_bytes: usize) {
        let mut table = lock(&self.table);
        table.fetched.push_back((number, size_bytes));
        table.fetched_bytes += size_bytes;
        // The newest one stays however large it is: its answer is still on its way.
        while table.fetched.len() > 1
            && (table.fetched.len() > KEPT_RESULTS || table.fetched_bytes > KEPT_BYTES)
        {
            if let Some((oldest, bytes)) = table.fetched.pop_front() {
                table.fetched_bytes -= bytes;
                table.entries.remove(&oldest);
            }
        }
    }
}

/// Locks a mutex whose data is whole even if its holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(lookup: Lookup) -> FailedRequest {
        match lookup {
            Lookup::Done(Outcome::Failed(failure)) => failure,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_waits_and_then_says_why_there_is_nothing_yet() {
        let futures = Futures::new();
        let answer = futures.promise();
        answer.waits(Some("waits for seq_id 1".to_owned()));
        let id = answer.id().clone();
        let start = tokio::time::Instant::now();
        let Lookup::Pending(status) = futures.wait(&id, Duration::from_secs(30)).await else {
            panic!("nothing has finished");
        };
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        assert_eq!(status.reason.as_deref(), Some("waits for seq_id 1"));
        answer.finish(Outcome::user_error("bad"));
        assert_eq!(
            failure(futures.wait(&id, Duration::ZERO).await).error,
            "bad"
        );
    }

    #[tokio::test]
    async fn a_dropped_answer_is_a_failure_of_the_server() {
        let futures = Futures::new();
        let answer = futures.promise();
        let id = answer.id().clone();
        drop(answer);
        let failure = failure(futures.wait(&id, Duration::ZERO).await);
        assert_eq!(failure.category, ErrorCategory::Server);
    }

    #[tokio::test]
    async fn fetched_results_expire_and_unknown_ids_are_told_apart() {
        let futures = Futures::new();
        let ids: Vec<_> = (0..=KEPT_RESULTS)
            .map(|_| futures.finished(Outcome::Json(Bytes::from_static(b"{}"))))
            .collect();
        for id in &ids {
            let lookup = futures.wait(id, Duration::ZERO).await;
            assert!(matches!(lookup, Lookup::Done(_)), "{lookup:?}");
        }
        let first = futures.wait(&ids[0], Duration::ZERO).await;
        assert!(matches!(first, Lookup::Expired), "{first:?}");
        for id in ["", "nonsense", &format!("{}-999999", futures.prefix)] {
            let lookup = futures.wait(&id.into(), Duration::ZERO).await;
            assert!(matches!(lookup, Lookup::Unknown), "{id}: {lookup:?}");
        }
    }
}
