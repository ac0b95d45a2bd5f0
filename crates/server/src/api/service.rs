//! What the server offers, and how clients should behave.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use serde::de::IgnoredAny;
use tinkrs_types::InvalidInput;
use tinkrs_types::protocol::{ClientConfig, DynamicConfig};
use tinkrs_types::service::{ServerCapabilities, SupportedModel};
use tinkrs_wire::op::client_config::ClientConfigRequest;
use tinkrs_wire::op::data_folder::FolderProof;
use tinkrs_wire::op::healthz::Health;
use tinkrs_wire::op::telemetry::TelemetryResponse;
use tinkrs_wire::openapi;
use tinkrs_wire::query::NonceQuery;

use super::{Plain, json};
use crate::Server;
use crate::body::{check_values, json_bytes};
use crate::error::ApiError;
use crate::extract::{Decoded, Parameters};
use crate::intake::Upload;
use crate::shared::Shared;

/// The longest nonce that is answered.
const NONCE_BYTES: usize = 128;

/// Answers as soon as it can be asked: a server starts with its models loaded.
pub(crate) async fn healthz() -> Plain<Health> {
    Plain(Health {
        status: "ok".to_owned(),
    })
}

/// Proves to a process that has read the data folder that this server holds it.
pub(crate) async fn data_folder(
    State(server): State<Server>,
    Parameters(query): Parameters<NonceQuery>,
) -> Result<Plain<FolderProof>, ApiError> {
    if query.nonce.len() > NONCE_BYTES {
        let found = format!("{} bytes", query.nonce.len());
        let allowed = format!("at most {NONCE_BYTES} bytes");
        return Err(InvalidInput::new("nonce", found, allowed).into());
    }
    let proof = server.folder_proof(&query.nonce);
    let unknown = || ApiError::not_found("this server has not announced itself in its data folder");
    Ok(Plain(FolderProof {
        proof: proof.ok_or_else(unknown)?,
    }))
}

/// The server's counts, for Prometheus. They name no owner, so they need no key.
pub(crate) async fn metrics(State(server): State<Server>) -> Response {
    server.shared().measure();
    server.shared().metrics.show()
}

/// All endpoints, in the form of OpenAPI. It is the same for every caller, so it is written once.
pub(crate) async fn openapi() -> Response {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| openapi::document().to_string());
    json(DOCUMENT.as_str())
}

pub(crate) async fn client_config(
    State(server): State<Server>,
    _: Decoded<ClientConfigRequest>,
) -> Plain<ClientConfig> {
    Plain(server.shared().settings.client.clone())
}

pub(crate) async fn dynamic_config(_: Decoded<ClientConfigRequest>) -> Plain<DynamicConfig> {
    let mut config = DynamicConfig::default();
    config.sample_cancel_enabled = true;
    Plain(config)
}

pub(crate) async fn capabilities(State(server): State<Server>) -> Plain<ServerCapabilities> {
    Plain(server.capabilities())
}

/// Takes a report and keeps nothing of it: it says nothing that this machine does not know.
pub(crate) async fn telemetry(
    State(server): State<Server>,
    body: Upload,
) -> Result<Plain<TelemetryResponse>, ApiError> {
    let read = |body: Bytes| {
        check_values(&body)?;
        serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(&body)
            .map_err(|error| ApiError::bad_request(format!("not a JSON object: {error}")))
    };
    let (_, held) = body.decode(&server, json_bytes, read).await?;
    drop(held);
    Ok(Plain(TelemetryResponse {
        status: "accepted".to_owned(),
    }))
}

impl Shared {
    /// Updates the metrics that change without an event.
    pub(crate) fn measure(&self) {
        let metrics = &self.metrics;
        metrics.set_pending(self.results.pending());
        metrics.set_stored_bytes("checkpoints", self.checkpoints.stored_bytes());
        let memory = &self.memory;
        let mut usage = memory.usage();
        usage.push(("waiting", self.waiting.taken() as u64));
        usage.push(("losses", self.loss_room.taken() as u64));
        metrics.set_memory(&usage, memory.plan().limit);
        let registry = self.registry();
        let sessions = registry
            .sessions
            .values()
            .filter(|session| session.is_open());
        metrics.set_live("sessions", sessions.count());
        let models = registry
            .runs
            .values()
            .filter(|run| run.record.closed.is_none());
        metrics.set_live("models", models.count());
        metrics.set_live("samplers", registry.samplers.len());
        // What is over leaves the memory soon, so these are hardly more than those above.
        metrics.set_live("sessions_in_memory", registry.sessions.len());
        metrics.set_live("models_in_memory", registry.runs.len());
    }
}

impl Server {
    fn capabilities(&self) -> ServerCapabilities {
        let models = self.bases().values().map(|base| {
            let mut model = SupportedModel::default();
            model.model_name = Some(base.name.clone());
            model.max_context_length = Some(base.description.context as u64);
            model.trainable = Some(true);
            model.sampleable = Some(true);
            model.numerics = Some(base.description.numerics());
            model
        });
        ServerCapabilities::new(models.collect())
    }
}
