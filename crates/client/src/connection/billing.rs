//! Waiting out a billing block.
//!
//! A 402 pauses rather than fails, since topping up an account should not cost a run. One
//! incident is waited out for up to an hour in all, whatever the number of requests that meet
//! it.

use crate::lock::lock;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// How long a paused call waits before it tries again.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);
const LOG_EVERY: Duration = Duration::from_secs(60);
const INCIDENT_ENDS_AFTER: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(crate) struct Billing {
    pub(super) max_pause: Duration,
    incident: Mutex<Option<Incident>>,
}

#[derive(Clone, Copy, Debug)]
struct Incident {
    began: Instant,
    logged: Instant,
}

impl Billing {
    pub(crate) fn new(max_pause: Duration) -> Self {
        Self {
            max_pause,
            incident: Mutex::default(),
        }
    }

    /// Takes note of a 402 and returns whether to wait and try again.
    pub(crate) fn may_pause(&self, now: Instant) -> bool {
        let mut incident = lock(&self.incident);
        let forgotten = |last: &Incident| now.duration_since(last.logged) > INCIDENT_ENDS_AFTER;
        let current = incident.filter(|last| !forgotten(last));
        let began = current.map_or(now, |current| current.began);
        if now.duration_since(began) >= self.max_pause {
            tracing::error!(
                "billing is still blocked after {} s",
                self.max_pause.as_secs()
            );
            return false;
        }
        let logged = match current {
            Some(current) if now.duration_since(current.logged) < LOG_EVERY => current.logged,
            _ => {
                tracing::warn!("billing is blocked; waiting for it to clear");
                now
            }
        };
        *incident = Some(Incident { began, logged });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incident_is_waited_out_for_as_long_as_the_server_allows() {
        let billing = Billing::new(Duration::from_secs(3_600));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for seconds in (0..3_600).step_by(100) {
            assert!(billing.may_pause(at(seconds)), "after {seconds} s");
        }
        assert!(!billing.may_pause(at(3_650)));
        assert!(
            !Billing::new(Duration::ZERO).may_pause(start),
            "no pause is no pause"
        );
        assert!(
            billing.may_pause(at(9_000)),
            "a new incident begins after a quiet time"
        );
    }
}
