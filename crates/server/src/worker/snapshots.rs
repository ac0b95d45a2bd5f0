//! Snapshots of runs, so that a restart repeats seconds of work and not the whole run.
//!
//! Taking the state of a run is cheap; writing it is not, so a thread does that while training goes
//! on. If it still writes the last one, the next operation tries again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tinkrs_backend::{Error, TrainingRun, TrainingState};
use tinkrs_types::ModelId;

use crate::shared::Shared;
use crate::store::{Change, Files};

struct Snapshot {
    run: ModelId,
    seq_id: i64,
    state: Box<dyn TrainingState>,
}

/// What a run has done since its last snapshot.
#[derive(Default)]
struct Since {
    time: Duration,
    operations: u32,
}

/// Decides when runs are due, and hands them to the thread that writes.
pub(super) struct Snapshots {
    after_time: Duration,
    after_operations: u32,
    since: HashMap<ModelId, Since>,
    /// `None` only while this is dropped.
    sender: Option<SyncSender<Snapshot>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        self.sender.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Snapshots {
    /// Starts the thread. Dropping this waits for it.
    pub(super) fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let after_time = shared.settings.snapshot_interval;
        let after_operations = shared.settings.snapshot_operations;
        let (sender, snapshots) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("tinkrs-snapshots".to_owned())
            .spawn(move || write_all(&shared, &snapshots))?;
        Ok(Self {
            after_time,
            after_operations,
            since: HashMap::new(),
            sender: Some(sender),
            thread: Some(thread),
        })
    }

    /// Notes that an operation changed a run, and takes a snapshot if one is due.
    pub(super) fn note(
        &mut self,
        id: &ModelId,
        seq_id: i64,
        run: &dyn TrainingRun,
        time: Duration,
    ) {
        let since = self.since.entry(id.clone()).or_default();
        since.time += time;
        since.operations += 1;
        if since.time < self.after_time && since.operations < self.after_operations {
            return;
        }
        let snapshot = Snapshot {
            run: id.clone(),
            seq_id,
            state: run.state(),
        };
        let sender = self.sender.as_ref();
        if sender.is_some_and(|sender| sender.try_send(snapshot).is_ok()) {
            self.since.remove(id);
        }
    }

    /// Forgets what a run has done: it is gone, or its snapshot was just taken.
    pub(super) fn forget(&mut self, id: &ModelId) {
        self.since.remove(id);
    }
}

fn write_all(shared: &Shared, snapshots: &Receiver<Snapshot>) {
    while let Ok(Snapshot { run, seq_id, state }) = snapshots.recv() {
        match write(shared.store.files(), &run, seq_id, &*state) {
            // After the operations that it has seen: they were sent to the store before.
            Ok(()) => shared.store.note(Change::Snapshot { run, seq_id }),
            Err(error) => {
                tracing::error!(model.id = %run, seq_id, %error, "could not write a snapshot");
            }
        }
    }
}

/// Writes the state of a run after an operation.
pub(super) fn write(
    files: &Files,
    run: &ModelId,
    seq_id: i64,
    state: &dyn TrainingState,
) -> Result<(), Error> {
    // If the folder cannot be made, writing into it says why.
    let _ = std::fs::create_dir_all(files.snapshots(run));
    state.write(&files.snapshot(run, seq_id))
}
