//! All operations of the server, on one page.
//!
//! `session` and `search_sessions` have paths of one shape and different methods.

use super::reply::{Reply, refuse};
use super::script::Effect;
use super::{Recorded, Shared, admin, futures, rest, sampling, service, training, weights};
use http::Method;
use serde_json::json;
use std::sync::Arc;
use tinkrs_wire::route;

/// What is not an operation is recorded under this name.
pub(super) const UNKNOWN: &str = "unknown";

/// Method, path and name of each operation.
const ROUTES: &[(Method, &str, &str)] = &[
    (Method::POST, route::CLIENT_CONFIG, "client_config"),
    (Method::POST, route::DYNAMIC_CONFIG, "dynamic_config"),
    (Method::POST, route::AUTH_TOKEN, "auth_token"),
    (Method::GET, route::API_KEY_ME, "api_key"),
    (Method::DELETE, route::API_KEY_ME, "delete_api_key"),
    (Method::GET, route::HEALTHZ, "healthz"),
    (
        Method::GET,
        route::GET_SERVER_CAPABILITIES,
        "get_server_capabilities",
    ),
    (Method::POST, route::CREATE_SESSION, "create_session"),
    (Method::POST, route::SESSION_HEARTBEAT, "session_heartbeat"),
    (Method::POST, route::FINISH_SESSION, "finish_session"),
    (
        Method::POST,
        route::CREATE_SAMPLING_SESSION,
        "create_sampling_session",
    ),
    (
        Method::POST,
        route::JOIN_SAMPLING_SESSION,
        "join_sampling_session",
    ),
    (
        Method::POST,
        route::CREATE_CUSTOM_LOSS,
        "create_custom_loss",
    ),
    (Method::POST, route::CREATE_MODEL, "create_model"),
    (Method::POST, route::GET_INFO, "get_info"),
    (Method::POST, route::COPY_WEIGHTS, "copy_weights"),
    (Method::POST, route::FORWARD, "forward"),
    (Method::POST, route::FORWARD_BACKWARD, "forward_backward"),
    (Method::POST, route::OPTIM_STEP, "optim_step"),
    (Method::POST, route::LOAD_WEIGHTS, "load_weights"),
    (Method::POST, route::SAVE_WEIGHTS, "save_weights"),
    (
        Method::POST,
        route::SAVE_WEIGHTS_FOR_SAMPLER,
        "save_weights_for_sampler",
    ),
    (
        Method::POST,
        route::SAVE_WEIGHTS_EXTERNAL,
        "save_weights_external",
    ),
    (Method::POST, route::WEIGHTS_INFO, "weights_info"),
    (Method::POST, route::ASAMPLE, "asample"),
    (Method::GET, route::SAMPLER, "sampler"),
    (Method::POST, route::RETRIEVE_FUTURE, "retrieve_future"),
    (Method::POST, route::RETRIEVE_FUTURES, "retrieve_futures"),
    (Method::POST, route::CANCEL_FUTURE, "cancel_future"),
    (Method::GET, route::TRAINING_RUNS, "training_runs"),
    (Method::GET, route::TRAINING_RUN, "training_run"),
    (Method::GET, route::RUN_CHECKPOINTS, "run_checkpoints"),
    (Method::DELETE, route::CHECKPOINT, "delete_checkpoint"),
    (
        Method::POST,
        route::CHECKPOINT_PUBLISH,
        "publish_checkpoint",
    ),
    (
        Method::DELETE,
        route::CHECKPOINT_PUBLISH,
        "unpublish_checkpoint",
    ),
    (Method::PUT, route::CHECKPOINT_TTL, "set_checkpoint_ttl"),
    (
        Method::GET,
        route::EXTERNAL_WEIGHTS_URLS,
        "external_weights_urls",
    ),
    (Method::GET, route::CHECKPOINTS, "checkpoints"),
    (Method::GET, route::SESSIONS, "sessions"),
    (Method::GET, route::SESSION, "session"),
    (Method::POST, route::SEARCH_SESSIONS, "search_sessions"),
    (Method::PUT, route::SESSION_PROJECT, "session_project"),
    (Method::GET, route::TRACE_EXPORT, "trace_export"),
    (Method::GET, route::AUDIT, "audit"),
    (Method::GET, route::BILLING_USAGE, "billing_usage"),
    (Method::GET, route::STORAGE_USAGE, "storage_usage"),
    (Method::POST, route::TELEMETRY, "telemetry"),
    (Method::GET, "/files/{folder}/{name}", "file"),
];

/// Returns whether there is an operation of this name.
pub(super) fn is_endpoint(name: &str) -> bool {
    ROUTES.iter().any(|(_, _, endpoint)| *endpoint == name)
}

/// Finds the operation at a path, and the ids in the path.
pub(super) fn find(method: &Method, path: &str) -> (&'static str, Vec<String>) {
    for (known, pattern, endpoint) in ROUTES {
        if known == method
            && let Some(ids) = matches(pattern, path)
        {
            return (endpoint, ids);
        }
    }
    (UNKNOWN, vec![])
}

fn matches(pattern: &str, path: &str) -> Option<Vec<String>> {
    let (pattern, path) = (pattern.split('/'), path.split('/'));
    let mut ids = vec![];
    let mut parts = pattern.clone().zip(path.clone());
    let fits = parts.all(|(expected, found)| {
        if expected.starts_with('{') {
            ids.push(found.to_owned());
        }
        expected == found || expected.starts_with('{')
    });
    (fits && pattern.count() == path.count()).then_some(ids)
}

/// Answers as a correct server would; an effect changes what a promised result is.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
) -> Reply {
    if request.endpoint != "file"
        && let Err(reply) = shared.state().check_key(request)
    {
        return reply;
    }
    match request.endpoint {
        "client_config" => service::client_config(shared),
        "dynamic_config" => service::dynamic_config(shared),
        "auth_token" => service::auth_token(shared),
        "api_key" => service::api_key(),
        "delete_api_key" => Reply::json(&json!({})),
        "healthz" => Reply::json(&json!({"status": "ok"})),
        "get_server_capabilities" => service::get_server_capabilities(),
        "create_session" => service::create_session(shared, request),
        "session_heartbeat" => service::session_heartbeat(shared, request),
        "finish_session" => service::finish_session(shared, request),
        "telemetry" => service::telemetry(shared, request),
        "create_model" => training::create_model(shared, request, effect),
        "create_custom_loss" => training::create_custom_loss(shared, request, effect),
        "get_info" => training::get_info(shared, request),
        "forward" | "forward_backward" => training::forward_backward(shared, request, effect),
        "optim_step" => training::optim_step(shared, request, effect),
        "load_weights" => weights::load_weights(shared, request, effect),
        "save_weights" => weights::save_weights(shared, request, effect),
        "save_weights_for_sampler" => weights::save_weights_for_sampler(shared, request, effect),
        "save_weights_external" => weights::save_weights_external(shared, request, effect),
        "weights_info" => weights::weights_info(shared, request),
        "copy_weights" => weights::copy_weights(shared, request),
        "create_sampling_session" => sampling::create_sampling_session(shared, request),
        "join_sampling_session" => sampling::join_sampling_session(shared, request),
        "sampler" => sampling::sampler(shared, request),
        "asample" => sampling::asample(shared, request, effect),
        "retrieve_future" => futures::retrieve_future(shared, request).await,
        "retrieve_futures" => futures::retrieve_futures(shared, request).await,
        "cancel_future" => futures::cancel_future(shared, request),
        "training_runs" => rest::training_runs(shared, request),
        "training_run" => rest::training_run(shared, request),
        "run_checkpoints" => rest::run_checkpoints(shared, request),
        "checkpoints" => rest::checkpoints(shared, request),
        "delete_checkpoint" => rest::delete_checkpoint(shared, request),
        "publish_checkpoint" => rest::publish(shared, request, true),
        "unpublish_checkpoint" => rest::publish(shared, request, false),
        "set_checkpoint_ttl" => rest::set_checkpoint_ttl(shared, request),
        "external_weights_urls" => admin::external_weights_urls(shared, request),
        "sessions" => rest::sessions(shared, request),
        "session" => rest::session(shared, request),
        "session_project" => rest::session_project(shared, request),
        "trace_export" => rest::trace_export(shared, request),
        "search_sessions" => rest::search_sessions(shared, request),
        "audit" => admin::audit(shared, request),
        "billing_usage" => admin::billing_usage(request),
        "storage_usage" => admin::storage_usage(shared, request),
        "file" => admin::file(shared, request),
        _ => refuse(404, "no such operation"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_operations_and_give_their_ids() {
        assert_eq!(
            find(&Method::POST, "/api/v1/sessions/s-1/finish"),
            ("finish_session", vec!["s-1".to_owned()])
        );
        assert_eq!(find(&Method::GET, "/api/v1/asample").0, UNKNOWN);
        assert_eq!(find(&Method::POST, "/api/v1/asample/more").0, UNKNOWN);
    }
}
