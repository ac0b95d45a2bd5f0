//! The memory budget: what is large is accounted for here before it is allocated.
//!
//! One number, `--memory`, covers everything that grows with what clients ask for. It is divided once, when
//! the server starts ([`Plan`]): base weights, key-value caches, adapters to sample with, results in memory and
//! requests that wait have fixed parts, which they cannot exceed by their own bounds; uploads and grammars have parts of their own, so that
//! neither a flood of them nor a machine full of runs locks the others out; runs and passes share the rest.
//!
//! A [`Reservation`] is taken before the memory and gives its bytes back when it is dropped. What does not
//! fit is a [`Refusal`] with the numbers. Waiting is for those who know that others will be done soon.

mod limit;
mod plan;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use limit::default_limit;
pub(crate) use plan::Plan;

use crate::lock::lock;

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MemoryKind {
    /// Bodies of requests, and what they are decoded into.
    Uploads,
    /// Adapters in training, their gradients and optimizers, and copies of them that are written or read.
    Runs,
    /// Activations and sums of passes under way.
    Passes,
    /// Compiled grammars, and the places of samples in them.
    Grammars,
}

impl MemoryKind {
    pub(crate) const ALL: [Self; 4] = [Self::Uploads, Self::Runs, Self::Passes, Self::Grammars];

    /// Returns its name in the metrics and in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uploads => "uploads",
            Self::Runs => "runs",
            Self::Passes => "passes",
            Self::Grammars => "grammars",
        }
    }

    /// Returns whether two kinds share one part of the budget.
    fn shares_with(self, other: Self) -> bool {
        let is_of_training = |kind| matches!(kind, Self::Runs | Self::Passes);
        self == other || (is_of_training(self) && is_of_training(other))
    }
}

/// Memory that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    kind: MemoryKind,
    needed: u64,
    free: u64,
    /// The part of the budget that this kind of memory comes from.
    part: u64,
    /// What uses that part.
    used: Vec<(&'static str, u64)>,
    /// The whole budget.
    limit: u64,
}

impl Refusal {
    /// Returns whether waiting cannot help: more is needed than there will ever be.
    pub(crate) fn is_permanent(&self) -> bool {
        self.needed > self.part
    }

    /// Returns how many bytes are missing.
    pub(crate) fn missing(&self) -> u64 {
        self.needed.saturating_sub(self.free)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sharing = match self.kind {
            MemoryKind::Uploads => "requests",
            MemoryKind::Runs | MemoryKind::Passes => "training",
            MemoryKind::Grammars => "answers that keep to a schema",
        };
        write!(
            f,
            "not enough memory: {} needed, {} free of the {} for {sharing}",
            Size(self.needed),
            Size(self.free),
            Size(self.part),
        )?;
        let mut separator = " (in use: ";
        for (name, bytes) in &self.used {
            write!(f, "{separator}{name} {}", Size(*bytes))?;
            separator = ", ";
        }
        if !self.used.is_empty() {
            f.write_str(")")?;
        }
        write!(
            f,
            "; the server may use {} in all, which its `--memory` changes",
            Size(self.limit)
        )
    }
}

/// A number of bytes for people: `690.2 MiB`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{} B", self.0),
            1024..0x10_0000 => write!(f, "{:.1} KiB", bytes / 1024.0),
            0x10_0000..0x4000_0000 => write!(f, "{:.1} MiB", bytes / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", bytes / 1_073_741_824.0),
        }
    }
}

/// The memory budget of a server: a handle that is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    plan: Plan,
    used: Mutex<[u64; MemoryKind::ALL.len()]>,
    freed: Condvar,
    /// How many threads wait for that.
    waiting: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(plan: Plan) -> Self {
        Self(Arc::new(Shared {
            plan,
            used: Mutex::default(),
            freed: Condvar::new(),
            waiting: AtomicUsize::new(0),
        }))
    }

    /// Returns how the budget is divided.
    pub(crate) fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// Takes memory, if it is free.
    pub(crate) fn reserve(&self, kind: MemoryKind, bytes: u64) -> Result<Reservation, Refusal> {
        self.take(kind, bytes)?;
        Ok(Reservation {
            budget: self.clone(),
            kind,
            bytes,
        })
    }

    /// Takes memory, and blocks for up to `timeout` until others give some back. Refuses at once what will
    /// never fit.
    pub(crate) fn reserve_within(
        &self,
        kind: MemoryKind,
        bytes: u64,
        timeout: Duration,
    ) -> Result<Reservation, Refusal> {
        let deadline = Instant::now() + timeout;
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        let taken = self.take_until(kind, bytes, deadline);
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        taken?;
        let budget = self.clone();
        Ok(Reservation {
            budget,
            kind,
            bytes,
        })
    }

    fn take_until(&self, kind: MemoryKind, bytes: u64, deadline: Instant) -> Result<(), Refusal> {
        let mut used = lock(&self.0.used);
        while let Err(refusal) = self.fits(&used, kind, bytes) {
            let left = deadline.saturating_duration_since(Instant::now());
            if refusal.is_permanent() || left.is_zero() {
                return Err(refusal);
            }
            let waited = self.0.freed.wait_timeout(used, left);
            used = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        used[kind as usize] += bytes;
        Ok(())
    }

    /// Returns whether a thread waits for others to give memory back.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns how many bytes of a kind are free.
    pub(crate) fn free(&self, kind: MemoryKind) -> u64 {
        self.free_of(&lock(&self.0.used), kind)
    }

    fn free_of(&self, used: &[u64; MemoryKind::ALL.len()], kind: MemoryKind) -> u64 {
        let sharing = MemoryKind::ALL.into_iter();
        let sharing = sharing.filter(|other| other.shares_with(kind));
        let used: u64 = sharing.map(|other| used[other as usize]).sum();
        self.0.plan.part_of(kind).saturating_sub(used)
    }

    fn take(&self, kind: MemoryKind, bytes: u64) -> Result<(), Refusal> {
        let mut used = lock(&self.0.used);
        self.fits(&used, kind, bytes)?;
        used[kind as usize] += bytes;
        Ok(())
    }

    fn fits(
        &self,
        used: &[u64; MemoryKind::ALL.len()],
        kind: MemoryKind,
        bytes: u64,
    ) -> Result<(), Refusal> {
        let part = self.0.plan.part_of(kind);
        let free = self.free_of(used, kind);
        if bytes <= free {
            return Ok(());
        }
        let sharing = MemoryKind::ALL.into_iter();
        let sharing = sharing.filter(|other| other.shares_with(kind));
        let by_kind = sharing.map(|other| (other.name(), used[other as usize]));
        Err(Refusal {
            kind,
            needed: bytes,
            free,
            part,
            used: by_kind.filter(|(_, bytes)| *bytes > 0).collect(),
            limit: self.0.plan.limit,
        })
    }

    fn give_back(&self, kind: MemoryKind, bytes: u64) {
        if bytes == 0 {
            return;
        }
        lock(&self.0.used)[kind as usize] -= bytes;
        self.0.freed.notify_all();
    }

    /// Returns how much each kind of memory takes: what is reserved now, and the fixed parts.
    pub(crate) fn usage(&self) -> Vec<(&'static str, u64)> {
        let used = *lock(&self.0.used);
        let mut usage = self.0.plan.fixed().to_vec();
        usage.extend(
            MemoryKind::ALL
                .into_iter()
                .map(|kind| (kind.name(), used[kind as usize])),
        );
        usage
    }
}

/// Memory that is accounted for. It is given back when this is dropped.
#[derive(Debug)]
#[must_use = "dropping a reservation gives the memory back"]
pub(crate) struct Reservation {
    budget: Budget,
    kind: MemoryKind,
    bytes: u64,
}

impl Reservation {
    /// Returns how many bytes it is for.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back what is above `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let unneeded = self.bytes.saturating_sub(bytes);
        self.bytes -= unneeded;
        self.budget.give_back(self.kind, unneeded);
    }

    /// Takes over the bytes of another one of its kind.
    pub(crate) fn join(&mut self, mut other: Self) {
        debug_assert_eq!(self.kind, other.kind);
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give_back(self.kind, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 bytes: 160 for uploads and 840 for the rest.
    fn budget() -> Budget {
        Budget::new(Plan {
            limit: 1000,
            weights: 0,
            program: 0,
            sampling: 0,
            grammars: 0,
            adapters: 0,
            models: 1,
            results: 0,
            uploads: 160,
            waiting: 0,
            losses: 0,
        })
    }

    #[test]
    fn what_is_reserved_is_given_back() {
        let budget = budget();
        let run = budget.reserve(MemoryKind::Runs, 800).unwrap();
        let refusal = budget.reserve(MemoryKind::Passes, 41).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "not enough memory: 41 B needed, 40 B free of the 840 B for training (in use: runs 800 B); the server may use 1000 B in all, which its `--memory` changes"
        );
        assert_eq!((refusal.missing(), refusal.is_permanent()), (1, false));
        drop(run);
        let mut pass = budget.reserve(MemoryKind::Passes, 41).unwrap();
        pass.join(budget.reserve(MemoryKind::Passes, 799).unwrap());
        assert!(budget.reserve(MemoryKind::Passes, 1).is_err());
        pass.shrink_to(40);
        assert_eq!(pass.bytes(), 40);
        assert!(budget.usage().contains(&("passes", 40)));
        drop(pass);
        assert!(budget.usage().iter().all(|(_, bytes)| *bytes == 0));
    }

    #[test]
    fn uploads_and_runs_do_not_lock_each_other_out() {
        let budget = budget();
        let _runs = budget.reserve(MemoryKind::Runs, 840).unwrap();
        let _upload = budget.reserve(MemoryKind::Uploads, 160).unwrap();
        assert!(budget.reserve(MemoryKind::Uploads, 1).is_err());
        assert!(budget.reserve(MemoryKind::Passes, 1).is_err());
    }

    #[test]
    fn a_thread_waits_for_what_others_give_back() {
        let budget = budget();
        let held = budget.reserve(MemoryKind::Passes, 840).unwrap();
        let none = Duration::ZERO;
        assert!(budget.reserve_within(MemoryKind::Passes, 1, none).is_err());
        let long = Duration::from_secs(600);
        let never = budget.reserve_within(MemoryKind::Passes, 841, long);
        assert!(never.unwrap_err().is_permanent(), "without waiting");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.reserve_within(MemoryKind::Passes, 840, long));
            drop(held);
            assert!(waiting.join().unwrap().is_ok());
        });
    }

    #[test]
    fn sizes_are_for_people() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (723_726_336, "690.2 MiB"),
            (3 << 30, "3.00 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
