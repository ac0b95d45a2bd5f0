//! The table of endpoints.
//!
//! Unless a declaration says otherwise, an endpoint needs an API key, reads no query, takes no body,
//! answers with the result, and is part of the official API.

use super::declare::{Object, body, delete, get, json, lower_case, post, put, text};
use super::{Auth, Clients, Content, Endpoint, JsonType, Query};
use crate::anthropic::{
    AnswerMessage, BetaQuery, CountTokensRequest, MessageEvent, MessagesRequest, TokenCount,
};
use crate::header;
use crate::json::Empty;
use crate::op::asample::{self, SampleRequest};
use crate::op::assign_session_project::AssignSessionProjectRequest;
use crate::op::auth_token::{AuthTokenRequest, AuthTokenResponse};
use crate::op::cancel_future::CancelFutureRequest;
use crate::op::client_config::ClientConfigRequest;
use crate::op::copy_weights::CopyWeightsRequest;
use crate::op::create_custom_loss::{CreateCustomLossRequest, CreateCustomLossResult};
use crate::op::create_model::{CreateModelRequest, CreateModelResult};
use crate::op::create_sampling_session::{
    CreateSamplingSessionRequest, CreateSamplingSessionResponse,
};
use crate::op::create_session::{CreateSessionRequest, CreateSessionResponse};
use crate::op::data_folder::FolderProof;
use crate::op::finish_session::FinishSessionRequest;
use crate::op::get_api_key::ApiKey;
use crate::op::get_info::GetInfoRequest;
use crate::op::healthz::Health;
use crate::op::join_sampling_session::{JoinSamplingSessionRequest, JoinSamplingSessionResponse};
use crate::op::list_sessions::ListSessionsResponse;
use crate::op::load_weights::{LoadWeightsRequest, LoadWeightsResult};
use crate::op::metrics::{LogMetricsRequest, MetricsQuery, RunMetrics};
use crate::op::optim_step::OptimStepRequest;
use crate::op::retrieve_future::RetrieveFutureRequest;
use crate::op::retrieve_futures::{RetrieveFuturesRequest, RetrieveFuturesResponse};
use crate::op::run_view::{
    EventsQuery, MetricsEvent, OperationsQuery, RunOperations, RunSummaries, RunsQuery, StepData,
    StepQuery,
};
use crate::op::save_weights::{SaveWeightsRequest, SaveWeightsResult};
use crate::op::save_weights_external::SaveWeightsExternalRequest;
use crate::op::save_weights_for_sampler::{
    SaveWeightsForSamplerRequest, SaveWeightsForSamplerResult,
};
use crate::op::server_view::ServerView;
use crate::op::session_heartbeat::{SessionHeartbeatRequest, SessionHeartbeatResponse};
use crate::op::set_checkpoint_ttl::SetCheckpointTtlRequest;
use crate::op::studio::{
    CreateLoginLinkRequest, LoginLink, ShareRunRequest, SharedRun, StartDemoRequest,
};
use crate::op::telemetry::TelemetryResponse;
use crate::op::tokenizer::TokenizerFiles;
use crate::op::unload_model::{UnloadModelRequest, UnloadModelResult};
use crate::op::weights_info::WeightsInfoRequest;
use crate::op::{forward, forward_backward};
use crate::openai::chat::{ChatCompletion, ChatCompletionChunk, ChatCompletionRequest};
use crate::openai::completions::{Completion, CompletionRequest};
use crate::openai::models::{ModelCard, ModelList};
use crate::openai::responses::ResponsesRequest;
use crate::query::{
    AuditQuery, ImportQuery, LinkQuery, LoginForm, LoginQuery, LogoutQuery, NonceQuery, PageQuery,
    ScopeQuery, StorageQuery, TokenizerQuery, UsageQuery,
};
use tinkrs_types::admin::{AuditLog, BillingUsage, StorageUsage};
use tinkrs_types::protocol::{ClientConfig, DynamicConfig, TelemetryBatch};
use tinkrs_types::rest::{
    CheckpointPage, CopiedWeights, ExternalWeightsUrls, ImportedWeights, SamplerInfo, TrainingRun,
    TrainingRunPage, WeightsInfo,
};
use tinkrs_types::service::ServerCapabilities;
use tinkrs_types::session::{SessionInfo, SessionSearch, SessionSearchPage, TraceExport};
use tinkrs_types::training::{ExternalSave, ModelInfo, OptimStepOutput};

/// Declares endpoints, each under its own name, and lists them all.
macro_rules! endpoints {
    ($($(#[doc = $doc:literal])+ $name:ident = $declared:expr;)+) => {
        $(
            $(#[doc = $doc])+
            pub static $name: Endpoint = {
                const NAME: [u8; stringify!($name).len()] = lower_case(stringify!($name));
                $declared.named(text(&NAME), concat!($($doc),+).trim_ascii())
            };
        )+

        /// Every endpoint, in the order of the declarations.
        pub static ALL: &[&Endpoint] = &[$(&$name),+];
    };
}

endpoints! {
    // Service

    /// Returns the settings that a client reads when it starts.
    CLIENT_CONFIG = post("/api/v1/client/config")
        .takes(body::<ClientConfigRequest>())
        .returns(json::<ClientConfig>());

    /// Returns the settings that a client reads again while it runs.
    CLIENT_DYNAMIC_CONFIG = post("/api/v1/client/dynamic_config")
        .takes(body::<ClientConfigRequest>())
        .returns(json::<DynamicConfig>());

    /// Exchanges an API key for a token that is valid for a short time.
    AUTH_TOKEN = post("/api/v1/auth/token")
        .takes(body::<AuthTokenRequest>())
        .returns(json::<AuthTokenResponse>());

    /// Describes the API key of the request.
    GET_API_KEY = get("/api/v1/auth/apikey/me").returns(json::<ApiKey>());

    /// Revokes the API key of the request.
    DELETE_API_KEY = delete("/api/v1/auth/apikey/me").returns(json::<Empty>());

    /// Reports that the server is up.
    HEALTHZ = get("/api/v1/healthz").auth(Auth::Public).returns(json::<Health>());

    /// Lists the models that the server can train and sample from.
    GET_SERVER_CAPABILITIES = get("/api/v1/get_server_capabilities")
        .returns(json::<ServerCapabilities>());

    /// Returns the tokenizer and the chat template of a model.
    TOKENIZER = get("/api/v1/tokenizer")
        .query(Query::of::<TokenizerQuery>())
        .returns(json::<TokenizerFiles>())
        .clients(Clients::Ours);

    /// Takes a client's report about its own work.
    TELEMETRY = post("/api/v1/telemetry")
        .takes(body::<TelemetryBatch>())
        .returns(json::<TelemetryResponse>());

    // Sessions

    /// Starts a session, which owns the models and samplers that are created in it.
    CREATE_SESSION = post("/api/v1/create_session")
        .takes(body::<CreateSessionRequest>())
        .returns(body::<CreateSessionResponse>());

    /// Keeps a session open.
    SESSION_HEARTBEAT = post("/api/v1/session_heartbeat")
        .takes(body::<SessionHeartbeatRequest>())
        .returns(body::<SessionHeartbeatResponse>());

    /// Ends a session.
    FINISH_SESSION = post("/api/v1/sessions/{session_id}/finish")
        .takes(body::<FinishSessionRequest>())
        .returns(json::<Empty>());

    /// Lists the caller's sessions, newest first.
    LIST_SESSIONS = get("/api/v1/sessions")
        .query(Query::of::<PageQuery>())
        .returns(json::<ListSessionsResponse>());

    /// Lists the training runs and samplers of a session.
    GET_SESSION = get("/api/v1/sessions/{session_id}")
        .query(Query::of::<ScopeQuery>())
        .returns(json::<SessionInfo>());

    /// Searches the caller's sessions.
    SEARCH_SESSIONS = post("/api/v1/sessions/search")
        .takes(body::<SessionSearch>())
        .returns(json::<SessionSearchPage>());

    /// Moves a session to a project.
    ASSIGN_SESSION_PROJECT = put("/api/v1/sessions/{session_id}/project")
        .takes(body::<AssignSessionProjectRequest>())
        .returns(json::<Empty>());

    /// Returns a link to a trace of what a session did, for Perfetto.
    EXPORT_SESSION_TRACE = get("/api/v1/sessions/{session_id}/trace_export")
        .returns(json::<TraceExport>());

    // Models

    /// Creates a model to train: a base model with a new LoRA adapter.
    CREATE_MODEL = post("/api/v1/create_model")
        .takes(body::<CreateModelRequest>())
        .promises(body::<CreateModelResult>());

    /// Describes a model.
    GET_INFO = post("/api/v1/get_info")
        .takes(body::<GetInfoRequest>())
        .returns(body::<ModelInfo>());

    /// Ends a model.
    UNLOAD_MODEL = post("/api/v1/unload_model")
        .takes(body::<UnloadModelRequest>())
        .promises(body::<UnloadModelResult>())
        .clients(Clients::Older);

    /// Uploads a custom loss as a graph of operations.
    CREATE_CUSTOM_LOSS = post("/api/v1/create_custom_loss")
        .takes(body::<CreateCustomLossRequest>())
        .promises(body::<CreateCustomLossResult>());

    /// Computes a loss and adds its gradients to those of the model.
    FORWARD_BACKWARD = post("/api/v1/forward_backward")
        .takes(Content::message::<forward_backward::JsonRequest>("ForwardBackwardRequest"))
        .promises(Content::message::<forward_backward::JsonResult>("ForwardBackwardOutput"));

    /// Computes a loss without gradients.
    FORWARD = post("/api/v1/forward")
        .takes(json::<forward::JsonRequest>())
        .promises(Content::message::<forward_backward::JsonResult>("ForwardBackwardOutput"))
        .clients(Clients::Older);

    /// Updates the model's weights with the gradients that were added up.
    OPTIM_STEP = post("/api/v1/optim_step")
        .takes(body::<OptimStepRequest>())
        .promises(json::<OptimStepOutput>());

    // Weights

    /// Saves the weights and the optimizer's state of a model, to continue its training later.
    SAVE_WEIGHTS = post("/api/v1/save_weights")
        .takes(body::<SaveWeightsRequest>())
        .promises(body::<SaveWeightsResult>());

    /// Saves the weights of a model, to sample from them.
    SAVE_WEIGHTS_FOR_SAMPLER = post("/api/v1/save_weights_for_sampler")
        .takes(body::<SaveWeightsForSamplerRequest>())
        .promises(body::<SaveWeightsForSamplerResult>());

    /// Saves the weights of a model as files to download.
    SAVE_WEIGHTS_EXTERNAL = post("/api/v1/save_weights_external")
        .takes(body::<SaveWeightsExternalRequest>())
        .promises(body::<ExternalSave>());

    /// Loads saved weights into a model, or creates a model from them.
    LOAD_WEIGHTS = post("/api/v1/load_weights")
        .takes(body::<LoadWeightsRequest>())
        .promises(body::<LoadWeightsResult>());

    /// Describes the model that a checkpoint was saved from.
    WEIGHTS_INFO = post("/api/v1/weights_info")
        .takes(body::<WeightsInfoRequest>())
        .returns(json::<WeightsInfo>());

    /// Copies a checkpoint, so that the copy is the caller's own.
    COPY_WEIGHTS = post("/api/v1/copy_weights")
        .takes(body::<CopyWeightsRequest>())
        .returns(json::<CopiedWeights>());

    /// Makes checkpoints of an adapter that was trained elsewhere, uploaded as a tar archive.
    IMPORT_WEIGHTS = post("/api/v1/import_weights")
        .query(Query::of::<ImportQuery>())
        .takes(Content::Bytes(header::TAR))
        .returns(json::<ImportedWeights>())
        .clients(Clients::Ours);

    // Sampling

    /// Opens a sampler of a base model or of saved weights.
    CREATE_SAMPLING_SESSION = post("/api/v1/create_sampling_session")
        .takes(body::<CreateSamplingSessionRequest>())
        .returns(body::<CreateSamplingSessionResponse>());

    /// Joins a sampler that another client opened.
    JOIN_SAMPLING_SESSION = post("/api/v1/join_sampling_session")
        .takes(body::<JoinSamplingSessionRequest>())
        .returns(body::<JoinSamplingSessionResponse>());

    /// Describes a sampler.
    GET_SAMPLER = get("/api/v1/samplers/{sampler_id}").returns(json::<SamplerInfo>());

    /// Samples from a model.
    ASAMPLE = post("/api/v1/asample")
        .takes(body::<SampleRequest>())
        .promises(Content::message::<asample::JsonResult>("SampleResponse"));

    // Results

    /// Waits for the result of a request, for a while.
    RETRIEVE_FUTURE = post("/api/v1/retrieve_future")
        .takes(body::<RetrieveFutureRequest>())
        .retrieves();

    /// Waits until one of a sampler's requests completes, for a while.
    RETRIEVE_FUTURES = post("/api/v1/retrieve_futures")
        .takes(body::<RetrieveFuturesRequest>())
        .returns(json::<RetrieveFuturesResponse>());

    /// Cancels a request whose result is no longer needed.
    CANCEL_FUTURE = post("/api/v1/cancel_future")
        .takes(body::<CancelFutureRequest>())
        .returns(json::<Empty>());

    // Training runs and checkpoints

    /// Lists the caller's training runs, the one used last first.
    LIST_TRAINING_RUNS = get("/api/v1/training_runs")
        .query(Query::of::<PageQuery>())
        .returns(json::<TrainingRunPage>());

    /// Describes a training run.
    GET_TRAINING_RUN = get("/api/v1/training_runs/{run_id}")
        .shared()
        .query(Query::of::<ScopeQuery>())
        .returns(json::<TrainingRun>());

    /// Lists the checkpoints of a training run.
    LIST_CHECKPOINTS = get("/api/v1/training_runs/{run_id}/checkpoints")
        .shared()
        .returns(json::<CheckpointPage>());

    /// Lists the checkpoints of a training run, under the path that it had first.
    LIST_MODEL_CHECKPOINTS = get("/api/v1/models/{run_id}/checkpoints")
        .returns(json::<CheckpointPage>())
        .clients(Clients::Older);

    /// Lists the caller's checkpoints of all training runs.
    LIST_USER_CHECKPOINTS = get("/api/v1/checkpoints")
        .query(Query::of::<PageQuery>())
        .returns(json::<CheckpointPage>());

    /// Deletes a checkpoint.
    DELETE_CHECKPOINT = delete("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}")
        .returns(json::<Empty>());

    /// Lets everyone with an API key read a checkpoint.
    PUBLISH_CHECKPOINT = post("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/publish")
        .returns(json::<Empty>());

    /// Makes a published checkpoint private again.
    UNPUBLISH_CHECKPOINT =
        delete("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/publish")
        .returns(json::<Empty>());

    /// Sets how long a checkpoint is kept.
    SET_CHECKPOINT_TTL = put("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/ttl")
        .takes(body::<SetCheckpointTtlRequest>())
        .returns(json::<Empty>());

    /// Redirects to a link to all files of a checkpoint, as a tar archive.
    GET_CHECKPOINT_ARCHIVE =
        get("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/archive")
        .redirects(Content::Bytes(header::TAR))
        .clients(Clients::Older);

    /// Returns links to the files of a checkpoint that was saved for download.
    GET_EXTERNAL_WEIGHTS_URLS =
        get("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/external_weights_urls")
        .returns(json::<ExternalWeightsUrls>());

    // Accounts

    /// Lists what the caller did on a day.
    GET_AUDIT_LOG = get("/api/v1/audit")
        .query(Query::of::<AuditQuery>())
        .returns(json::<AuditLog>());

    /// Reports the caller's usage by hour.
    GET_BILLING_USAGE = get("/api/v1/billing/usage/events")
        .query(Query::of::<UsageQuery>())
        .returns(json::<BillingUsage>());

    /// Reports how much storage the caller's checkpoints use.
    GET_CURRENT_CHECKPOINT_STORAGE_USAGE = get("/api/v1/billing/usage/checkpoints/current")
        .query(Query::of::<StorageQuery>())
        .returns(json::<StorageUsage>());

    // The studio

    /// Lists the caller's runs in a few words each, the one used last first.
    LIST_RUN_SUMMARIES = get("/api/v1/studio/runs")
        .query(Query::of::<RunsQuery>())
        .returns(json::<RunSummaries>())
        .clients(Clients::Ours);

    /// Returns the metrics of a run by step.
    GET_RUN_METRICS = get("/api/v1/training_runs/{run_id}/metrics")
        .shared()
        .query(Query::of::<MetricsQuery>())
        .returns(json::<RunMetrics>())
        .clients(Clients::Ours);

    /// Takes metrics that a client has computed for a step of a run.
    LOG_RUN_METRICS = post("/api/v1/training_runs/{run_id}/metrics")
        .takes(body::<LogMetricsRequest>())
        .returns(json::<Empty>())
        .clients(Clients::Ours);

    /// Lists the operations of a run and why they waited, the latest first.
    LIST_RUN_OPERATIONS = get("/api/v1/training_runs/{run_id}/operations")
        .shared()
        .query(Query::of::<OperationsQuery>())
        .returns(json::<RunOperations>())
        .clients(Clients::Ours);

    /// Returns the data of a step of a run, as far as the journal still has them.
    GET_RUN_STEP = get("/api/v1/training_runs/{run_id}/steps/{step}")
        .shared()
        .query(Query::of::<StepQuery>())
        .returns(json::<StepData>())
        .clients(Clients::Ours);

    /// Tells of changes to the caller's runs as they happen: events `metrics`, `operation` and `run`.
    STUDIO_EVENTS = get("/api/v1/studio/events")
        .shared()
        .query(Query::of::<EventsQuery>())
        .streams(JsonType::of::<MetricsEvent>())
        .clients(Clients::Ours);

    /// Describes what the server does: memory, queues, models and what to look at.
    GET_SERVER_VIEW = get("/api/v1/studio/server")
        .returns(json::<ServerView>())
        .clients(Clients::Ours);

    /// Returns a path that logs a browser in once, as the caller.
    CREATE_LOGIN_LINK = post("/api/v1/studio/login_link")
        .takes(body::<CreateLoginLinkRequest>())
        .returns(json::<LoginLink>())
        .clients(Clients::Ours);

    /// Starts the demo of the server's program as the caller, if it has one and none is running.
    START_DEMO = post("/api/v1/studio/demo")
        .takes(body::<StartDemoRequest>())
        .returns(json::<Empty>())
        .clients(Clients::Ours);

    /// Returns a link that lets anyone read one run for some hours.
    SHARE_RUN = post("/api/v1/training_runs/{run_id}/share")
        .takes(body::<ShareRunRequest>())
        .returns(json::<SharedRun>())
        .clients(Clients::Ours);

    // Outside of the API: links, monitoring, administration, pages

    /// Downloads a file of a checkpoint.
    DOWNLOAD_FILE = get("/downloads/{folder}/{file}")
        .auth(Auth::SignedLink)
        .query(Query::of::<LinkQuery>())
        .returns(Content::Bytes(header::BYTES))
        .clients(Clients::Ours);

    /// Downloads the trace of a session, for Perfetto.
    DOWNLOAD_TRACE = get("/traces/{session_id}")
        .auth(Auth::SignedLink)
        .query(Query::of::<LinkQuery>())
        .returns(Content::Bytes(header::BYTES))
        .clients(Clients::Ours);

    /// Reports the server's metrics, for Prometheus.
    GET_METRICS = get("/metrics")
        .auth(Auth::Public)
        .returns(Content::Text(header::METRICS))
        .clients(Clients::Ours);

    /// Returns this document: all endpoints in the form of OpenAPI.
    OPENAPI = get("/openapi.json")
        .auth(Auth::Public)
        .returns(json::<Object>())
        .clients(Clients::Ours);

    /// Proves that the server holds the data folder that the caller has read.
    DATA_FOLDER = get("/data-folder")
        .auth(Auth::Public)
        .query(Query::of::<NonceQuery>())
        .returns(json::<FolderProof>())
        .clients(Clients::Ours);

    /// Shows the rules by which the server injects faults, and how often each was applied.
    GET_FAULTS = get("/admin/faults")
        .auth(Auth::Admin)
        .returns(json::<Object>())
        .clients(Clients::Ours);

    /// Replaces the rules by which the server injects faults.
    REPLACE_FAULTS = put("/admin/faults")
        .auth(Auth::Admin)
        .takes(json::<Object>())
        .returns(json::<Object>())
        .clients(Clients::Ours);

    /// Removes all rules by which the server injects faults.
    CLEAR_FAULTS = delete("/admin/faults")
        .auth(Auth::Admin)
        .returns(json::<Object>())
        .clients(Clients::Ours);

    /// Shows the caller's sessions as a page.
    SESSIONS_PAGE = get("/sessions")
        .auth(Auth::Login)
        .returns(Content::Text(header::HTML))
        .clients(Clients::Ours);

    /// Shows a session as a page.
    SESSION_PAGE = get("/sessions/{session_id}")
        .auth(Auth::Login)
        .returns(Content::Text(header::HTML))
        .clients(Clients::Ours);

    /// Shows a training run as a page.
    TRAINING_RUN_PAGE = get("/training_runs/{run_id}")
        .auth(Auth::Login)
        .returns(Content::Text(header::HTML))
        .clients(Clients::Ours);

    /// Shows a checkpoint as a page.
    CHECKPOINT_PAGE = get("/checkpoints/{run_id}/{checkpoint_id}")
        .auth(Auth::Login)
        .returns(Content::Text(header::HTML))
        .clients(Clients::Ours);

    // The studio's pages

    /// Shows the caller's runs as a page.
    STUDIO_PAGE = get("/")
        .auth(Auth::Login)
        .returns(Content::Text(header::HTML))
        .clients(Clients::Ours);

    /// Shows a run as a page: curves, operations, checkpoints and data.
    RUN_PAGE = get("/runs/{run_id}")
        .auth(Auth::Login)
        .shared()
        .returns(Content::Text(header::HTML))
        .clients(Clients::Ours);

    /// Shows a page to talk to models.
    PLAYGROUND_PAGE = get("/playground")
        .auth(Auth::Login)
        .returns(Content::Text(header::HTML))
        .clients(Clients::Ours);

    /// Shows the state of the server as a page.
    SERVER_PAGE = get("/server")
        .auth(Auth::Login)
        .returns(Content::Text(header::HTML))
        .clients(Clients::Ours);

    /// Returns a script, a style or a picture of the pages.
    STUDIO_ASSET = get("/assets/{name}")
        .auth(Auth::Public)
        .returns(Content::Bytes(header::BYTES))
        .clients(Clients::Ours);

    /// Asks for a key, or takes a link that logs in once or shows one run.
    LOGIN_PAGE = get("/login")
        .auth(Auth::Public)
        .query(Query::of::<LoginQuery>())
        .returns(Content::Text(header::HTML))
        .clients(Clients::Ours);

    /// Takes a key from a form, and sets the cookie of the pages.
    LOGIN = post("/login")
        .auth(Auth::Public)
        .takes(Content::Form(JsonType::of::<LoginForm>()))
        .clients(Clients::Ours);

    /// Removes the cookies of the pages, and ends all others of the caller if it is to be everywhere.
    LOGOUT = post("/logout")
        .auth(Auth::Public)
        .query(Query::of::<LogoutQuery>())
        .clients(Clients::Ours);

    // The OpenAI API

    /// Lists what can be asked for as `model`: base models, runs and their checkpoints.
    OPENAI_MODELS = get("/v1/models")
        .returns(json::<ModelList>())
        .clients(Clients::Others);

    /// Describes a model by its name.
    OPENAI_MODEL = get("/v1/models/{model}")
        .returns(json::<ModelCard>())
        .clients(Clients::Others);

    /// Draws text that goes on from a prompt.
    OPENAI_COMPLETIONS = post("/v1/completions")
        .takes(body::<CompletionRequest>())
        .returns(json::<Completion>())
        .streams(JsonType::of::<Completion>())
        .clients(Clients::Others);

    /// Draws the next message of a conversation.
    OPENAI_CHAT_COMPLETIONS = post("/v1/chat/completions")
        .takes(body::<ChatCompletionRequest>())
        .returns(json::<ChatCompletion>())
        .streams(JsonType::of::<ChatCompletionChunk>())
        .clients(Clients::Others);

    /// Draws the next items of a conversation.
    OPENAI_RESPONSES = post("/v1/responses")
        .takes(body::<ResponsesRequest>())
        .returns(json::<Object>())
        .streams(JsonType::of::<Object>())
        .clients(Clients::Others);

    // The Anthropic API

    /// Draws the next message of a conversation.
    ANTHROPIC_MESSAGES = post("/v1/messages")
        .query(Query::of::<BetaQuery>())
        .takes(body::<MessagesRequest>())
        .returns(json::<AnswerMessage>())
        .streams(JsonType::of::<MessageEvent>())
        .clients(Clients::Others);

    /// Counts the tokens of a conversation.
    ANTHROPIC_COUNT_TOKENS = post("/v1/messages/count_tokens")
        .query(Query::of::<BetaQuery>())
        .takes(body::<CountTokensRequest>())
        .returns(json::<TokenCount>())
        .clients(Clients::Others);
}
