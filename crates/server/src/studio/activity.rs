//! What runs do at this moment, and who wants to know of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tinkrs_types::ModelId;
use tokio::sync::broadcast;

use crate::auth::Owner;
use crate::lock::lock;

/// How many changes a watcher may be behind. One that is further behind looks at everything.
const CHANGES: usize = 256;

/// A run of which something has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) owner: Owner,
    pub(crate) run: ModelId,
}

/// What all runs do at this moment.
#[derive(Debug)]
pub(crate) struct Activity {
    runs: Mutex<HashMap<ModelId, Now>>,
    changes: broadcast::Sender<Changed>,
}

/// What a run does at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// How many operations were accepted and have not ended.
    pub(crate) pending: usize,
    /// How many of them have begun.
    pub(crate) begun: usize,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            runs: Mutex::default(),
            changes: broadcast::Sender::new(CHANGES),
        }
    }
}

impl Activity {
    /// Notes an operation for as long as what is returned lives.
    pub(crate) fn enter(self: &Arc<Self>, owner: Owner, run: &ModelId) -> Pending {
        let mut runs = lock(&self.runs);
        runs.entry(run.clone()).or_default().pending += 1;
        drop(runs);
        self.tell(owner, run);
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
        })
    }

    /// Tells those who watch that something of a run has changed. Costs nothing if there are none.
    pub(crate) fn tell(&self, owner: Owner, run: &ModelId) {
        if self.changes.receiver_count() > 0 {
            let run = run.clone();
            let _ = self.changes.send(Changed { owner, run });
        }
    }

    /// Hears of changes from now on.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Changed> {
        self.changes.subscribe()
    }

    /// Counts those who watch.
    pub(crate) fn watchers(&self) -> usize {
        self.changes.receiver_count()
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
        if !std::mem::replace(&mut self.has_begun, true) {
            let mut runs = lock(&self.activity.runs);
            runs.entry(self.run.clone()).or_default().begun += 1;
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
        self.activity.tell(self.owner, &self.run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn those_who_watch_are_told_and_nobody_else_is_waited_for() {
        let activity = Arc::new(Activity::default());
        let (owner, run) = (Owner::of_key(b"me"), ModelId::new("r"));
        activity.tell(owner, &run);
        let mut watcher = activity.watch();
        drop(activity.enter(owner, &run));
        for _ in 0..2 {
            assert_eq!(watcher.try_recv().unwrap().run, run);
        }
        assert!(watcher.try_recv().is_err());
        for _ in 0..CHANGES * 3 {
            activity.tell(owner, &run);
        }
        let behind = watcher.try_recv().unwrap_err();
        assert!(matches!(behind, broadcast::error::TryRecvError::Lagged(_)));
    }
}
