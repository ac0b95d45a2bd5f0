//! Snapshots of runs, so that a restart repeats seconds of work and not the whole run.
//!
//! Taking the state of a run is cheap; writing it is not, so a thread does that while training goes
//! on. If it still writes the last one, the next operation tries again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tinkrs_backend::{Backend, Error, ErrorKind, StatePart, TrainingRun, TrainingState};
use tinkrs_types::ModelId;

use crate::lock::lock;
use crate::memory::Reservation;
use crate::shared::Shared;
use crate::store::manifest::{self, Damage};
use crate::store::{Change, files};

/// What the thread is told.
enum Message {
    Write(Snapshot),
    /// Everything that was sent before is done when this is answered.
    Settle(SyncSender<()>),
}

struct Snapshot {
    run: ModelId,
    seq_id: i64,
    state: Box<dyn TrainingState>,
    memory: Reservation,
}

/// What a run has done since its last snapshot.
#[derive(Default)]
struct Since {
    time: Duration,
    operations: u32,
}

/// What the thread has done and has to do.
#[derive(Default)]
struct Progress {
    /// The last sequence ids that are in snapshots of this process.
    written: Mutex<HashMap<ModelId, i64>>,
    /// The bytes of states that are waiting or being written.
    bytes: AtomicU64,
}

/// Decides when runs are due, and hands them to the thread that writes.
pub(super) struct Snapshots {
    after_time: Duration,
    after_operations: u32,
    since: HashMap<ModelId, Since>,
    progress: Arc<Progress>,
    /// `None` only while this is dropped.
    sender: Option<SyncSender<Message>>,
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
        let (sender, messages) = sync_channel(1);
        let progress = Arc::<Progress>::default();
        let of_thread = Arc::clone(&progress);
        let thread = std::thread::Builder::new()
            .name("tinkrs-snapshots".to_owned())
            .spawn(move || write_all(&shared, &messages, &of_thread))?;
        Ok(Self {
            after_time,
            after_operations,
            since: HashMap::new(),
            progress,
            sender: Some(sender),
            thread: Some(thread),
        })
    }

    /// Notes that an operation changed a run, and returns whether a snapshot is due.
    pub(super) fn is_due(&mut self, id: &ModelId, time: Duration) -> bool {
        let since = self.since.entry(id.clone()).or_default();
        since.time += time;
        since.operations += 1;
        since.time >= self.after_time || since.operations >= self.after_operations
    }

    /// Takes a snapshot, unless the thread is still at others.
    pub(super) fn take(
        &mut self,
        id: &ModelId,
        seq_id: i64,
        run: &dyn TrainingRun,
        memory: Reservation,
    ) {
        let bytes = memory.bytes();
        let snapshot = Message::Write(Snapshot {
            run: id.clone(),
            seq_id,
            state: run.state(),
            memory,
        });
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
        let sender = self.sender.as_ref();
        if sender.is_some_and(|sender| sender.try_send(snapshot).is_ok()) {
            self.since.remove(id);
        } else {
            self.progress.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Waits until all snapshots that were taken are written. Returns whether there were any.
    pub(super) fn settle(&self) -> bool {
        let were_any = self.bytes() > 0;
        let (done, is_done) = sync_channel(1);
        let sender = self.sender.as_ref();
        if sender.is_some_and(|sender| sender.send(Message::Settle(done)).is_ok()) {
            let _ = is_done.recv();
        }
        were_any
    }

    /// Counts the bytes of states that are waiting or being written.
    pub(super) fn bytes(&self) -> u64 {
        self.progress.bytes.load(Ordering::Relaxed)
    }

    /// Returns the last sequence id that is in a snapshot of a run, if this process wrote one.
    pub(super) fn last_written(&self, id: &ModelId) -> Option<i64> {
        lock(&self.progress.written).get(id).copied()
    }

    /// Notes that somebody else has written a snapshot.
    pub(super) fn was_written(&mut self, id: &ModelId, seq_id: i64) {
        self.since.remove(id);
        lock(&self.progress.written).insert(id.clone(), seq_id);
    }

    /// Forgets a run that is gone.
    pub(super) fn forget(&mut self, id: &ModelId) {
        self.since.remove(id);
        lock(&self.progress.written).remove(id);
    }
}

fn write_all(shared: &Shared, messages: &Receiver<Message>, progress: &Progress) {
    while let Ok(message) = messages.recv() {
        let Snapshot {
            run,
            seq_id,
            state,
            memory,
        } = match message {
            Message::Write(snapshot) => snapshot,
            Message::Settle(done) => {
                let _ = done.send(());
                continue;
            }
        };
        let written = prepare(shared, &run, seq_id, |file| state.write(file));
        drop(state);
        progress.bytes.fetch_sub(memory.bytes(), Ordering::Relaxed);
        drop(memory);
        match written {
            Ok(()) => {
                lock(&progress.written).insert(run.clone(), seq_id);
                // After the operations that it has seen: they were sent to the store before.
                shared.store.note(Change::Snapshot { run, seq_id });
            }
            Err(error) => {
                tracing::error!(model.id = %run, seq_id, %error, "could not write a snapshot");
            }
        }
    }
}

/// Writes the state of a run after an operation, without a copy of it in memory.
pub(super) fn write(
    shared: &Shared,
    run: &ModelId,
    seq_id: i64,
    of: &dyn TrainingRun,
) -> Result<(), Error> {
    prepare(shared, run, seq_id, |file| of.save_state(file))
}

/// Writes a snapshot's file, durably, whatever the backend does about that.
fn prepare(
    shared: &Shared,
    id: &ModelId,
    seq_id: i64,
    write: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let files = shared.store.files();
    let run = shared.registry().runs.get(id).map(|run| run.record.clone());
    let Some(run) = run else {
        let gone = format!("model `{id}` is gone");
        return Err(Error::new(ErrorKind::Other, gone));
    };
    let file = files.snapshot(id, seq_id);
    let partial = files.partial();
    let written = write(&partial).and_then(|()| {
        let published = files.publish(&partial, &file);
        let described = published.and_then(|_| manifest::describe_snapshot(&file, run, seq_id));
        described.map_err(|error| {
            let cause = format!("could not write {}: {error}", file.display());
            Error::new(ErrorKind::Storage, cause)
        })
    });
    if written.is_err() {
        files::remove(&partial);
    }
    written
}

/// Takes a run up from a snapshot, if that is what it was when it was written.
pub(super) fn restore(backend: &dyn Backend, file: &Path) -> Result<Box<dyn TrainingRun>, Error> {
    manifest::verify_snapshot(file).map_err(|damage| {
        // The disk may give it at another time.
        let kind = match damage {
            Damage::Io(..) => ErrorKind::Storage,
            _ => ErrorKind::Other,
        };
        Error::new(kind, damage)
    })?;
    backend.restore(file, StatePart::Everything)
}
