//! Where each operation lives.
//!
//! Constants are whole paths; where a path holds an id, the constant is a pattern for a router
//! and a function of the same name fills it in. Ids go in as they are: they may contain `:`,
//! and a checkpoint id is two segments.

use tinkrs_types::{ModelId, SamplingSessionId, SessionId, TinkerPath};

/// What every path starts with, behind the base URL.
pub const PREFIX: &str = "/api/v1";

macro_rules! routes {
    ($($(#[$doc:meta])* $name:ident = $path:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = concat!("/api/v1", $path);)*
    };
}

routes! {
    /// `POST`: settings read when a client starts.
    CLIENT_CONFIG = "/client/config";
    /// `POST`: settings read again and again.
    DYNAMIC_CONFIG = "/client/dynamic_config";
    /// `POST`: exchanges a credential for a token.
    AUTH_TOKEN = "/auth/token";
    /// `GET`, `DELETE`: the key that the request is made with.
    API_KEY_ME = "/auth/apikey/me";
    /// `GET`: whether the server is up.
    HEALTHZ = "/healthz";
    /// `GET`: the models on offer.
    GET_SERVER_CAPABILITIES = "/get_server_capabilities";
    /// `POST`.
    CREATE_SESSION = "/create_session";
    /// `POST`.
    SESSION_HEARTBEAT = "/session_heartbeat";
    /// `POST`.
    FINISH_SESSION = "/sessions/{session_id}/finish";
    /// `POST`.
    CREATE_SAMPLING_SESSION = "/create_sampling_session";
    /// `POST`.
    JOIN_SAMPLING_SESSION = "/join_sampling_session";
    /// `POST`, answered by a promise.
    CREATE_CUSTOM_LOSS = "/create_custom_loss";
    /// `POST`, answered by a promise.
    CREATE_MODEL = "/create_model";
    /// `POST`.
    GET_INFO = "/get_info";
    /// `POST`.
    COPY_WEIGHTS = "/copy_weights";
    /// `POST`, an archive with an adapter. Not part of the official API.
    IMPORT_WEIGHTS = "/import_weights";
    /// `POST`, answered by a promise. Older clients only.
    FORWARD = "/forward";
    /// `POST`, answered by a promise.
    FORWARD_BACKWARD = "/forward_backward";
    /// `POST`, answered by a promise.
    OPTIM_STEP = "/optim_step";
    /// `POST`, answered by a promise.
    LOAD_WEIGHTS = "/load_weights";
    /// `POST`, answered by a promise.
    SAVE_WEIGHTS = "/save_weights";
    /// `POST`, answered by a promise.
    SAVE_WEIGHTS_FOR_SAMPLER = "/save_weights_for_sampler";
    /// `POST`, answered by a promise.
    SAVE_WEIGHTS_EXTERNAL = "/save_weights_external";
    /// `POST`.
    WEIGHTS_INFO = "/weights_info";
    /// `POST`, answered by a promise. Older clients only.
    UNLOAD_MODEL = "/unload_model";
    /// `POST`, answered by a promise.
    ASAMPLE = "/asample";
    /// `GET`.
    SAMPLER = "/samplers/{sampler_id}";
    /// `POST`.
    RETRIEVE_FUTURE = "/retrieve_future";
    /// `POST`.
    RETRIEVE_FUTURES = "/retrieve_futures";
    /// `POST`.
    CANCEL_FUTURE = "/cancel_future";
    /// `GET`.
    TRAINING_RUNS = "/training_runs";
    /// `GET`.
    TRAINING_RUN = "/training_runs/{run_id}";
    /// `GET`.
    RUN_CHECKPOINTS = "/training_runs/{run_id}/checkpoints";
    /// `GET`. Older clients only.
    MODEL_CHECKPOINTS = "/models/{run_id}/checkpoints";
    /// `DELETE`.
    CHECKPOINT = "/training_runs/{run_id}/checkpoints/{kind}/{name}";
    /// `POST` publishes, `DELETE` takes it back.
    CHECKPOINT_PUBLISH = "/training_runs/{run_id}/checkpoints/{kind}/{name}/publish";
    /// `PUT`.
    CHECKPOINT_TTL = "/training_runs/{run_id}/checkpoints/{kind}/{name}/ttl";
    /// `GET`. Older clients only.
    CHECKPOINT_ARCHIVE = "/training_runs/{run_id}/checkpoints/{kind}/{name}/archive";
    /// `GET`, for external weights.
    EXTERNAL_WEIGHTS_URLS = "/training_runs/{run_id}/checkpoints/{kind}/{name}/external_weights_urls";
    /// `GET`.
    CHECKPOINTS = "/checkpoints";
    /// `GET`.
    SESSIONS = "/sessions";
    /// `GET`.
    SESSION = "/sessions/{session_id}";
    /// `POST`.
    SEARCH_SESSIONS = "/sessions/search";
    /// `PUT`.
    SESSION_PROJECT = "/sessions/{session_id}/project";
    /// `GET`.
    TRACE_EXPORT = "/sessions/{session_id}/trace_export";
    /// `GET`.
    AUDIT = "/audit";
    /// `GET`.
    BILLING_USAGE = "/billing/usage/events";
    /// `GET`.
    STORAGE_USAGE = "/billing/usage/checkpoints/current";
    /// `POST`.
    TELEMETRY = "/telemetry";
}

/// Puts values where the pattern has their names. Values are not searched for names again.
fn fill(pattern: &str, values: &[(&str, &str)]) -> String {
    let value = |segment| {
        let named = values.iter().find(|(name, _)| *name == segment);
        named.map_or(segment, |(_, value)| *value)
    };
    pattern.split('/').map(value).collect::<Vec<_>>().join("/")
}

fn in_session(pattern: &str, id: &SessionId) -> String {
    fill(pattern, &[("{session_id}", id.as_str())])
}

fn in_run(pattern: &str, id: &ModelId) -> String {
    fill(pattern, &[("{run_id}", id.as_str())])
}

fn of_checkpoint(pattern: &str, path: &TinkerPath) -> String {
    let kind = path.kind().segment();
    fill(
        pattern,
        &[
            ("{kind}", kind),
            ("{run_id}", path.run().as_str()),
            ("{name}", path.name()),
        ],
    )
}

/// Fills in [`FINISH_SESSION`].
pub fn finish_session(id: &SessionId) -> String {
    in_session(FINISH_SESSION, id)
}

/// Fills in [`SESSION`].
pub fn session(id: &SessionId) -> String {
    in_session(SESSION, id)
}

/// Fills in [`SESSION_PROJECT`].
pub fn session_project(id: &SessionId) -> String {
    in_session(SESSION_PROJECT, id)
}

/// Fills in [`TRACE_EXPORT`].
pub fn trace_export(id: &SessionId) -> String {
    in_session(TRACE_EXPORT, id)
}

/// Fills in [`SAMPLER`].
pub fn sampler(id: &SamplingSessionId) -> String {
    fill(SAMPLER, &[("{sampler_id}", id.as_str())])
}

/// Fills in [`TRAINING_RUN`].
pub fn training_run(id: &ModelId) -> String {
    in_run(TRAINING_RUN, id)
}

/// Fills in [`RUN_CHECKPOINTS`].
pub fn run_checkpoints(id: &ModelId) -> String {
    in_run(RUN_CHECKPOINTS, id)
}

/// Fills in [`CHECKPOINT`].
pub fn checkpoint(path: &TinkerPath) -> String {
    of_checkpoint(CHECKPOINT, path)
}

/// Fills in [`CHECKPOINT_PUBLISH`].
pub fn checkpoint_publish(path: &TinkerPath) -> String {
    of_checkpoint(CHECKPOINT_PUBLISH, path)
}

/// Fills in [`CHECKPOINT_TTL`].
pub fn checkpoint_ttl(path: &TinkerPath) -> String {
    of_checkpoint(CHECKPOINT_TTL, path)
}

/// Fills in [`EXTERNAL_WEIGHTS_URLS`].
pub fn external_weights_urls(path: &TinkerPath) -> String {
    of_checkpoint(EXTERNAL_WEIGHTS_URLS, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_into_paths_as_they_are() {
        let path: TinkerPath = "tinker://u-1:train:0/weights/step-1".parse().unwrap();
        assert_eq!(
            checkpoint_publish(&path),
            "/api/v1/training_runs/u-1:train:0/checkpoints/weights/step-1/publish"
        );
        assert_eq!(sampler(&"s:sample:3".into()), "/api/v1/samplers/s:sample:3");
        assert_eq!(finish_session(&"s".into()), "/api/v1/sessions/s/finish");
    }

    #[test]
    fn an_id_that_looks_like_a_placeholder_stays_as_it_is() {
        let path: TinkerPath = "tinker://{name}/weights/{run_id}".parse().unwrap();
        assert_eq!(
            checkpoint(&path),
            "/api/v1/training_runs/{name}/checkpoints/weights/{run_id}"
        );
    }
}
