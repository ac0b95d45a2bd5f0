//! The method and path of each operation, as `tinkrs_wire::route` builds them.

use tinkrs_types::{ModelId, SamplingSessionId, SessionId, TinkerPath};
use tinkrs_wire::route;

/// Returns where a vector's request goes. The vectors all name the same session and model.
pub(super) fn of(operation: &str, variant: &str) -> (&'static str, String) {
    let session = SessionId::new("session-1");
    let model = ModelId::new("session-1:train:0");
    let sampler = SamplingSessionId::new("session-1:sample:0");
    let checkpoint =
        |kind: &str| -> TinkerPath { format!("tinker://{model}/{kind}/step-1").parse().unwrap() };
    let weights = checkpoint("weights");
    match operation {
        "assign_session_project" => ("PUT", route::session_project(&session)),
        "delete_checkpoint" if variant == "by_tinker_path" => {
            ("DELETE", route::checkpoint(&checkpoint("sampler_weights")))
        }
        "delete_checkpoint" => ("DELETE", route::checkpoint(&weights)),
        "export_session_trace" => ("GET", route::trace_export(&session)),
        "finish_session" => ("POST", route::finish_session(&session)),
        "get_external_weights_urls" => {
            let external = checkpoint("external_weights");
            ("GET", route::external_weights_urls(&external))
        }
        "get_sampler" => ("GET", route::sampler(&sampler)),
        "get_session" => ("GET", route::session(&session)),
        "get_training_run" => ("GET", route::training_run(&model)),
        "list_checkpoints" => ("GET", route::run_checkpoints(&model)),
        "publish_checkpoint" => ("POST", route::checkpoint_publish(&weights)),
        "set_checkpoint_ttl" => ("PUT", route::checkpoint_ttl(&weights)),
        "unpublish_checkpoint" => ("DELETE", route::checkpoint_publish(&weights)),
        _ => {
            let (method, path) = fixed(operation);
            (method, path.to_owned())
        }
    }
}

/// Paths that hold no id.
fn fixed(operation: &str) -> (&'static str, &'static str) {
    match operation {
        "delete_api_key" => ("DELETE", route::API_KEY_ME),
        "get_api_key" => ("GET", route::API_KEY_ME),
        "get_audit_log" => ("GET", route::AUDIT),
        "get_billing_usage" => ("GET", route::BILLING_USAGE),
        "get_current_checkpoint_storage_usage" => ("GET", route::STORAGE_USAGE),
        "get_server_capabilities" => ("GET", route::GET_SERVER_CAPABILITIES),
        "healthz" => ("GET", route::HEALTHZ),
        "list_sessions" => ("GET", route::SESSIONS),
        "list_training_runs" => ("GET", route::TRAINING_RUNS),
        "list_user_checkpoints" => ("GET", route::CHECKPOINTS),
        _ => ("POST", posted(operation)),
    }
}

fn posted(operation: &str) -> &'static str {
    match operation {
        "asample" => route::ASAMPLE,
        "auth_token" => route::AUTH_TOKEN,
        "cancel_future" => route::CANCEL_FUTURE,
        "client_config" => route::CLIENT_CONFIG,
        "client_dynamic_config" => route::DYNAMIC_CONFIG,
        "copy_weights" => route::COPY_WEIGHTS,
        "create_custom_loss" => route::CREATE_CUSTOM_LOSS,
        "create_model" => route::CREATE_MODEL,
        "create_sampling_session" => route::CREATE_SAMPLING_SESSION,
        "create_session" => route::CREATE_SESSION,
        "forward" => route::FORWARD,
        "forward_backward" => route::FORWARD_BACKWARD,
        "get_info" => route::GET_INFO,
        "join_sampling_session" => route::JOIN_SAMPLING_SESSION,
        "load_weights" => route::LOAD_WEIGHTS,
        "optim_step" => route::OPTIM_STEP,
        "retrieve_future" => route::RETRIEVE_FUTURE,
        "retrieve_futures" => route::RETRIEVE_FUTURES,
        "save_weights" => route::SAVE_WEIGHTS,
        "save_weights_external" => route::SAVE_WEIGHTS_EXTERNAL,
        "save_weights_for_sampler" => route::SAVE_WEIGHTS_FOR_SAMPLER,
        "search_sessions" => route::SEARCH_SESSIONS,
        "session_heartbeat" => route::SESSION_HEARTBEAT,
        "telemetry" => route::TELEMETRY,
        "unload_model" => route::UNLOAD_MODEL,
        "weights_info" => route::WEIGHTS_INFO,
        unknown => panic!("no route is known for `{unknown}`: add it here"),
    }
}
