//! What the server does, for the page about it.

use std::collections::BTreeMap;

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

pub(crate) async fn get(
    State(server): State<Server>,
    Caller(owner): Caller,
) -> Result<Plain<ServerView>, ApiError> {
    let read = move |server: &Server, reading: &Reading<'_>| server.view(reading, owner);
    server.read(read).await.map(Plain)
}

impl Server {
    fn view(&self, reading: &Reading<'_>, owner: Owner) -> Result<ServerView, ApiError> {
        let shared = self.shared();
        let memory = MemoryView {
            limit: shared.memory.plan().limit,
            uses: self.memory_uses(),
        };
        let now = shared.activity.all();
        let registry = self.registry();
        let sessions = registry.sessions.values().filter(|it| it.is_open());
        let runs = registry
            .runs
            .values()
            .filter(|it| it.record.closed.is_none());
        let queues = QueueView {
            training: now.pending as u64,
            training_begun: now.begun as u64,
            pending: shared.results.pending() as u64,
            sessions: sessions.count() as u64,
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
            },
            faults,
            restricted: self.is_restricted(),
            models: models.collect(),
            findings: Vec::new(),
        };
        view.findings = findings(&view);
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

/// Tells what somebody should look at.
fn findings(view: &ServerView) -> Vec<Finding> {
    let mut findings = Vec::new();
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
