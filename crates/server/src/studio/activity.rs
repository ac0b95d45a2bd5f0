//! What runs do at this moment, and who wants to know of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use tinkrs_types::ModelId;

use super::feed::Feeds;
use crate::auth::Owner;
use crate::lock::lock;

/// What all runs do at this moment.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    runs: Mutex<HashMap<ModelId, Now>>,
    feeds: Feeds,
}

/// What a run does at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// How many operations were accepted and have not ended.
    pub(crate) pending: usize,
    /// How many of them have begun.
    pub(crate) begun: usize,
    /// When the last of those began, in milliseconds since 1970.
    pub(crate) begun_at: i64,
}

impl Activity {
    /// Notes an operation for as long as what is returned lives.
    pub(crate) fn enter(self: &Arc<Self>, owner: Owner, run: &ModelId) -> Pending {
        let mut runs = lock(&self.runs);
        let now = runs.entry(run.clone()).or_default();
        now.pending += 1;
        // Another operation in the queue of a run that is busy changes nothing that is shown.
        let was_idle = now.pending == 1;
        drop(runs);
        if was_idle {
            self.feeds.tell(owner, run);
        }
        Pending {
            activity: Arc::clone(self),
            owner,
            run: run.clone(),
            has_begun: false,
        }
    }

    /// Returns what a run does.
    pub(crate) fn now(&self, run: &ModelId) -> Now {
        lock(&self.runs).get(run).copied().unwrap_or_default()
    }

    /// Counts operations that were accepted and have not ended, and those of them that have begun.
    pub(crate) fn all(&self) -> Now {
        let runs = lock(&self.runs);
        runs.values().fold(Now::default(), |all, now| Now {
            pending: all.pending + now.pending,
            begun: all.begun + now.begun,
            begun_at: all.begun_at.max(now.begun_at),
        })
    }

    /// Returns those who want to know of changes.
    pub(crate) fn feeds(&self) -> &Feeds {
        &self.feeds
    }
}

/// An operation that has not ended.
#[derive(Debug)]
pub(crate) struct Pending {
    activity: Arc<Activity>,
    owner: Owner,
    run: ModelId,
    has_begun: bool,
}

impl Pending {
    /// Notes that it has begun.
    pub(crate) fn begin(&mut self) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let mut runs = lock(&self.activity.runs);
        let now = runs.entry(self.run.clone()).or_default();
        now.begun += 1;
        now.begun_at = Timestamp::now().as_millisecond();
        let was_waiting = now.begun == 1;
        drop(runs);
        if was_waiting {
            self.activity.feeds.tell(self.owner, &self.run);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut runs = lock(&self.activity.runs);
        if let Some(now) = runs.get_mut(&self.run) {
            now.pending = now.pending.saturating_sub(1);
            now.begun = now.begun.saturating_sub(usize::from(self.has_begun));
            if now.pending == 0 {
                runs.remove(&self.run);
            }
        }
        drop(runs);
        self.activity.feeds.tell(self.owner, &self.run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studio::feed::Topic;
    use crate::studio::news::Cursor;

    #[test]
    fn a_run_is_at_work_until_its_last_operation_has_ended() {
        let activity = Arc::new(Activity::default());
        let (owner, run) = (Owner::of_key(b"me"), ModelId::new("r"));
        let mut first = activity.enter(owner, &run);
        let second = activity.enter(owner, &run);
        first.begin();
        first.begin();
        let now = activity.now(&run);
        assert_eq!((now.pending, now.begun), (2, 1));
        drop(first);
        let now = activity.now(&run);
        assert_eq!((now.pending, now.begun), (1, 0));
        drop(second);
        assert_eq!(activity.now(&run), Now::default());
        assert!(lock(&activity.runs).is_empty(), "nothing stays behind");
    }

    #[test]
    fn those_who_watch_are_told_of_what_they_show() {
        let activity = Arc::new(Activity::default());
        let (owner, run) = (Owner::of_key(b"me"), ModelId::new("r"));
        let start = Cursor::default();
        let watching = activity.feeds().subscribe(&Topic::Owner(owner), start);
        let feed = watching.to_run.clone().unwrap();
        let is_told = || !feed.take().0.runs.is_empty();
        let mut first = activity.enter(owner, &run);
        assert!(is_told(), "it waits");
        let second = activity.enter(owner, &run);
        assert!(!is_told(), "it waits as before");
        first.begin();
        assert!(is_told(), "it trains");
        drop(first);
        assert!(is_told(), "an operation has ended");
        drop(second);
        assert!(is_told(), "it is idle");
    }
}
