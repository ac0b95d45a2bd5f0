//! Why an operation waited, and for how long.
//!
//! What passes between the acceptance of an operation and its beginning is divided among reasons where they are
//! known: the acceptance knows how long the disk took, the queue of gaps, the worker whose turn it was and what did not
//! fit the memory.

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// Milliseconds of waiting, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Its request was written to the journal on the disk.
    pub(crate) store: u64,
    /// An earlier sequence id had not come.
    pub(crate) gap: u64,
    /// It was the turn of another owner or run, or of samples.
    pub(crate) turn: u64,
    /// There was no memory for it while others were under way.
    pub(crate) memory: u64,
    /// The server was not running.
    pub(crate) paused: u64,
    /// An earlier operation of its own run was computed.
    pub(crate) compute: u64,
}

impl Waits {
    /// Lists the reasons that there were, by their names in the API.
    pub(crate) fn reasons(self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            ("store", self.store),
            ("gap", self.gap),
            ("turn", self.turn),
            ("memory", self.memory),
            ("paused", self.paused),
            ("compute", self.compute),
        ];
        all.into_iter().filter(|(_, ms)| *ms > 0)
    }

    /// Returns the time in which it was in the queue and nothing of its run was computed.
    pub(crate) fn queue_ms(self) -> u64 {
        self.gap + self.turn + self.memory + self.paused
    }

    /// Writes them as they are stored: `g12 c340`. `None` if there were none.
    pub(crate) fn to_text(self) -> Option<String> {
        let parts: Vec<_> = self
            .reasons()
            .map(|(name, ms)| format!("{}{ms}", &name[..1]))
            .collect();
        (!parts.is_empty()).then(|| parts.join(" "))
    }

    /// Reads what was stored. Reasons that it does not know are left out.
    pub(crate) fn from_text(text: &str) -> Self {
        let mut waits = Self::default();
        for part in text.split(' ') {
            let Some((name, ms)) = part.split_at_checked(1) else {
                continue;
            };
            let ms = ms.parse().unwrap_or(0);
            match name {
                "s" => waits.store = ms,
                "g" => waits.gap = ms,
                "t" => waits.turn = ms,
                "m" => waits.memory = ms,
                "p" => waits.paused = ms,
                "c" => waits.compute = ms,
                _ => {}
            }
        }
        waits
    }
}

/// Follows an operation from its acceptance to its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitClock {
    accepted: Instant,
    /// When nothing before it was missing any more.
    released: Instant,
    /// How long its run had been computed, as the worker counts, when it came there.
    run_before: Duration,
    /// How long its run was computed before that, while nobody looked for what had come.
    run_unseen: Duration,
    store: u64,
    paused: u64,
}

impl WaitClock {
    /// Begins with an operation that is stored now, and was accepted at this time.
    pub(crate) fn new(accepted: Timestamp) -> Self {
        let ms = Timestamp::now().as_millisecond() - accepted.as_millisecond();
        Self {
            store: u64::try_from(ms).unwrap_or(0),
            ..Self::after_pause(0)
        }
    }

    /// Begins with one that was accepted before the server ran, by so many milliseconds.
    pub(crate) fn after_pause(paused: u64) -> Self {
        let now = Instant::now();
        Self {
            accepted: now,
            released: now,
            run_before: Duration::ZERO,
            run_unseen: Duration::ZERO,
            store: 0,
            paused,
        }
    }

    /// Notes that nothing before it is missing.
    pub(crate) fn release(&mut self) {
        self.released = Instant::now();
    }

    /// Notes that the worker has it, and how long its run has been computed; and of what the worker did last the time, if
    /// it was for the same run.
    pub(crate) fn arrive(&mut self, run_before: Duration, last: Option<(Instant, Instant)>) {
        self.run_before = run_before;
        self.run_unseen = last.map_or(Duration::ZERO, |(start, end)| {
            end.saturating_duration_since(start.max(self.released))
        });
    }

    /// Tells for what it has waited, now that it begins: its run has been computed for `run_now`, and for `blocked` it
    /// was next but had no memory.
    pub(crate) fn begin(&self, run_now: Duration, blocked: Duration) -> Waits {
        let gap = self.released.saturating_duration_since(self.accepted);
        let waited = self.released.elapsed();
        let compute = run_now.saturating_sub(self.run_before) + self.run_unseen;
        let compute = compute.min(waited);
        let memory = blocked.min(waited - compute);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Waits {
            store: self.store,
            gap: ms(gap),
            turn: ms(waited - compute - memory),
            memory: ms(memory),
            paused: self.paused,
            compute: ms(compute),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_survive_being_written() {
        let waits = Waits {
            store: 8,
            gap: 12,
            turn: 3,
            memory: 0,
            paused: 99,
            compute: 340,
        };
        let text = waits.to_text().unwrap();
        assert_eq!(text, "s8 g12 t3 p99 c340");
        assert_eq!(Waits::from_text(&text), waits);
        assert_eq!(Waits::default().to_text(), None);
        assert_eq!(Waits::from_text("x1 g"), Waits::default());
        assert_eq!(Waits::from_text("\u{e9}1"), Waits::default());
        assert_eq!(waits.queue_ms(), 114);
    }

    #[test]
    fn time_is_divided_and_never_counted_twice() {
        let ms = Duration::from_millis;
        let now = Instant::now();
        let clock = WaitClock {
            accepted: now - ms(5000),
            released: now - ms(3000),
            run_before: ms(100),
            run_unseen: Duration::ZERO,
            store: 7,
            paused: 0,
        };
        let waits = clock.begin(ms(1100), ms(500));
        assert_eq!((waits.gap, waits.compute, waits.memory), (2000, 1000, 500));
        assert_eq!(waits.store, 7);
        assert!((1500..2500).contains(&waits.turn), "{waits:?}");
        // What was computed while it came counts from when it was there.
        let mut late = clock;
        late.arrive(ms(100), Some((now - ms(9000), now - ms(2500))));
        assert_eq!(late.begin(ms(100), Duration::ZERO).compute, 500);
        // Clocks of different threads do not agree to the last microsecond.
        let waits = clock.begin(ms(999_999), ms(999_999));
        assert_eq!((waits.turn, waits.memory), (0, 0), "{waits:?}");
    }
}
