//! Bodies of answers: what we make of them is what the SDK makes of them, defaults included.

use super::{Vector, vectors};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tinkrs_types::{
    AuditLog, BillingUsage, CheckpointPage, ClientConfig, CopiedWeights, DynamicConfig,
    ExternalSave, ExternalWeightsUrls, ModelInfo, OptimStepOutput, Promise, SamplerInfo,
    ServerCapabilities, SessionInfo, SessionSearchPage, StorageUsage, Timestamp, TraceExport,
    TrainingRun, TrainingRunPage, WeightsInfo, WhoAmI,
};
use tinkrs_wire::op::auth_token::AuthTokenResponse;
use tinkrs_wire::op::create_custom_loss::CreateCustomLossResult;
use tinkrs_wire::op::create_model::CreateModelResult;
use tinkrs_wire::op::create_sampling_session::CreateSamplingSessionResponse;
use tinkrs_wire::op::create_session::CreateSessionResponse;
use tinkrs_wire::op::get_api_key::ApiKey;
use tinkrs_wire::op::healthz::Health;
use tinkrs_wire::op::join_sampling_session::JoinSamplingSessionResponse;
use tinkrs_wire::op::list_sessions::ListSessionsResponse;
use tinkrs_wire::op::load_weights::LoadWeightsResult;
use tinkrs_wire::op::retrieve_future::{Reply, encode_try_again, queue_status};
use tinkrs_wire::op::retrieve_futures::RetrieveFuturesResponse;
use tinkrs_wire::op::save_weights::SaveWeightsResult;
use tinkrs_wire::op::save_weights_for_sampler::SaveWeightsForSamplerResult;
use tinkrs_wire::op::session_heartbeat::SessionHeartbeatResponse;
use tinkrs_wire::op::telemetry::TelemetryResponse;
use tinkrs_wire::op::unload_model::UnloadModelResult;
use tinkrs_wire::{Body, header};

#[test]
fn every_answer_means_to_us_what_it_means_to_the_sdk() {
    for vector in vectors("responses") {
        let seen = seen_by_us(&vector);
        let expected = with_tag(&vector, &seen);
        if let Err(difference) = same(&seen, &expected) {
            panic!(
                "{}: {difference}\nours {seen:#}\nSDK's {expected:#}",
                vector.name
            );
        }
    }
}

/// Reads the body and shows what was read.
fn seen_by_us(vector: &Vector) -> Value {
    fn plain<T: DeserializeOwned + Serialize>(vector: &Vector) -> Value {
        let read: T = serde_json::from_slice(&vector.bytes("body"))
            .unwrap_or_else(|e| panic!("{}: {e}", vector.name));
        serde_json::to_value(read).unwrap()
    }
    fn tagged<T: Body>(vector: &Vector) -> Value {
        let read: T = serde_json::from_slice(&vector.bytes("body"))
            .unwrap_or_else(|e| panic!("{}: {e}", vector.name));
        serde_json::from_slice(&read.encode()).unwrap()
    }
    match vector.subject() {
        "auth_token" => plain::<AuthTokenResponse>(vector),
        "client_config" => plain::<ClientConfig>(vector),
        "client_dynamic_config" => plain::<DynamicConfig>(vector),
        "copy_weights" => plain::<CopiedWeights>(vector),
        "create_custom_loss" => tagged::<CreateCustomLossResult>(vector),
        "create_model" => tagged::<CreateModelResult>(vector),
        "create_sampling_session" => tagged::<CreateSamplingSessionResponse>(vector),
        "create_session" => tagged::<CreateSessionResponse>(vector),
        "export_session_trace" => plain::<TraceExport>(vector),
        "get_api_key" => plain::<ApiKey>(vector),
        "get_audit_log" => plain::<AuditLog>(vector),
        "get_billing_usage" => plain::<BillingUsage>(vector),
        "get_current_checkpoint_storage_usage" => plain::<StorageUsage>(vector),
        "get_external_weights_urls" => plain::<ExternalWeightsUrls>(vector),
        "get_info" => tagged::<ModelInfo>(vector),
        "get_sampler" => plain::<SamplerInfo>(vector),
        "get_server_capabilities" => plain::<ServerCapabilities>(vector),
        "get_session" => plain::<SessionInfo>(vector),
        "get_training_run" => plain::<TrainingRun>(vector),
        "healthz" => plain::<Health>(vector),
        "join_sampling_session" => tagged::<JoinSamplingSessionResponse>(vector),
        "list_checkpoints" => plain::<CheckpointPage>(vector),
        "list_sessions" => plain::<ListSessionsResponse>(vector),
        "list_training_runs" => plain::<TrainingRunPage>(vector),
        "load_weights" => tagged::<LoadWeightsResult>(vector),
        "optim_step" => plain::<OptimStepOutput>(vector),
        "promise" => plain::<Promise>(vector),
        "request_failed" | "try_again" => reply(vector),
        "retrieve_futures" => plain::<RetrieveFuturesResponse>(vector),
        "save_weights" => tagged::<SaveWeightsResult>(vector),
        "save_weights_external" => tagged::<ExternalSave>(vector),
        "save_weights_for_sampler" => tagged::<SaveWeightsForSamplerResult>(vector),
        "search_sessions" => plain::<SessionSearchPage>(vector),
        "session_heartbeat" => tagged::<SessionHeartbeatResponse>(vector),
        "telemetry" => plain::<TelemetryResponse>(vector),
        "unload_model" => tagged::<UnloadModelResult>(vector),
        "weights_info" => plain::<WeightsInfo>(vector),
        // The SDK makes it from the claims of a token, which are no body of ours.
        "whoami" => {
            let read: WhoAmI = serde_json::from_value(vector.json["parsed"].clone()).unwrap();
            serde_json::to_value(read).unwrap()
        }
        unknown => panic!("no answer is known for `{unknown}`: add its type here"),
    }
}

/// Answers of `retrieve_future`, which are told apart before they are read.
fn reply(vector: &Vector) -> Value {
    let body = vector.bytes("body");
    match Reply::decode(header::JSON, Bytes::from(body.clone())).unwrap() {
        Reply::Failed(failed) => serde_json::to_value(failed).unwrap(),
        Reply::TryAgain(status) => {
            assert_eq!(queue_status(&body), Some(status.clone()));
            encode_try_again(&"request-1".into(), &status)
        }
        // Without its tag, the SDK sees "not yet" only in the body of a status 408.
        Reply::Json(_) => encode_try_again(&"request-1".into(), &queue_status(&body).unwrap()),
        other => panic!("{}: {other:?}", vector.name),
    }
}

/// The SDK's view, with the tag that we write and it may not have been sent.
fn with_tag(vector: &Vector, seen: &Value) -> Value {
    let mut expected = vector.json["parsed"].clone();
    if expected.get("type").is_some_and(Value::is_null) {
        expected["type"] = seen["type"].clone();
    }
    // The SDK's model has no such member; its client takes it from the body by hand.
    if vector.subject() == "try_again" {
        expected["queue_state_reason"] = vector.json["body"]["queue_state_reason"].clone();
    }
    expected
}

/// Compares values, where a null is the same as an absent member.
fn same(ours: &Value, theirs: &Value) -> Result<(), String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for name in ours.keys().chain(theirs.keys()) {
                let (ours, theirs) = (ours.get(name), theirs.get(name));
                let null = &Value::Null;
                same(ours.unwrap_or(null), theirs.unwrap_or(null))
                    .map_err(|difference| format!("{name}: {difference}"))?;
            }
            Ok(())
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            let mut pairs = ours.iter().zip(theirs);
            pairs.try_for_each(|(ours, theirs)| same(ours, theirs))
        }
        // The SDK keeps the zone that a time came with, we keep the moment.
        (Value::String(ours), Value::String(theirs))
            if ours
                .parse::<Timestamp>()
                .is_ok_and(|ours| theirs.parse().is_ok_and(|theirs: Timestamp| ours == theirs)) =>
        {
            Ok(())
        }
        _ if ours == theirs => Ok(()),
        _ => Err(format!("{ours} is not {theirs}")),
    }
}

#[test]
fn a_difference_between_answers_is_seen() {
    assert!(same(&json!({"a": null, "b": [1]}), &json!({"b": [1]})).is_ok());
    assert!(same(&json!({"a": 0}), &json!({})).is_err());
    assert!(same(&json!([1]), &json!([1, 2])).is_err());
    assert!(same(&json!(1), &json!(1.0)).is_err());
}
