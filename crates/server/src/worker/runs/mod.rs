//! The training runs of a base model: in memory while they are used, otherwise in their snapshots.
//!
//! What a run and its operations allocate is taken from the memory budget first. A run that has had
//! nothing to do for a while leaves the memory through its snapshot, and comes back with the same bits when
//! an operation asks for it. When memory is short, those that were not used for longest leave earlier: for
//! a run that exists, any that has no pass under way; for a new one, only those that are not in use. So
//! what does not fit is the newcomer, and it is refused with the numbers (`room`).

mod room;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tinkrs_backend::{Backend, Error, Need, Pass, PassProgress, StatePart, TrainingRun};
use tinkrs_types::training::OptimizerConfig;
use tinkrs_types::{LoraConfig, ModelId, RequestId};

use super::execute::SLICE_TOKENS;
use super::operation::Operation;
use super::operation_error::OperationError;
use super::snapshots::{self, Snapshots};
use super::training::RunningPass;
use super::waiting_pass::WaitingPass;
use crate::error::chain;
use crate::memory::{MemoryKind, Refusal, Reservation};
use crate::shared::Shared;
use crate::store::Change;
use crate::studio::measure::PassSums;

/// The training runs of a base model.
pub(super) struct Runs {
    backend: Arc<dyn Backend>,
    shared: Arc<Shared>,
    resident: HashMap<ModelId, Resident>,
    /// The runs that are not in memory, with the last sequence ids that their snapshots include.
    stored: HashMap<ModelId, i64>,
    /// The runs that could not be brought back to where they were, and why. The next server tries again.
    set_aside: HashMap<ModelId, String>,
    snapshots: SnapshotPolicy,
    /// What the backend keeps from one slice to the next.
    workspace: Option<Reservation>,
    waited_in_vain: Option<Instant>,
}

/// A run in memory.
struct Resident {
    run: Box<dyn TrainingRun>,
    /// The last operation that changed it.
    seq_id: i64,
    last_used: Instant,
    /// Shared with the pass that is under way.
    lease: Arc<()>,
    memory: Reservation,
}

impl Resident {
    fn has_pass(&self) -> bool {
        Arc::strong_count(&self.lease) > 1
    }
}

/// When the state of a run is written.
enum SnapshotPolicy {
    /// Now and then: the backend repeats what came after.
    WhenDue(Snapshots),
    /// After each operation that changes the run. Holds the sequence id of each run's last snapshot.
    Always(HashMap<ModelId, i64>),
}

/// What memory is needed for, which decides who leaves for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A run that is to be created.
    NewRun,
    /// An operation of a run that exists.
    ExistingRun,
}

impl Runs {
    pub(super) fn new(backend: Arc<dyn Backend>, shared: Arc<Shared>) -> std::io::Result<Self> {
        let snapshots = if backend.describe().repeats_exactly {
            SnapshotPolicy::WhenDue(Snapshots::start(Arc::clone(&shared))?)
        } else {
            SnapshotPolicy::Always(HashMap::new())
        };
        Ok(Self {
            backend,
            shared,
            resident: HashMap::new(),
            stored: HashMap::new(),
            set_aside: HashMap::new(),
            snapshots,
            workspace: None,
            waited_in_vain: None,
        })
    }

    /// Returns whether an operation that is repeated gives the same bits.
    pub(super) fn repeats_exactly(&self) -> bool {
        matches!(self.snapshots, SnapshotPolicy::WhenDue(_))
    }

    /// Knows a run that is in its snapshot. It is read when it is asked for.
    pub(super) fn add_stored(&mut self, id: ModelId, seq_id: i64) {
        if let SnapshotPolicy::Always(last) = &mut self.snapshots {
            last.insert(id.clone(), seq_id);
        }
        self.stored.insert(id, seq_id);
    }

    /// Creates a run.
    pub(super) fn create(
        &mut self,
        id: &ModelId,
        seq_id: i64,
        (lora, optimizer): (&LoraConfig, &OptimizerConfig),
        purpose: Purpose,
    ) -> Result<(), OperationError> {
        let memory = self.reserve_run(id, lora, purpose)?;
        let run = self.backend.create(lora, optimizer)?;
        self.insert(id, seq_id, run, memory);
        Ok(())
    }

    /// Makes a run what a file says, and writes its first snapshot: the file may be gone when the
    /// operation would have to be repeated.
    pub(super) fn load(
        &mut self,
        id: &ModelId,
        seq_id: i64,
        lora: &LoraConfig,
        (file, part): (&Path, StatePart),
        purpose: Purpose,
    ) -> Result<(), OperationError> {
        let memory = self.reserve_run(id, lora, purpose)?;
        let run = self.backend.restore(file, part)?;
        snapshots::write(&self.shared, id, seq_id, &*run)?;
        self.insert(id, seq_id, run, memory);
        self.note_snapshot(id, seq_id);
        Ok(())
    }

    /// Takes the memory of a run and checks that there is some for its operations, too.
    fn reserve_run(
        &mut self,
        id: &ModelId,
        lora: &LoraConfig,
        purpose: Purpose,
    ) -> Result<Reservation, Refusal> {
        let need = |need| self.backend.memory(&need);
        let run = need(Need::Run { lora: lora.clone() });
        let copies = need(Need::Copies { lora: lora.clone() });
        let mut memory = self.reserve(MemoryKind::Runs, run + copies, purpose, id)?;
        memory.shrink_to(run);
        Ok(memory)
    }

    fn insert(
        &mut self,
        id: &ModelId,
        seq_id: i64,
        run: Box<dyn TrainingRun>,
        memory: Reservation,
    ) {
        let resident = Resident {
            run,
            seq_id,
            last_used: Instant::now(),
            lease: Arc::default(),
            memory,
        };
        self.resident.insert(id.clone(), resident);
        self.stored.remove(id);
    }

    /// Returns a run that has weights, from its snapshot if need be.
    fn bring_back(&mut self, id: &ModelId) -> Result<&mut Resident, OperationError> {
        if let Some(why) = self.set_aside.get(id) {
            return Err(OperationError::SetAside(id.clone(), why.clone()));
        }
        if !self.resident.contains_key(id) {
            let stored = self.stored.get(id).copied();
            let seq_id = stored.ok_or_else(|| OperationError::NoModel(id.clone()))?;
            self.read_snapshot(id, seq_id)?;
        }
        let resident = self.resident.get_mut(id);
        let resident = resident.ok_or_else(|| OperationError::NoModel(id.clone()))?;
        resident.last_used = Instant::now();
        Ok(resident)
    }

    fn read_snapshot(&mut self, id: &ModelId, seq_id: i64) -> Result<(), OperationError> {
        let lora = self.recorded_lora(id);
        let lora = lora.ok_or_else(|| OperationError::NoModel(id.clone()))?;
        let memory = self.reserve_run(id, &lora, Purpose::ExistingRun)?;
        let file = self.shared.store.files().snapshot(id, seq_id);
        match snapshots::restore(&*self.backend, &file) {
            Ok(run) => {
                self.insert(id, seq_id, run, memory);
                self.note_snapshot(id, seq_id);
                Ok(())
            }
            // The disk may give it at another time.
            Err(error) if error.is_storage() && file.exists() => Err(error.into()),
            Err(error) => {
                tracing::error!(model.id = %id, error = %chain(&error), "could not restore a model");
                self.stored.remove(id);
                let why = format!("it could not be restored: {}", chain(&error));
                self.close(id, &why, true);
                Err(OperationError::NoModel(id.clone()))
            }
        }
    }

    /// Begins a pass, with memory for its data, its gradients and its slices.
    pub(super) fn begin(
        &mut self,
        id: &ModelId,
        request: &RequestId,
        pass: WaitingPass,
    ) -> Result<RunningPass, OperationError> {
        let lora = self.bring_back(id)?.run.lora();
        let (slice, held) = (self.slice_bytes(&lora, &pass), self.held());
        if slice > held {
            let more = slice - held;
            let more = self.reserve(MemoryKind::Passes, more, Purpose::ExistingRun, id)?;
            match &mut self.workspace {
                Some(workspace) => workspace.join(more),
                None => self.workspace = Some(more),
            }
        }
        let (reading, data) = (pass.reading_bytes() as u64, pass.size.data_bytes as u64);
        let sums = self.sum_bytes(lora, &pass);
        let mut memory =
            self.reserve(MemoryKind::Passes, sums + reading, Purpose::ExistingRun, id)?;
        let request = pass.into_request(&self.shared.store, request);
        let request = request.map_err(OperationError::Unreadable)?;
        memory.shrink_to(sums + data);
        let measured = PassSums::of(&request.data, &request.objective);
        let resident = self.bring_back(id)?;
        let pass = Box::new(AccountedPass {
            pass: resident.run.begin(request)?,
            _lease: Arc::clone(&resident.lease),
            _memory: memory,
        });
        Ok(RunningPass {
            pass,
            sums: measured,
        })
    }

    /// Does something to a run that copies parts of it meanwhile, with memory for that.
    pub(super) fn with<R>(
        &mut self,
        id: &ModelId,
        run: impl FnOnce(&mut dyn TrainingRun) -> Result<R, OperationError>,
    ) -> Result<R, OperationError> {
        let lora = self.bring_back(id)?.run.lora();
        let copies = self.backend.memory(&Need::Copies { lora });
        let _memory = self.reserve(MemoryKind::Passes, copies, Purpose::ExistingRun, id)?;
        run(&mut *self.bring_back(id)?.run)
    }

    /// Returns whether an operation of a run has the memory that it needs, if all leave that may. What
    /// does not belong to a run yet does not wait.
    pub(super) fn has_room(&self, id: &ModelId, operation: &Operation) -> bool {
        let resident = self.resident.get(id);
        let lora = match (operation, resident) {
            (Operation::Create { .. } | Operation::CreateFrom { .. } | Operation::Unload, _) => {
                return true;
            }
            (_, Some(resident)) => resident.run.lora(),
            (_, None) => match self.recorded_lora(id) {
                Some(lora) => lora,
                None => return true,
            },
        };
        let need = |need| self.backend.memory(&need);
        let run = match resident {
            Some(_) => 0,
            None => need(Need::Run { lora: lora.clone() }),
        };
        let copies = need(Need::Copies { lora: lora.clone() });
        let operation = match operation {
            Operation::Pass(pass) => {
                let slice = self.slice_bytes(&lora, pass).saturating_sub(self.held());
                let data = pass.reading_bytes() as u64;
                (slice + data + self.sum_bytes(lora, pass)).max(copies)
            }
            _ => copies,
        };
        let free = self.shared.memory.free(MemoryKind::Runs);
        run + operation <= free + self.evictable(Duration::ZERO, id)
    }

    fn recorded_lora(&self, id: &ModelId) -> Option<LoraConfig> {
        let registry = self.shared.registry();
        let run = registry.runs.get(id)?;
        Some(run.record.lora.clone())
    }

    /// Returns the bytes that the slices of a pass need.
    fn slice_bytes(&self, lora: &LoraConfig, pass: &WaitingPass) -> u64 {
        self.backend.memory(&Need::Slice {
            lora: lora.clone(),
            tokens: pass.size.tokens.min(SLICE_TOKENS),
            // A longer datum is refused when the pass begins.
            longest: pass.size.longest.min(self.backend.describe().context),
            backward: pass.backward,
        })
    }

    /// Returns the bytes of the gradients that a pass sums up.
    fn sum_bytes(&self, lora: LoraConfig, pass: &WaitingPass) -> u64 {
        if pass.backward {
            self.backend.memory(&Need::Pass { lora })
        } else {
            0
        }
    }

    /// Returns the bytes that the backend keeps from one slice to the next.
    fn held(&self) -> u64 {
        self.workspace.as_ref().map_or(0, Reservation::bytes)
    }

    /// Returns whether a run has weights, in memory or on disk.
    pub(super) fn contains(&self, id: &ModelId) -> bool {
        self.resident.contains_key(id)
            || self.stored.contains_key(id)
            || self.set_aside.contains_key(id)
    }

    /// Drops the weights of a run. Returns whether there were any.
    pub(super) fn remove(&mut self, id: &ModelId) -> bool {
        let was_there = self.contains(id);
        self.resident.remove(id);
        self.stored.remove(id);
        self.set_aside.remove(id);
        was_there
    }

    /// Keeps a run as it is in the data folder, because an operation could not be repeated here.
    pub(super) fn set_aside(&mut self, id: &ModelId, why: &str) {
        tracing::error!(model.id = %id, why, "could not bring a model back to where it was");
        self.remove(id);
        self.set_aside.insert(id.clone(), why.to_owned());
    }

    /// Notes that an operation has changed a run, and takes a snapshot if one is due.
    pub(super) fn changed(&mut self, id: &ModelId, seq_id: i64, time: Duration) {
        let Some(resident) = self.resident.get_mut(id) else {
            return;
        };
        resident.seq_id = seq_id;
        let SnapshotPolicy::WhenDue(snapshots) = &mut self.snapshots else {
            return;
        };
        if !snapshots.is_due(id, time) {
            return;
        }
        let lora = resident.run.lora();
        let state = self.backend.memory(&Need::State { lora });
        match self.shared.memory.reserve(MemoryKind::Runs, state) {
            Ok(memory) => snapshots.take(id, seq_id, &*resident.run, memory),
            // Without a copy, which holds up training.
            Err(_) => {
                save(&self.shared, snapshots, id, resident);
            }
        }
    }

    /// Writes a snapshot of a run that was changed, if the operation could not be repeated otherwise.
    /// Returns whether it did. An operation whose snapshot cannot be written has not happened.
    pub(super) fn make_durable(&mut self, id: &ModelId, seq_id: i64) -> Result<bool, Error> {
        let SnapshotPolicy::Always(last) = &mut self.snapshots else {
            return Ok(false);
        };
        let Some(resident) = self.resident.get(id) else {
            return Ok(false);
        };
        match snapshots::write(&self.shared, id, seq_id, &*resident.run) {
            Ok(()) => {
                last.insert(id.clone(), seq_id);
                Ok(true)
            }
            Err(error) => {
                self.resident.remove(id);
                // It goes on from the snapshot before.
                self.stored
                    .extend(last.get(id).map(|seq_id| (id.clone(), *seq_id)));
                Err(error)
            }
        }
    }

    fn note_snapshot(&mut self, id: &ModelId, seq_id: i64) {
        match &mut self.snapshots {
            SnapshotPolicy::WhenDue(snapshots) => snapshots.was_written(id, seq_id),
            SnapshotPolicy::Always(last) => {
                last.insert(id.clone(), seq_id);
            }
        }
    }

    /// Notes that a run has no weights any more, and stores it.
    pub(super) fn close(&mut self, id: &ModelId, why: &str, corrupted: bool) {
        if let Some(change) = self.closed(id, why, corrupted) {
            self.shared.store.note(change);
        }
    }

    /// Notes that a run has no weights any more, and returns what has to be stored.
    pub(super) fn closed(&mut self, id: &ModelId, why: &str, corrupted: bool) -> Option<Change> {
        match &mut self.snapshots {
            SnapshotPolicy::WhenDue(snapshots) => snapshots.forget(id),
            SnapshotPolicy::Always(last) => {
                last.remove(id);
            }
        }
        let mut registry = self.shared.registry();
        let run = registry.runs.get_mut(id)?;
        run.record.closed = Some(why.to_owned());
        run.record.corrupted |= corrupted;
        Some(Change::RunClosed(run.record.clone()))
    }
}

/// Writes a snapshot of a run here and now. Returns whether it could be written.
fn save(shared: &Shared, snapshots: &mut Snapshots, id: &ModelId, resident: &Resident) -> bool {
    let seq_id = resident.seq_id;
    snapshots.settle();
    if let Err(error) = snapshots::write(shared, id, seq_id, &*resident.run) {
        tracing::error!(model.id = %id, seq_id, error = %chain(&error), "could not write a snapshot");
        return false;
    }
    snapshots.was_written(id, seq_id);
    shared.store.note(Change::Snapshot {
        run: id.clone(),
        seq_id,
    });
    true
}

/// A pass and the memory that it has until it ends. Its run does not leave meanwhile.
struct AccountedPass {
    pass: Box<dyn Pass>,
    _lease: Arc<()>,
    _memory: Reservation,
}

impl Pass for AccountedPass {
    fn advance(&mut self, max_tokens: usize) -> Result<PassProgress, Error> {
        self.pass.advance(max_tokens)
    }
}
