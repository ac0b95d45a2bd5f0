//! Who hears of changes: one reader of the database for everything that is watched, however many watch it.
//!
//! A change of a run is noted in the feeds of that run and of its owner, if somebody watches them, and wakes a feed only
//! if nothing was noted there before. The feed's task collects changes for a moment, reads once what is new, and hands
//! the same bytes to all who watch.
//!
//! Invariant: a feed is in the table for exactly as long as somebody is subscribed to it, or its task has not ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tinkrs_types::ModelId;
use tokio::sync::{Notify, broadcast};

use super::news::Cursor;
use crate::auth::Owner;
use crate::lock::lock;

/// How many news a watcher may be behind. One that is further behind reads for itself.
const BACKLOG: usize = 16;
/// How many reports of clients are kept between two readings.
const REPORTED: usize = 1000;

/// What can be watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// Every step and operation of a run.
    Run(ModelId),
    /// All runs of an owner, each as it is now.
    Owner(Owner),
}

/// What happened between two cursors, as events.
#[derive(Clone, Debug)]
pub(crate) struct News {
    pub(crate) from: Cursor,
    pub(crate) to: Cursor,
    pub(crate) events: Bytes,
}

/// Everything that is watched.
#[derive(Debug, Default)]
pub(crate) struct Feeds {
    open: Mutex<HashMap<Topic, Arc<Feed>>>,
}

/// What happened to the runs of a feed since it was last read.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Changes {
    /// The runs that something happened to.
    pub(crate) runs: BTreeSet<ModelId>,
    /// What clients reported of the run of the feed, at whatever steps: the database does not have it in the order in
    /// which it came.
    pub(crate) reported: Vec<Reported>,
}

/// Metrics that a client reported of a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reported {
    pub(crate) step: i64,
    pub(crate) metrics: BTreeMap<String, f64>,
}

/// What the watchers of a topic share.
#[derive(Debug)]
pub(crate) struct Feed {
    state: Mutex<State>,
    changed: Notify,
    news: broadcast::Sender<News>,
}

#[derive(Debug)]
struct State {
    changes: Changes,
    /// How far the last news led.
    cursor: Cursor,
}

/// A place among those who hear of a topic, and how far the news were when it was taken.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) news: broadcast::Receiver<News>,
    pub(crate) cursor: Cursor,
    /// Set for the first: somebody has to run the feed.
    pub(crate) to_run: Option<Arc<Feed>>,
}

impl Feeds {
    /// Notes that something of a run has changed. Costs next to nothing if nobody watches it.
    pub(crate) fn tell(&self, owner: Owner, run: &ModelId) {
        let open = lock(&self.open);
        if open.is_empty() {
            return;
        }
        for topic in [Topic::Run(run.clone()), Topic::Owner(owner)] {
            if let Some(feed) = open.get(&topic) {
                feed.note(run.clone());
            }
        }
    }

    /// Notes what a client has reported of a run.
    pub(crate) fn report(&self, owner: Owner, run: &ModelId, reported: Reported) {
        if let Some(feed) = lock(&self.open).get(&Topic::Run(run.clone())) {
            let all = &mut lock(&feed.state).changes.reported;
            // Whoever reports that much between two readings is heard of as far as the first of it.
            if all.len() < REPORTED {
                all.push(reported);
            }
        }
        self.tell(owner, run);
    }

    /// Returns how far a topic's news have come, if somebody watches it.
    pub(crate) fn cursor(&self, topic: &Topic) -> Option<Cursor> {
        lock(&self.open).get(topic).map(|feed| feed.cursor())
    }

    /// Joins those who hear of a topic. If there are none, its news begin after `start`.
    pub(crate) fn subscribe(&self, topic: &Topic, start: Cursor) -> Subscription {
        let mut open = lock(&self.open);
        let mut to_run = None;
        let feed = open.entry(topic.clone()).or_insert_with(|| {
            let feed = Arc::new(Feed::new(start));
            // What happened since `start` was read was told to nobody.
            feed.wake();
            to_run = Some(Arc::clone(&feed));
            feed
        });
        let state = lock(&feed.state);
        Subscription {
            news: feed.news.subscribe(),
            cursor: state.cursor,
            to_run,
        }
    }

    /// Forgets a topic that nobody hears of any more. To be called after a receiver was dropped.
    pub(crate) fn leave(&self, topic: &Topic) {
        let mut open = lock(&self.open);
        if let Some(feed) = open.get(topic)
            && feed.news.receiver_count() == 0
        {
            feed.wake();
            open.remove(topic);
        }
    }

    /// Returns whether a feed is still the one of its topic.
    pub(crate) fn has(&self, topic: &Topic, feed: &Arc<Feed>) -> bool {
        let open = lock(&self.open);
        open.get(topic).is_some_and(|it| Arc::ptr_eq(it, feed))
    }

    /// Ends a feed: its watchers are told with their next look.
    pub(crate) fn end(&self, topic: &Topic, feed: &Arc<Feed>) {
        let mut open = lock(&self.open);
        if open.get(topic).is_some_and(|it| Arc::ptr_eq(it, feed)) {
            open.remove(topic);
        }
    }
}

impl Feed {
    fn new(cursor: Cursor) -> Self {
        Self {
            state: Mutex::new(State {
                changes: Changes::default(),
                cursor,
            }),
            changed: Notify::new(),
            news: broadcast::Sender::new(BACKLOG),
        }
    }

    /// Notes that a run has changed, and wakes the task of the feed if it is the first since the last reading.
    pub(crate) fn note(&self, run: ModelId) {
        let mut state = lock(&self.state);
        let was_clean = state.changes.runs.is_empty();
        state.changes.runs.insert(run);
        drop(state);
        if was_clean {
            self.wake();
        }
    }

    /// Has the task of the feed read what is new.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Completes when something has changed, or the feed is over.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns what has changed, which then has not any more, and from where to read.
    pub(crate) fn take(&self) -> (Changes, Cursor) {
        let mut state = lock(&self.state);
        (std::mem::take(&mut state.changes), state.cursor)
    }

    fn cursor(&self) -> Cursor {
        lock(&self.state).cursor
    }

    /// Hands news to all who watch.
    pub(crate) fn publish(&self, news: News) {
        let mut state = lock(&self.state);
        state.cursor = news.to;
        // Under the lock: whoever subscribes has either the cursor from before, and the news, or neither.
        let _ = self.news.send(news);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn at(operation: i64) -> Cursor {
        Cursor { operation, step: 0 }
    }

    #[tokio::test]
    async fn a_feed_is_woken_once_for_many_changes_and_by_no_others() {
        let feeds = Feeds::default();
        let (owner, run) = (Owner::of_key(b"me"), ModelId::new("r"));
        feeds.tell(owner, &run);
        let topic = Topic::Owner(owner);
        let subscription = feeds.subscribe(&topic, at(3));
        let feed = subscription.to_run.clone().unwrap();
        assert_eq!(subscription.cursor, at(3));
        feed.changed().await;
        feeds.tell(Owner::of_key(b"other"), &ModelId::new("s"));
        for _ in 0..1000 {
            feeds.tell(owner, &run);
        }
        feed.changed().await;
        let changes = Changes {
            runs: BTreeSet::from([run.clone()]),
            reported: Vec::new(),
        };
        assert_eq!(feed.take(), (changes, at(3)));
        let again = feed.changed().now_or_never();
        assert_eq!(again, None, "one word for all of them");
        feeds.tell(owner, &run);
        assert_eq!(feed.changed().now_or_never(), Some(()));
    }

    #[test]
    fn reports_of_a_run_are_kept_for_those_who_watch_it_and_only_so_many() {
        let feeds = Feeds::default();
        let (owner, run) = (Owner::of_key(b"me"), ModelId::new("r"));
        let reported = |step| Reported {
            step,
            metrics: BTreeMap::from([("reward".to_owned(), 1.0)]),
        };
        feeds.report(owner, &run, reported(1));
        let topic = Topic::Run(run.clone());
        let feed = feeds.subscribe(&topic, at(0)).to_run.unwrap();
        feeds.report(owner, &ModelId::new("other"), reported(2));
        for step in [7, 3, 7] {
            feeds.report(owner, &run, reported(step));
        }
        let steps: Vec<_> = feed.take().0.reported.iter().map(|it| it.step).collect();
        assert_eq!(steps, [7, 3, 7], "as they came");
        for _ in 0..2 * REPORTED {
            feeds.report(owner, &run, reported(1));
        }
        assert_eq!(feed.take().0.reported.len(), REPORTED);
        assert_eq!(feed.take().0, Changes::default());
    }

    #[tokio::test]
    async fn whoever_comes_later_has_the_same_feed_from_where_it_is() {
        let feeds = Feeds::default();
        let topic = Topic::Run(ModelId::new("r"));
        let mut first = feeds.subscribe(&topic, at(1));
        let feed = first.to_run.take().unwrap();
        feed.changed().await;
        let (from, to) = (feed.take().1, at(5));
        let events = Bytes::from_static(b"x");
        feed.publish(News { from, to, events });
        assert_eq!(feeds.cursor(&topic), Some(at(5)));
        let mut second = feeds.subscribe(&topic, at(9));
        assert!(second.to_run.is_none());
        assert_eq!(second.cursor, at(5));
        assert_eq!(first.news.try_recv().unwrap().to, at(5));
        assert!(second.news.try_recv().is_err(), "nothing of before");
        drop(first);
        feeds.leave(&topic);
        assert!(feeds.has(&topic, &feed), "one is left");
        drop(second);
        feeds.leave(&topic);
        assert!(!feeds.has(&topic, &feed) && lock(&feeds.open).is_empty());
        feed.changed().await;
    }
}
