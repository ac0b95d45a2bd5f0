//! Every route of the server.

use axum::Router;
use axum::extract::Request;
use axum::middleware;
use axum::routing::{delete, get, post, put};
use tinkrs_wire::route;

use crate::api::{
    admin, checkpoints, console, copies, downloads, futures, imports, keys, listings, losses,
    models, sampling, service, session_listings, sessions, traces, training, weights,
};
use crate::error::ApiError;
use crate::{Server, extract, faults, metrics};

/// The routes that read a query. Others refuse one.
const WITH_QUERY: &[&str] = &[
    route::TRAINING_RUNS,
    route::TRAINING_RUN,
    route::CHECKPOINTS,
    route::SESSIONS,
    route::SESSION,
    route::AUDIT,
    route::BILLING_USAGE,
    route::STORAGE_USAGE,
    route::IMPORT_WEIGHTS,
];

/// Returns the routes of the server.
///
/// Endpoints of the API that are not here are answered by 404 with a sentence that names them. It
/// is not 501, because the official client repeats that for minutes.
pub fn router(server: Server) -> Router {
    let keyed = Router::new()
        .route(route::CLIENT_CONFIG, post(service::client_config))
        .route(route::DYNAMIC_CONFIG, post(service::dynamic_config))
        .route(route::GET_SERVER_CAPABILITIES, get(service::capabilities))
        .route(route::TELEMETRY, post(service::telemetry))
        .route(route::AUTH_TOKEN, post(keys::token))
        .route(route::API_KEY_ME, get(keys::describe).delete(keys::revoke))
        .route(route::CREATE_SESSION, post(sessions::create))
        .route(route::SESSION_HEARTBEAT, post(sessions::heartbeat))
        .route(route::FINISH_SESSION, post(sessions::finish))
        .route(route::CREATE_MODEL, post(models::create))
        .route(route::GET_INFO, post(models::info))
        .route(route::UNLOAD_MODEL, post(models::unload))
        .route(route::CREATE_CUSTOM_LOSS, post(losses::create))
        .route(route::FORWARD_BACKWARD, post(training::forward_backward))
        .route(route::FORWARD, post(training::forward))
        .route(route::OPTIM_STEP, post(training::optim_step))
        .route(route::SAVE_WEIGHTS, post(weights::save))
        .route(
            route::SAVE_WEIGHTS_FOR_SAMPLER,
            post(weights::save_for_sampler),
        )
        .route(route::SAVE_WEIGHTS_EXTERNAL, post(weights::save_external))
        .route(route::LOAD_WEIGHTS, post(weights::load))
        .route(route::WEIGHTS_INFO, post(weights::info))
        .route(
            route::CREATE_SAMPLING_SESSION,
            post(sampling::create_session),
        )
        .route(route::JOIN_SAMPLING_SESSION, post(sampling::join_session))
        .route(route::SAMPLER, get(sampling::info))
        .route(route::ASAMPLE, post(sampling::asample))
        .route(route::RETRIEVE_FUTURE, post(futures::retrieve))
        .route(route::RETRIEVE_FUTURES, post(futures::retrieve_many))
        .route(route::CANCEL_FUTURE, post(futures::cancel))
        .route(route::TRAINING_RUNS, get(listings::training_runs))
        .route(route::TRAINING_RUN, get(listings::training_run))
        .route(route::RUN_CHECKPOINTS, get(listings::run_checkpoints))
        .route(route::MODEL_CHECKPOINTS, get(listings::run_checkpoints))
        .route(route::CHECKPOINTS, get(listings::checkpoints))
        .route(route::CHECKPOINT, delete(checkpoints::delete))
        .route(
            route::CHECKPOINT_PUBLISH,
            post(checkpoints::publish).delete(checkpoints::unpublish),
        )
        .route(route::CHECKPOINT_TTL, put(checkpoints::set_ttl))
        .route(route::CHECKPOINT_ARCHIVE, get(downloads::archive))
        .route(route::EXTERNAL_WEIGHTS_URLS, get(downloads::external_urls))
        .route(route::COPY_WEIGHTS, post(copies::copy))
        .route(route::IMPORT_WEIGHTS, post(imports::import))
        .route(route::SESSIONS, get(session_listings::list))
        .route(route::SESSION, get(session_listings::describe))
        .route(route::SEARCH_SESSIONS, post(session_listings::search))
        .route(
            route::SESSION_PROJECT,
            put(session_listings::assign_project),
        )
        .route(route::TRACE_EXPORT, get(traces::export))
        .route(route::AUDIT, get(admin::audit))
        .route(route::BILLING_USAGE, get(admin::usage))
        .route(route::STORAGE_USAGE, get(admin::storage))
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .layer(middleware::from_fn_with_state(
            WITH_QUERY,
            extract::refuse_unread_query,
        ))
        .layer(middleware::from_fn_with_state(
            server.clone(),
            extract::require_key,
        ));
    let (faults, metrics) = (server.faults().clone(), server.shared().metrics.clone());
    let admin = faults::admin(faults.clone()).layer(middleware::from_fn_with_state(
        server.clone(),
        extract::require_listed_key,
    ));
    Router::new()
        .route(route::HEALTHZ, get(service::healthz))
        .route("/metrics", get(service::metrics))
        .route(downloads::FILE, get(downloads::file))
        .route(traces::FILE, get(traces::file))
        .route(console::SESSIONS, get(console::sessions))
        .route(console::SESSION, get(console::session))
        .route(console::RUN, get(console::run))
        .route(console::CHECKPOINT, get(console::checkpoint))
        .merge(keyed)
        .with_state(server)
        .merge(admin)
        .layer(middleware::from_fn_with_state(faults, faults::inject))
        .layer(middleware::from_fn_with_state(metrics, metrics::observe))
}

async fn not_found(request: Request) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    ApiError::not_found(format!("{method} {path} is not implemented by this server"))
}
