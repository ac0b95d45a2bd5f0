//! What the server does, for the page about it.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use axum::extract::State;
use tinkrs_backend::Need;
use tinkrs_wire::op::server_view::{
    DiskView, Finding, MemoryView, ModelView, QueueView, ServerView, ThroughputView,
};

use crate::Server;
use crate::api::Plain;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::Caller;
use crate::store::studio::Reading;

/// Memory is short when this part of it is used.
const FULL: f64 = 0.9;
/// Less room than this is used up by a few checkpoints.
const LOW_DISK_BYTES: u64 = 2 << 30;

/// What a program finds out about the machine.
type Find = dyn Fn() -> Vec<Finding> + Send + Sync;

/// How to look at the machine, if the program of this server can.
#[derive(Default)]
pub(crate) struct Findings(OnceLock<Box<Find>>);

impl fmt::Debug for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Findings")
            .field(&self.0.get().is_some())
            .finish()
    }
}

pub(crate) async fn get(
    State(server): State<Server>,
    Caller(owner): Caller,
) -> Result<Plain<ServerView>, ApiError> {
    let read = move |server: &Server, reading: &Reading<'_>| server.view(reading, owner);
    server.read(read).await.map(Plain)
}

impl Server {
    /// Has the page of the server show what a program finds out about the machine, beside what the server knows itself.
    /// `find` is called whenever the page is read, on a thread that may wait. A second call changes nothing.
    pub fn report_findings(&self, find: impl Fn() -> Vec<Finding> + Send + Sync + 'static) {
        let _ = self.shared().findings.0.set(Box::new(find));
    }

    fn view(&self, reading: &Reading<'_>, owner: Owner) -> Result<ServerView, ApiError> {
        let shared = self.shared();
        let memory = MemoryView {
            limit: shared.memory.plan().limit,
            uses: self.memory_uses(),
        };
        let now = shared.activity.all();
        let registry = self.registry();
        let sessions = registry.sessions.values().filter(|it| it.is_open());
        let owners: HashSet<_> = sessions.clone().map(|it| it.record.owner).collect();
        let runs = registry
            .runs
            .values()
            .filter(|it| it.record.closed.is_none());
        let queues = QueueView {
            training: now.pending as u64,
            training_begun: now.begun as u64,
            pending: shared.results.pending() as u64,
            sessions: sessions.count() as u64,
            owners: owners.len() as u64,
            runs: runs.count() as u64,
            samplers: registry.samplers.len() as u64,
            watchers: shared.event_streams.count() as u64,
        };
        drop(registry);
        let (checkpoint_count, checkpoints) = shared.checkpoints.totals(owner);
        let rules = shared.faults.document();
        let faults = rules["rules"].as_array().map_or(0, Vec::len) as u64;
        let models = self.bases().values().map(|base| ModelView {
            name: base.name.clone(),
            context: base.description.context as u64,
            vocabulary: base.description.vocabulary as u64,
            numerics: base.description.numerics(),
            weights_bytes: base.backend.memory(&Need::Weights),
            chat: base.renderer.is_some(),
        });
        let mut view = ServerView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: shared.started.elapsed().as_secs_f64(),
            memory,
            queues,
            throughput: ThroughputView {
                tokens: shared.metrics.token_counts(),
            },
            disk: DiskView {
                checkpoints,
                checkpoint_count,
                database: reading.bytes()?,
                free: free_bytes(&shared.settings.data),
            },
            faults,
            restricted: self.is_restricted(),
            models: models.collect(),
            findings: Vec::new(),
        };
        let found = shared.findings.0.get().map(|find| find());
        view.findings = findings(&view, found.unwrap_or_default());
        Ok(view)
    }

    /// Returns what memory is used for.
    fn memory_uses(&self) -> BTreeMap<String, u64> {
        let shared = self.shared();
        let mut uses: BTreeMap<_, _> = shared
            .memory
            .usage()
            .into_iter()
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .collect();
        uses.insert("waiting".to_owned(), shared.waiting.taken() as u64);
        uses.insert("losses".to_owned(), shared.loss_room.taken() as u64);
        uses
    }
}

/// Returns how much may be written where a folder is.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Tells what somebody should look at, beside what was found on the machine.
fn findings(view: &ServerView, of_machine: Vec<Finding>) -> Vec<Finding> {
    let mut findings = of_machine;
    let mut find = |level: &str, text: String, hint: Option<&str>| {
        findings.push(Finding {
            level: level.to_owned(),
            text,
            hint: hint.map(str::to_owned),
        });
    };
    if view.faults > 0 {
        find(
            "warning",
            format!(
                "{} rules of injected faults are on: requests fail on purpose",
                view.faults
            ),
            Some("start without `--faults`, or `DELETE /admin/faults`"),
        );
    }
    let used: u64 = view.memory.uses.values().sum();
    if used as f64 > FULL * view.memory.limit as f64 {
        find(
            "warning",
            format!("{used} of {} bytes of memory are in use", view.memory.limit),
            Some("unload runs that are not needed, or raise `--memory`"),
        );
    }
    if let Some(free) = view.disk.free.filter(|free| *free < LOW_DISK_BYTES) {
        find(
            "warning",
            format!("{free} bytes are free on the disk of the data folder"),
            Some("make room before training: checkpoints are large"),
        );
    }
    if view.models.is_empty() {
        find(
            "note",
            "there is no model: runs can be looked at, and not trained".to_owned(),
            Some("`tinkrs serve --model NAME`"),
        );
    }
    if !view.restricted {
        find(
            "note",
            "any key that starts with `tml-` is taken, and each is an owner of its own".to_owned(),
            Some("`--api-key-file` names the keys that are taken"),
        );
    }
    if findings.is_empty() {
        findings.push(Finding {
            level: "ok".to_owned(),
            text: "nothing to look at".to_owned(),
            hint: None,
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(free: Option<u64>) -> ServerView {
        ServerView {
            version: String::new(),
            uptime_seconds: 0.0,
            memory: MemoryView {
                limit: 100,
                uses: BTreeMap::new(),
            },
            queues: QueueView {
                training: 0,
                training_begun: 0,
                pending: 0,
                sessions: 0,
                owners: 0,
                runs: 0,
                samplers: 0,
                watchers: 0,
            },
            throughput: ThroughputView {
                tokens: BTreeMap::new(),
            },
            disk: DiskView {
                checkpoints: 0,
                checkpoint_count: 0,
                database: 0,
                free,
            },
            faults: 0,
            restricted: true,
            models: vec![ModelView {
                name: "m".to_owned(),
                context: 1,
                vocabulary: 1,
                numerics: String::new(),
                weights_bytes: 0,
                chat: false,
            }],
            findings: Vec::new(),
        }
    }

    fn levels(view: &ServerView, of_machine: Vec<Finding>) -> Vec<String> {
        let found = findings(view, of_machine).into_iter();
        found.map(|finding| finding.level).collect()
    }

    #[test]
    fn what_is_wrong_is_found_and_nothing_else() {
        for (free, expected) in [
            (None, "ok"),
            (Some(LOW_DISK_BYTES), "ok"),
            (Some(0), "warning"),
        ] {
            assert_eq!(levels(&view(free), Vec::new()), [expected], "{free:?}");
        }
        let mut full = view(None);
        full.memory.uses.insert("runs".to_owned(), 91);
        assert_eq!(levels(&full, Vec::new()), ["warning"]);
        full.faults = 1;
        assert_eq!(levels(&full, Vec::new()), ["warning", "warning"]);
    }

    #[test]
    fn what_a_program_finds_out_comes_first() {
        let slow = Finding {
            level: "note".to_owned(),
            text: "slow".to_owned(),
            hint: None,
        };
        let found = findings(&view(Some(0)), vec![slow.clone()]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], slow);
    }
}
