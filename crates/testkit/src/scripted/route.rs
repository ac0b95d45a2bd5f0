//! All operations of the server, by the names of their endpoints.

use super::reply::{Reply, refuse};
use super::script::Effect;
use super::{Recorded, Shared, futures, sampling, service, training, upstream, weights};
use http::Method;
use serde_json::json;
use std::sync::Arc;
use tinkrs_wire::endpoint::{self, Endpoint};

/// What is not an operation is recorded under this name.
pub(super) const UNKNOWN: &str = "unknown";

/// What is read outside the API, such as the files of a checkpoint, is recorded under this name.
const FILE: &str = "file";

/// Returns whether there is an operation of this name.
pub(super) fn is_endpoint(name: &str) -> bool {
    name == FILE || endpoint::named(name).is_some_and(is_api)
}

/// Finds the operation at a path, and the ids in the path.
pub(super) fn find(method: &Method, path: &str) -> (&'static str, Vec<String>) {
    let owned = |ids: Vec<&str>| ids.into_iter().map(str::to_owned).collect();
    let mut candidates = endpoint::ALL
        .iter()
        .filter(|endpoint| is_api(endpoint) && endpoint.method == *method);
    let found = candidates.find_map(|endpoint| Some((endpoint.name, endpoint.ids(path)?)));
    if let Some((name, ids)) = found {
        return (name, owned(ids));
    }
    if method == Method::GET && !path.starts_with(endpoint::PREFIX) {
        return (FILE, vec![]);
    }
    (UNKNOWN, vec![])
}

fn is_api(endpoint: &Endpoint) -> bool {
    endpoint.path.starts_with(endpoint::PREFIX)
}

/// Answers as a correct server would; an effect changes what a promised result is.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
) -> Reply {
    if let Some(authority) = &shared.upstream {
        assert!(effect.is_none(), "the results are not this server's");
        return upstream::forward(authority, request).await;
    }
    if let Err(reply) = shared.state().check_key(request) {
        return reply;
    }
    match request.endpoint {
        "client_config" => service::client_config(shared),
        "client_dynamic_config" => service::dynamic_config(shared),
        "auth_token" => service::auth_token(shared),
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
        "create_sampling_session" => sampling::create_sampling_session(shared, request),
        "join_sampling_session" => sampling::join_sampling_session(shared, request),
        "get_sampler" => sampling::sampler(shared, request),
        "asample" => sampling::asample(shared, request, effect),
        "retrieve_future" => futures::retrieve_future(shared, request).await,
        "retrieve_futures" => futures::retrieve_futures(shared, request).await,
        "cancel_future" => futures::cancel_future(shared, request),
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
        assert_eq!(
            find(&Method::GET, "/api/v1/sessions/search").0,
            "get_session"
        );
        assert_eq!(find(&Method::GET, "/files/a/b"), (FILE, vec![]));
        assert_eq!(find(&Method::PUT, "/files/a/b").0, UNKNOWN);
        assert!(is_endpoint("file") && !is_endpoint("get_metrics"));
    }
}
