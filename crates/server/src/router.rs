//! Every handler of the server, attached to its endpoint.

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::middleware;
use axum::routing::{MethodFilter, MethodRouter};
use tinkrs_wire::endpoint::{self, Auth, Dialect, Endpoint};

use crate::api::{
    admin, checkpoints, console, copies, downloads, futures, imports, keys, listings, losses,
    models, sampling, service, session_listings, sessions, tokenizers, traces, training, weights,
};
use crate::endpoints::{anthropic, dialect, openai};
use crate::error::ApiError;
use crate::studio::{
    demo, events, login, metrics as run_metrics, operations, pages, runs, server_view, steps,
};
use crate::{Server, cors, extract, faults, host, metrics};

/// Returns the routes of the server.
///
/// Endpoints of the API that are not here are answered by 404 with a sentence that names them. It
/// is not 501, because the official client repeats that for minutes.
pub fn router(server: Server) -> Router {
    let Routes {
        open,
        keyed,
        openai,
        anthropic,
        admin,
        ..
    } = routes();
    let keyed = keyed
        .merge(openai.clone())
        .nest(Dialect::OpenAi.hosted_prefix(), openai)
        .merge(anthropic.clone())
        .nest(Dialect::Anthropic.hosted_prefix(), anthropic)
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .layer(middleware::from_fn_with_state(
            server.clone(),
            extract::require_key,
        ));
    let admin = faults::for_local_callers(admin).layer(middleware::from_fn_with_state(
        server.clone(),
        extract::require_admin_key,
    ));
    let (faults, metrics) = (server.faults().clone(), server.shared().metrics.clone());
    open.merge(keyed)
        .merge(admin)
        .with_state(server.clone())
        .layer(middleware::from_fn_with_state(faults, faults::inject))
        .layer(middleware::from_fn_with_state(server.clone(), cors::allow))
        .layer(middleware::from_fn_with_state(server, host::check))
        .layer(middleware::from_fn(dialect::translate))
        .layer(middleware::from_fn_with_state(metrics, metrics::observe))
}

/// Attaches a handler to each endpoint.
fn routes() -> Routes {
    Routes::default()
        // Service
        .on(&endpoint::CLIENT_CONFIG, service::client_config)
        .on(&endpoint::CLIENT_DYNAMIC_CONFIG, service::dynamic_config)
        .on(&endpoint::AUTH_TOKEN, keys::token)
        .on(&endpoint::GET_API_KEY, keys::describe)
        .on(&endpoint::DELETE_API_KEY, keys::revoke)
        .on(&endpoint::HEALTHZ, service::healthz)
        .on(&endpoint::GET_SERVER_CAPABILITIES, service::capabilities)
        .on(&endpoint::TOKENIZER, tokenizers::files)
        .on(&endpoint::TELEMETRY, service::telemetry)
        // Sessions
        .on(&endpoint::CREATE_SESSION, sessions::create)
        .on(&endpoint::SESSION_HEARTBEAT, sessions::heartbeat)
        .on(&endpoint::FINISH_SESSION, sessions::finish)
        .on(&endpoint::LIST_SESSIONS, session_listings::list)
        .on(&endpoint::GET_SESSION, session_listings::describe)
        .on(&endpoint::SEARCH_SESSIONS, session_listings::search)
        .on(
            &endpoint::ASSIGN_SESSION_PROJECT,
            session_listings::assign_project,
        )
        .on(&endpoint::EXPORT_SESSION_TRACE, traces::export)
        // Models
        .on(&endpoint::CREATE_MODEL, models::create)
        .on(&endpoint::GET_INFO, models::info)
        .on(&endpoint::UNLOAD_MODEL, models::unload)
        .on(&endpoint::CREATE_CUSTOM_LOSS, losses::create)
        .on(&endpoint::FORWARD_BACKWARD, training::forward_backward)
        .on(&endpoint::FORWARD, training::forward)
        .on(&endpoint::OPTIM_STEP, training::optim_step)
        // Weights
        .on(&endpoint::SAVE_WEIGHTS, weights::save)
        .on(
            &endpoint::SAVE_WEIGHTS_FOR_SAMPLER,
            weights::save_for_sampler,
        )
        .on(&endpoint::SAVE_WEIGHTS_EXTERNAL, weights::save_external)
        .on(&endpoint::LOAD_WEIGHTS, weights::load)
        .on(&endpoint::WEIGHTS_INFO, weights::info)
        .on(&endpoint::COPY_WEIGHTS, copies::copy)
        .on(&endpoint::IMPORT_WEIGHTS, imports::import)
        // Sampling
        .on(&endpoint::CREATE_SAMPLING_SESSION, sampling::create_session)
        .on(&endpoint::JOIN_SAMPLING_SESSION, sampling::join_session)
        .on(&endpoint::GET_SAMPLER, sampling::info)
        .on(&endpoint::ASAMPLE, sampling::asample)
        // Results
        .on(&endpoint::RETRIEVE_FUTURE, futures::retrieve)
        .on(&endpoint::RETRIEVE_FUTURES, futures::retrieve_many)
        .on(&endpoint::CANCEL_FUTURE, futures::cancel)
        // Training runs and checkpoints
        .on(&endpoint::LIST_TRAINING_RUNS, listings::training_runs)
        .on(&endpoint::GET_TRAINING_RUN, listings::training_run)
        .on(&endpoint::LIST_CHECKPOINTS, listings::run_checkpoints)
        .on(&endpoint::LIST_MODEL_CHECKPOINTS, listings::run_checkpoints)
        .on(&endpoint::LIST_USER_CHECKPOINTS, listings::checkpoints)
        .on(&endpoint::DELETE_CHECKPOINT, checkpoints::delete)
        .on(&endpoint::PUBLISH_CHECKPOINT, checkpoints::publish)
        .on(&endpoint::UNPUBLISH_CHECKPOINT, checkpoints::unpublish)
        .on(&endpoint::SET_CHECKPOINT_TTL, checkpoints::set_ttl)
        .on(&endpoint::GET_CHECKPOINT_ARCHIVE, downloads::archive)
        .on(
            &endpoint::GET_EXTERNAL_WEIGHTS_URLS,
            downloads::external_urls,
        )
        // Accounts
        .on(&endpoint::GET_AUDIT_LOG, admin::audit)
        .on(&endpoint::GET_BILLING_USAGE, admin::usage)
        .on(
            &endpoint::GET_CURRENT_CHECKPOINT_STORAGE_USAGE,
            admin::storage,
        )
        // Outside of the API
        .on(&endpoint::DOWNLOAD_FILE, downloads::file)
        .on(&endpoint::DOWNLOAD_TRACE, traces::file)
        .on(&endpoint::GET_METRICS, service::metrics)
        .on(&endpoint::OPENAPI, service::openapi)
        .on(&endpoint::DATA_FOLDER, service::data_folder)
        .on(&endpoint::GET_FAULTS, faults::show)
        .on(&endpoint::REPLACE_FAULTS, faults::replace)
        .on(&endpoint::CLEAR_FAULTS, faults::clear)
        .on(&endpoint::SESSIONS_PAGE, console::sessions)
        .on(&endpoint::SESSION_PAGE, console::session)
        .on(&endpoint::TRAINING_RUN_PAGE, console::run)
        .on(&endpoint::CHECKPOINT_PAGE, console::checkpoint)
        // The studio
        .on(&endpoint::LIST_RUN_SUMMARIES, runs::list)
        .on(&endpoint::GET_RUN_METRICS, run_metrics::get)
        .on(&endpoint::LOG_RUN_METRICS, run_metrics::log)
        .on(&endpoint::LIST_RUN_OPERATIONS, operations::list)
        .on(&endpoint::GET_RUN_STEP, steps::get)
        .on(&endpoint::STUDIO_EVENTS, events::stream)
        .on(&endpoint::GET_SERVER_VIEW, server_view::get)
        .on(&endpoint::CREATE_LOGIN_LINK, login::create_link)
        .on(&endpoint::SHARE_RUN, login::share)
        .on(&endpoint::START_DEMO, demo::start)
        .on(&endpoint::STUDIO_PAGE, pages::runs)
        .on(&endpoint::RUN_PAGE, pages::run)
        .on(&endpoint::PLAYGROUND_PAGE, pages::playground)
        .on(&endpoint::SERVER_PAGE, pages::server)
        .on(&endpoint::STUDIO_ASSET, pages::asset)
        .on(&endpoint::LOGIN_PAGE, login::show)
        .on(&endpoint::LOGIN, login::log_in)
        .on(&endpoint::LOGOUT, login::log_out)
        // The OpenAI API
        .on(&endpoint::OPENAI_MODELS, openai::models)
        .on(&endpoint::OPENAI_MODEL, openai::model)
        .on(&endpoint::OPENAI_COMPLETIONS, openai::completions::complete)
        .on(&endpoint::OPENAI_CHAT_COMPLETIONS, openai::chat::complete)
        .on(&endpoint::OPENAI_RESPONSES, openai::responses::respond)
        // The Anthropic API
        .on(&endpoint::ANTHROPIC_MESSAGES, anthropic::create)
        .on(&endpoint::ANTHROPIC_COUNT_TOKENS, anthropic::count_tokens)
}

/// Routes by what is checked before their handlers run.
#[derive(Default)]
struct Routes {
    /// Public, or checked by the handler itself.
    open: Router<Server>,
    /// For callers with a key.
    keyed: Router<Server>,
    /// Those of them that are the OpenAI API.
    openai: Router<Server>,
    /// And those that are the Anthropic API.
    anthropic: Router<Server>,
    /// For callers on this machine.
    admin: Router<Server>,
    /// What has a handler, in the order in which they were attached.
    attached: Vec<&'static Endpoint>,
}

impl Routes {
    fn on<H, T>(self, endpoint: &'static Endpoint, handler: H) -> Self
    where
        H: Handler<T, Server>,
        T: 'static,
    {
        let method = MethodFilter::try_from(endpoint.method.clone());
        let method = method.expect("endpoints have methods that routes can have");
        self.attach(endpoint, MethodRouter::new().on(method, handler))
    }

    fn attach(mut self, endpoint: &'static Endpoint, handler: MethodRouter<Server>) -> Self {
        self.attached.push(endpoint);
        let (routes, is_strict) = match endpoint.auth {
            Auth::Key => match endpoint.dialect() {
                Dialect::OpenAi => (&mut self.openai, true),
                Dialect::Anthropic => (&mut self.anthropic, true),
                Dialect::Tinker => (&mut self.keyed, true),
            },
            Auth::Admin => (&mut self.admin, true),
            // Browsers and monitoring may add parameters of their own.
            Auth::Public | Auth::SignedLink | Auth::Login => (&mut self.open, false),
        };
        let handler = if is_strict && endpoint.query.is_none() {
            handler.route_layer(middleware::from_fn(extract::refuse_query))
        } else {
            handler
        };
        *routes = std::mem::take(routes).route(&pattern(endpoint), handler);
        self
    }
}

/// Returns the pattern of an endpoint's path. Names of models have slashes, which not every client writes as `%2F`.
pub(crate) fn pattern(endpoint: &Endpoint) -> String {
    endpoint.path.replace("{model}", "{*model}")
}

async fn not_found(request: Request) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    if let Some(id) = checkpoints::id_without_kind(path) {
        return checkpoints::no_kind(id);
    }
    if let Some(absent) = openai::absent(path) {
        return absent;
    }
    ApiError::not_found(format!("{method} {path} is not implemented by this server"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_has_one_handler() {
        let sorted = |endpoints: &[&'static Endpoint]| {
            let mut names: Vec<_> = endpoints.iter().map(|endpoint| endpoint.name).collect();
            names.sort_unstable();
            names
        };
        // Two handlers for one method and path also make axum panic.
        assert_eq!(sorted(&routes().attached), sorted(endpoint::ALL));
    }
}
