//! The completions of a sampling client's requests, for clients that wait for all of them at once.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tinkrs_types::protocol::SAMPLE_SEQ_BLOCK;
use tinkrs_types::{RequestId, SamplingSessionId};
use tokio::sync::Notify;

use crate::lock::lock;
use crate::results::ResultFormat;

/// How many completions are remembered for a client that does not ask for them.
const REMEMBERED: usize = 65_536;

/// One client of a sampling session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CompletionFeed {
    pub(crate) sampler: SamplingSessionId,
    pub(crate) clone: u64,
}

impl CompletionFeed {
    /// Returns the feed that a request of this sequence id belongs to.
    pub(crate) fn of_request(sampler: &SamplingSessionId, seq_id: u64) -> Self {
        Self {
            sampler: sampler.clone(),
            clone: seq_id / SAMPLE_SEQ_BLOCK,
        }
    }
}

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) cursor: u64,
    pub(crate) request_id: RequestId,
    /// The size of its result; `None` if it failed.
    pub(crate) size: Option<u64>,
}

#[derive(Debug, Default)]
struct Line {
    completions: VecDeque<Completion>,
    news: Arc<Notify>,
}

/// The feeds of all clients.
#[derive(Debug)]
pub(crate) struct CompletionFeeds {
    cursor: AtomicU64,
    lines: Mutex<HashMap<CompletionFeed, Line>>,
}

impl CompletionFeeds {
    /// Cursors go on rising from one start of the server to the next, so that a client's cursor
    /// never hides what came after a restart.
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            cursor: AtomicU64::new((epoch << 32) + 1),
            lines: Mutex::default(),
        }
    }

    /// Tells a client that a request has ended.
    pub(crate) fn push(
        &self,
        feed: &CompletionFeed,
        request_id: RequestId,
        kind: ResultFormat,
        size: u64,
    ) {
        let mut lines = lock(&self.lines);
        let line = lines.entry(feed.clone()).or_default();
        line.completions.push_back(Completion {
            // Taken under the lock: cursors rise along each line.
            cursor: self.cursor.fetch_add(1, Ordering::Relaxed),
            request_id,
            size: (kind != ResultFormat::Failed).then_some(size),
        });
        if line.completions.len() > REMEMBERED {
            line.completions.pop_front();
        }
        line.news.notify_waiters();
    }

    /// Waits for completions after a cursor, which those up to it are then forgotten for. Returns
    /// the cursor of the last one.
    pub(crate) async fn after(
        &self,
        feed: &CompletionFeed,
        cursor: u64,
        timeout: Duration,
    ) -> (Vec<Completion>, u64) {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let news = {
                let mut lines = lock(&self.lines);
                let line = lines.entry(feed.clone()).or_default();
                while line.completions.front().is_some_and(|c| c.cursor <= cursor) {
                    line.completions.pop_front();
                }
                if let Some(last) = line.completions.back() {
                    let last = last.cursor;
                    return (line.completions.iter().cloned().collect(), last);
                }
                // Registered before the lock is released, so that no news is missed.
                let mut news = Box::pin(Arc::clone(&line.news).notified_owned());
                news.as_mut().enable();
                news
            };
            if tokio::time::timeout_at(deadline, news).await.is_err() {
                return (Vec::new(), cursor);
            }
        }
    }

    /// Forgets the clients of sampling sessions that are gone.
    pub(crate) fn forget(&self, sampler: &SamplingSessionId) {
        lock(&self.lines).retain(|feed, _| feed.sampler != *sampler);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(clone: u64) -> CompletionFeed {
        CompletionFeed::of_request(&"s:sample:0".into(), clone * SAMPLE_SEQ_BLOCK + 7)
    }

    #[tokio::test(start_paused = true)]
    async fn completions_come_until_their_cursor_comes_back() {
        let feeds = CompletionFeeds::new(3);
        feeds.push(&feed(0), "a".into(), ResultFormat::Sample, 10);
        feeds.push(&feed(1), "other".into(), ResultFormat::Sample, 10);
        let (first, cursor) = feeds.after(&feed(0), 0, Duration::ZERO).await;
        assert_eq!(first.len(), 1);
        assert_eq!(first[0].size, Some(10));
        let (again, _) = feeds.after(&feed(0), 0, Duration::ZERO).await;
        assert_eq!(again, first, "nobody has acknowledged it");
        feeds.push(&feed(0), "b".into(), ResultFormat::Failed, 10);
        let (second, cursor) = feeds.after(&feed(0), cursor, Duration::ZERO).await;
        assert_eq!(second[0].request_id, "b".into());
        assert_eq!(second[0].size, None);
        let (none, same) = feeds.after(&feed(0), cursor, Duration::from_secs(30)).await;
        assert!(none.is_empty() && same == cursor);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_poll_ends_with_the_first_completion() {
        let feeds = CompletionFeeds::new(1);
        let line = feed(0);
        let push = async {
            tokio::task::yield_now().await;
            feeds.push(&line, "a".into(), ResultFormat::Sample, 1);
        };
        let ((found, _), ()) = tokio::join!(feeds.after(&line, 0, Duration::MAX / 4), push);
        assert_eq!(found.len(), 1);
    }
}
