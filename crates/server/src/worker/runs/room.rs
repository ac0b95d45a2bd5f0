//! Memory for runs and their operations, and who leaves for it.

use std::time::{Duration, Instant};

use tinkrs_types::ModelId;

use super::{Purpose, Resident, Runs, SnapshotPolicy, save};
use crate::memory::{MemoryKind, Refusal, Reservation};

/// A run that was used this recently does not leave for a new one.
const IN_USE: Duration = Duration::from_secs(60);
/// How long an operation waits for memory that other base models use.
const WAIT: Duration = Duration::from_secs(3);
/// How long idle runs are written at a time while there is other work, and while there is none.
const ROUND_BESIDE_WORK: Duration = Duration::from_millis(50);
const ROUND: Duration = Duration::from_millis(500);

impl Runs {
    /// Lets runs leave that have had nothing to do for long, and more if an operation waits for memory.
    pub(in crate::worker) fn free_idle(&mut self, is_busy: bool) {
        let start = Instant::now();
        let round = if is_busy { ROUND_BESIDE_WORK } else { ROUND };
        let keep = self.shared.settings.keep_idle_runs;
        let mut has_evicted = false;
        while start.elapsed() < round {
            let waits = self.shared.memory.is_waited_for();
            let idle = if waits { Duration::ZERO } else { keep };
            if waits && self.trim() {
                continue;
            }
            if !self.evict_oldest(idle, None) {
                break;
            }
            has_evicted = true;
        }
        if has_evicted && !is_busy {
            self.workspace.take();
            self.backend.trim();
        }
    }

    /// Takes memory, for which others may have to leave.
    pub(super) fn reserve(
        &mut self,
        kind: MemoryKind,
        bytes: u64,
        purpose: Purpose,
        own: &ModelId,
    ) -> Result<Reservation, Refusal> {
        loop {
            let refusal = match self.shared.memory.reserve(kind, bytes) {
                Ok(memory) => return Ok(memory),
                Err(refusal) => refusal,
            };
            let idle = match purpose {
                Purpose::NewRun => IN_USE,
                Purpose::ExistingRun => Duration::ZERO,
            };
            // No run leaves if that would not be enough.
            let helps = self.evictable(idle, own) >= refusal.missing();
            if helps && (self.settle() || self.trim() || self.evict_oldest(idle, Some(own))) {
                continue;
            }
            if purpose == Purpose::NewRun || refusal.is_permanent() || !self.may_wait() {
                return Err(refusal);
            }
            let waited = self.shared.memory.reserve_within(kind, bytes, WAIT);
            self.waited_in_vain = waited.is_err().then(Instant::now);
            return waited;
        }
    }

    /// Whether other base models may free what they use, and did not just refuse to.
    fn may_wait(&self) -> bool {
        let in_vain = self.waited_in_vain;
        let is_new = in_vain.is_none_or(|since| since.elapsed() > 10 * WAIT);
        is_new && self.shared.memory.plan().models > 1
    }

    /// Counts the bytes that would be freed if all left that may.
    pub(super) fn evictable(&self, idle: Duration, own: &ModelId) -> u64 {
        let runs = self.resident.iter();
        let runs = runs.filter(|(id, run)| *id != own && may_leave(run, idle));
        let runs: u64 = runs.map(|(_, run)| run.memory.bytes()).sum();
        let has_pass = self.resident.values().any(Resident::has_pass);
        let workspace = if has_pass { 0 } else { self.held() };
        let snapshots = match &self.snapshots {
            SnapshotPolicy::WhenDue(snapshots) => snapshots.bytes(),
            SnapshotPolicy::Always(_) => 0,
        };
        runs + workspace + snapshots
    }

    /// Waits for the snapshots that are being written. Returns whether there were any.
    fn settle(&mut self) -> bool {
        match &self.snapshots {
            SnapshotPolicy::WhenDue(snapshots) => snapshots.settle(),
            SnapshotPolicy::Always(_) => false,
        }
    }

    /// Frees what the backend keeps for the next slice, if there is no pass. Returns whether there was
    /// something.
    fn trim(&mut self) -> bool {
        if self.resident.values().any(Resident::has_pass) {
            return false;
        }
        let workspace = self.workspace.take();
        if workspace.is_some() {
            self.backend.trim();
        }
        workspace.is_some()
    }

    /// Lets the run leave that was not used for longest, if that is `idle` ago. Returns whether one did.
    fn evict_oldest(&mut self, idle: Duration, own: Option<&ModelId>) -> bool {
        let runs = self.resident.iter();
        let idle = runs.filter(|(id, run)| Some(*id) != own && may_leave(run, idle));
        let oldest = idle.min_by_key(|(_, run)| run.last_used);
        let Some(id) = oldest.map(|(id, _)| id.clone()) else {
            return false;
        };
        self.evict(&id)
    }

    /// Lets a run leave through its snapshot. One that cannot be written stays.
    fn evict(&mut self, id: &ModelId) -> bool {
        let Some(resident) = self.resident.get_mut(id) else {
            return false;
        };
        let seq_id = match &mut self.snapshots {
            SnapshotPolicy::Always(last) => last.get(id).copied(),
            SnapshotPolicy::WhenDue(snapshots) => {
                snapshots.settle();
                let is_written = snapshots.last_written(id) == Some(resident.seq_id);
                let is_written = is_written || save(&self.shared, snapshots, id, resident);
                is_written.then_some(resident.seq_id)
            }
        };
        let Some(seq_id) = seq_id else {
            // Tried again when it is idle again.
            resident.last_used = Instant::now();
            return false;
        };
        self.resident.remove(id);
        self.stored.insert(id.clone(), seq_id);
        true
    }
}

fn may_leave(run: &Resident, idle: Duration) -> bool {
    !run.has_pass() && run.last_used.elapsed() >= idle
}
