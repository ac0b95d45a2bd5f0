//! What happens by itself as time passes.

use std::time::{Duration, Instant};

use tinkrs_types::session::SessionStatus;

use crate::Server;
use crate::registry::{Registry, Sampler};
use crate::store::Change;
use crate::worker::Command;

/// Interval between two rounds of maintenance.
const TICK: Duration = Duration::from_secs(1);
/// A round of maintenance that comes this late, and not because the process was busy, means that it was stopped.
const STOPPED: Duration = Duration::from_secs(5);

impl Server {
    /// Gives up on what never came, ends sessions whose clients are gone, and drops what is not
    /// kept any longer, until the server is dropped.
    pub(crate) fn run_maintenance(&self) {
        let (server, settings) = (self.downgrade(), &self.shared().settings);
        let tick = TICK.min(settings.gap_timeout).max(Duration::from_millis(1));
        tokio::spawn(async move {
            loop {
                let (asleep, busy) = (Instant::now(), cpu_time());
                tokio::time::sleep(tick).await;
                let Some(inner) = server.upgrade() else {
                    return;
                };
                let server = Self::from(inner);
                let worked = cpu_time().saturating_sub(busy);
                if let Some(pause) = pause(asleep.elapsed(), tick, worked) {
                    tracing::warn!(
                        seconds = pause.as_secs(),
                        "the server was stopped for a while"
                    );
                    server.registry().forgive(pause);
                }
                server.clean();
                server.evict().await;
            }
        });
    }

    fn clean(&self) {
        let settings = &self.shared().settings;
        self.abandon_gaps();
        self.reap_sessions();
        self.shared()
            .results
            .expire(settings.keep_fetched, settings.keep_unfetched);
        self.shared().checkpoints.expire();
        self.drop_superseded();
        for base in self.bases().values() {
            base.send(Command::FreeIdle);
        }
    }

    /// Lets go of the memory of sessions that are finished and of models that are closed, once all
    /// that is known of them is stored. A request for one of them reads it again.
    async fn evict(&self) {
        let over = |registry: &Registry| {
            let sessions = registry.sessions.values().filter(|s| !s.is_open());
            let sessions: Vec<_> = sessions.map(|s| s.record.id.clone()).collect();
            let runs = registry.runs.values().filter(|run| run.is_over());
            let runs: Vec<_> = runs.map(|run| run.record.id.clone()).collect();
            (sessions, runs)
        };
        let (sessions, runs) = over(&self.registry());
        if sessions.is_empty() && runs.is_empty() {
            return;
        }
        let store = &self.shared().store;
        // All that was sent to the store before has been tried now.
        if store.write(Change::Nothing).await.is_err() {
            return;
        }
        for id in runs {
            let stored = store.run(&id).ok().flatten();
            let is_stored = stored.is_some_and(|(run, _)| run.record.closed.is_some());
            let mut registry = self.registry();
            let Some(run) = registry.runs.get(&id).filter(|run| run.is_over()) else {
                continue;
            };
            if is_stored {
                registry.runs.remove(&id);
            } else {
                store.note(Change::RunClosed(run.record.clone()));
            }
        }
        let sampling = self.shared().results.samplers_at_work();
        for id in sessions {
            let stored = store.session(&id).ok().flatten();
            let is_stored = stored.is_some_and(|session| session.status != SessionStatus::Active);
            let mut registry = self.registry();
            // Requests for samples still get their results; and what only this session samples from leaves
            // when the worker has come to it, with its folder.
            let is_used = |Sampler { record, .. }: &Sampler| {
                record.session == id
                    && (record.own_folder().is_some() || sampling.contains(&record.id))
            };
            let is_used = registry.runs.values().any(|run| run.record.session == id)
                || registry.samplers.values().any(is_used);
            let Some(session) = registry.sessions.get(&id).filter(|_| !is_used) else {
                continue;
            };
            if is_stored {
                registry.sessions.remove(&id);
                let samplers = &mut registry.samplers;
                for (id, _) in samplers.extract_if(|_, s| s.record.session == id) {
                    self.shared().results.feeds.forget(&id);
                }
            } else {
                store.note(Change::Session(session.record.clone()));
            }
        }
    }

    fn reap_sessions(&self) {
        let timeout = self.shared().settings.session_timeout;
        let silent: Vec<_> = {
            let registry = self.registry();
            let sessions = registry.sessions.values();
            sessions
                .filter(|session| session.is_open() && session.seen.elapsed() >= timeout)
                .map(|session| session.record.id.clone())
                .collect()
        };
        for id in silent {
            tracing::info!(session.id = %id, "ended a session whose client is gone");
            self.end_session(
                &id,
                SessionStatus::Cancelled {
                    detail: Some(format!(
                        "nothing was heard of the client for {} s",
                        timeout.as_secs()
                    )),
                },
            );
        }
    }
}

/// Returns how long the process was stopped, if it slept for so much longer than it wanted to. A process that
/// has worked meanwhile was late because it was busy: its clients could send what they wanted to send.
fn pause(slept: Duration, wanted: Duration, worked: Duration) -> Option<Duration> {
    let stopped = slept.saturating_sub(wanted).saturating_sub(worked);
    (stopped >= STOPPED).then_some(stopped)
}

/// Returns how long the threads of this process have worked, all together.
#[cfg(unix)]
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(not(unix))]
fn cpu_time() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_look_around_is_a_pause_and_a_busy_one_is_not() {
        let seconds = Duration::from_secs;
        assert_eq!(pause(seconds(1), TICK, seconds(0)), None);
        assert_eq!(pause(seconds(4), TICK, seconds(0)), None);
        assert_eq!(pause(seconds(301), TICK, seconds(2)), Some(seconds(298)));
        // It was busy on one core, or on both.
        assert_eq!(pause(seconds(13), TICK, seconds(12)), None);
        assert_eq!(pause(seconds(13), TICK, seconds(25)), None);
    }
}
