//! Every decoder of the crate, so that the golden vectors, the property tests, the seeded
//! mutations and the fuzz targets (`fuzz/` includes this file) all try the same list.
//!
//! A decoder returns what it read in its JSON form. What was read is also used: written again,
//! measured, indexed out of bounds. None of that may panic, whatever the bytes.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tinkrs_types::admin::{AuditLog, BillingUsage, StorageUsage};
use tinkrs_types::input::Dmel;
use tinkrs_types::protocol::{ClientConfig, DynamicConfig, Promise, TelemetryBatch};
use tinkrs_types::rest::{
    CheckpointPage, CopiedWeights, ExternalWeightsUrls, SamplerInfo, TrainingRun, TrainingRunPage,
    WeightsInfo,
};
use tinkrs_types::sampling::TopkLogprobs;
use tinkrs_types::service::{ServerCapabilities, WhoAmI};
use tinkrs_types::session::{SessionInfo, SessionSearch, SessionSearchPage, TraceExport};
use tinkrs_types::training::{BatchedTensor, ExternalSave, ModelInfo, OptimStepOutput};
use tinkrs_types::{Datum, ForwardBackwardOutput, ModelInput, SampleOutput, TinkerPath};
use tinkrs_wire::op::forward_backward::{Address, ForwardBackwardRequest};
use tinkrs_wire::op::{
    asample, assign_session_project, auth_token, cancel_future, client_config, copy_weights,
    create_custom_loss, create_model, create_sampling_session, create_session, finish_session,
    forward, forward_backward, get_api_key, get_info, healthz, join_sampling_session,
    list_sessions, load_weights, optim_step, retrieve_future, retrieve_futures, save_weights,
    save_weights_external, save_weights_for_sampler, session_heartbeat, set_checkpoint_ttl,
    telemetry, unload_model, weights_info,
};
use tinkrs_wire::{Body, DecodeError, ErrorBody, compress, header};

/// Reads bytes and returns the JSON form of what they say.
pub(crate) type Decoder = fn(&[u8]) -> Result<Value, DecodeError>;

/// The JSON bodies of requests, by operation.
pub(crate) const REQUESTS: &[(&str, Decoder)] = &[
    ("asample", body::<asample::SampleRequest>),
    (
        "assign_session_project",
        body::<assign_session_project::AssignSessionProjectRequest>,
    ),
    ("auth_token", body::<auth_token::AuthTokenRequest>),
    ("cancel_future", body::<cancel_future::CancelFutureRequest>),
    ("client_config", body::<client_config::ClientConfigRequest>),
    (
        "client_dynamic_config",
        body::<client_config::ClientConfigRequest>,
    ),
    ("copy_weights", body::<copy_weights::CopyWeightsRequest>),
    (
        "create_custom_loss",
        body::<create_custom_loss::CreateCustomLossRequest>,
    ),
    ("create_model", body::<create_model::CreateModelRequest>),
    (
        "create_sampling_session",
        body::<create_sampling_session::CreateSamplingSessionRequest>,
    ),
    (
        "create_session",
        body::<create_session::CreateSessionRequest>,
    ),
    (
        "finish_session",
        body::<finish_session::FinishSessionRequest>,
    ),
    ("get_info", body::<get_info::GetInfoRequest>),
    (
        "join_sampling_session",
        body::<join_sampling_session::JoinSamplingSessionRequest>,
    ),
    ("load_weights", body::<load_weights::LoadWeightsRequest>),
    ("optim_step", body::<optim_step::OptimStepRequest>),
    (
        "retrieve_future",
        body::<retrieve_future::RetrieveFutureRequest>,
    ),
    (
        "retrieve_futures",
        body::<retrieve_futures::RetrieveFuturesRequest>,
    ),
    ("save_weights", body::<save_weights::SaveWeightsRequest>),
    (
        "save_weights_external",
        body::<save_weights_external::SaveWeightsExternalRequest>,
    ),
    (
        "save_weights_for_sampler",
        body::<save_weights_for_sampler::SaveWeightsForSamplerRequest>,
    ),
    ("search_sessions", body::<SessionSearch>),
    (
        "session_heartbeat",
        body::<session_heartbeat::SessionHeartbeatRequest>,
    ),
    (
        "set_checkpoint_ttl",
        body::<set_checkpoint_ttl::SetCheckpointTtlRequest>,
    ),
    ("telemetry", body::<TelemetryBatch>),
    ("unload_model", body::<unload_model::UnloadModelRequest>),
    ("weights_info", body::<weights_info::WeightsInfoRequest>),
];

/// The JSON bodies of answers, by operation.
pub(crate) const ANSWERS: &[(&str, Decoder)] = &[
    ("auth_token", plain::<auth_token::AuthTokenResponse>),
    ("client_config", plain::<ClientConfig>),
    ("client_dynamic_config", plain::<DynamicConfig>),
    ("copy_weights", plain::<CopiedWeights>),
    (
        "create_custom_loss",
        tagged::<create_custom_loss::CreateCustomLossResult>,
    ),
    ("create_model", tagged::<create_model::CreateModelResult>),
    (
        "create_sampling_session",
        tagged::<create_sampling_session::CreateSamplingSessionResponse>,
    ),
    (
        "create_session",
        tagged::<create_session::CreateSessionResponse>,
    ),
    ("export_session_trace", plain::<TraceExport>),
    ("get_api_key", plain::<get_api_key::ApiKey>),
    ("get_audit_log", plain::<AuditLog>),
    ("get_billing_usage", plain::<BillingUsage>),
    (
        "get_current_checkpoint_storage_usage",
        plain::<StorageUsage>,
    ),
    ("get_external_weights_urls", plain::<ExternalWeightsUrls>),
    ("get_info", tagged::<ModelInfo>),
    ("get_sampler", plain::<SamplerInfo>),
    ("get_server_capabilities", plain::<ServerCapabilities>),
    ("get_session", plain::<SessionInfo>),
    ("get_training_run", plain::<TrainingRun>),
    ("healthz", plain::<healthz::Health>),
    (
        "join_sampling_session",
        tagged::<join_sampling_session::JoinSamplingSessionResponse>,
    ),
    ("list_checkpoints", plain::<CheckpointPage>),
    (
        "list_sessions",
        plain::<list_sessions::ListSessionsResponse>,
    ),
    ("list_training_runs", plain::<TrainingRunPage>),
    ("load_weights", tagged::<load_weights::LoadWeightsResult>),
    ("optim_step", plain::<OptimStepOutput>),
    ("promise", plain::<Promise>),
    (
        "retrieve_futures",
        plain::<retrieve_futures::RetrieveFuturesResponse>,
    ),
    ("save_weights", tagged::<save_weights::SaveWeightsResult>),
    ("save_weights_external", tagged::<ExternalSave>),
    (
        "save_weights_for_sampler",
        tagged::<save_weights_for_sampler::SaveWeightsForSamplerResult>,
    ),
    ("search_sessions", plain::<SessionSearchPage>),
    (
        "session_heartbeat",
        tagged::<session_heartbeat::SessionHeartbeatResponse>,
    ),
    ("telemetry", plain::<telemetry::TelemetryResponse>),
    ("unload_model", tagged::<unload_model::UnloadModelResult>),
    ("weights_info", plain::<WeightsInfo>),
    ("whoami", plain::<WhoAmI>),
];

/// The other forms of JSON: passes and results of old clients, and news of a request.
pub(crate) const OTHER_JSON: &[(&str, Decoder)] = &[
    ("forward", |bytes| {
        forward::decode(bytes).map(|request| use_request(&request))
    }),
    ("forward_backward", |bytes| {
        ForwardBackwardRequest::decode_json(bytes).map(|request| use_request(&request))
    }),
    ("old_sample", |bytes| {
        let output = asample::decode_result(header::JSON, copy(bytes))?;
        use_sample(&output);
        Ok(asample::encode_json_result(&output))
    }),
    ("old_output", |bytes| {
        let output = forward_backward::decode_result(header::JSON, copy(bytes))?;
        use_output(&output);
        Ok(forward_backward::encode_json_result(&output))
    }),
    ("address", |bytes| {
        Ok(Address::of_json(bytes)?.model_id.into())
    }),
    ("reply", |bytes| {
        let reply = retrieve_future::Reply::decode(header::JSON, copy(bytes))?;
        Ok(format!("{reply:?}").into())
    }),
    ("queue_status", |bytes| {
        Ok(format!("{:?}", retrieve_future::queue_status(bytes)).into())
    }),
    ("error", |bytes| Ok(ErrorBody::message(bytes).into())),
];

/// The protobuf messages, by name.
pub(crate) const MESSAGES: &[(&str, Decoder)] = &[
    ("ForwardBackwardRequest", |bytes| {
        Address::of_message(copy(bytes))?;
        let request = ForwardBackwardRequest::decode(copy(bytes))?;
        use_request(&request);
        let written = request.encode().expect("what was read can be written");
        let again = ForwardBackwardRequest::decode(written.clone().into())?;
        assert_eq!(again.encode().unwrap(), written, "and it stays the same");
        Ok(Value::Null)
    }),
    ("SampleResponse", |bytes| {
        let output = asample::decode_result(header::PROTOBUF, copy(bytes))?;
        use_sample(&output);
        asample::encode_json_result(&output);
        let written = asample::encode_result(output);
        let again = asample::decode_result(header::PROTOBUF, written.clone().into())?;
        assert_eq!(asample::encode_result(again), written, "it stays the same");
        Ok(Value::Null)
    }),
    ("ForwardBackwardOutput", |bytes| {
        let output = forward_backward::decode_result(header::PROTOBUF, copy(bytes))?;
        use_output(&output);
        let written = forward_backward::encode_result(output);
        let again = forward_backward::decode_result(header::PROTOBUF, written.clone().into())?;
        let again = forward_backward::encode_result(again);
        assert_eq!(again, written, "it stays the same");
        Ok(Value::Null)
    }),
];

/// Finds a decoder by name.
pub(crate) fn find(decoders: &[(&str, Decoder)], name: &str) -> Option<Decoder> {
    let found = decoders.iter().find(|(known, _)| *known == name)?;
    Some(found.1)
}

/// Tries the bytes as everything that is neither a message nor JSON.
pub(crate) fn try_rest(bytes: &[u8]) {
    let _ = compress::decompress(bytes, 1 << 20);
    let _ = String::from_utf8_lossy(bytes).parse::<TinkerPath>();
    if let Ok(dmel) = Dmel::new(bytes) {
        use_input(&ModelInput::from_chunks([dmel.clone().into(), dmel.into()]));
    }
}

fn copy(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn body<B: Body>(bytes: &[u8]) -> Result<Value, DecodeError> {
    let written = B::decode(bytes)?.encode();
    Ok(serde_json::from_slice(&written)?)
}

fn tagged<B: Body>(bytes: &[u8]) -> Result<Value, DecodeError> {
    let read: B = serde_json::from_slice(bytes)?;
    Ok(serde_json::from_slice(&read.encode())?)
}

fn plain<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Result<Value, DecodeError> {
    let read: T = serde_json::from_slice(bytes)?;
    Ok(serde_json::to_value(read)?)
}

fn use_request(request: &ForwardBackwardRequest) -> Value {
    for datum in &request.data {
        use_datum(datum);
    }
    request.data.len().into()
}

fn use_datum(datum: &Datum) {
    use_input(datum.model_input());
    for tensor in datum.loss_fn_inputs().values() {
        // A sparse tensor may be larger than its bytes; here it need not be made.
        let cells: usize = tensor.shape().unwrap_or_default().iter().product();
        if cells < 1 << 16 {
            assert!(!tensor.clone().into_dense(0).is_sparse());
        }
    }
}

fn use_input(input: &ModelInput) {
    let _ = (input.len(), input.is_empty(), input.to_tokens());
}

fn use_sample(output: &SampleOutput) {
    for position in [0, 1, usize::MAX] {
        output.prompt_logprob(position);
        output.topk_prompt_logprobs.as_ref().map(use_topk);
        for sequence in &output.sequences {
            sequence.topk_logprobs.as_ref().map(use_topk);
        }
    }
}

fn use_topk(topk: &TopkLogprobs) -> usize {
    let cells = |position| topk.row(position).map_or(0, Iterator::count);
    [0, topk.len(), usize::MAX - 1, usize::MAX].map(cells)[0]
}

fn use_output(output: &ForwardBackwardOutput) {
    for datum in [0, output.datums(), usize::MAX] {
        output.logprobs(datum);
    }
    for field in output
        .records
        .iter()
        .flat_map(|record| record.fields().values())
    {
        use_field(field);
    }
}

fn use_field(field: &BatchedTensor) {
    for datum in [0, field.datums(), field.datums() + 1, usize::MAX] {
        let _ = (field.shape(datum), field.f32(datum), field.i64(datum));
    }
}
