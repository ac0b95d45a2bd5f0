//! JSON bodies of requests: read and written again, they are the same value with the same
//! absent members. Numbers must also keep their kind, so that `1` does not become `1.0`.

use super::{routes, vectors};
use serde_json::Value;
use tinkrs_types::{SessionSearch, TelemetryBatch};
use tinkrs_wire::op::{
    asample, assign_session_project, auth_token, cancel_future, client_config, copy_weights,
    create_custom_loss, create_model, create_sampling_session, create_session, finish_session,
    get_info, join_sampling_session, load_weights, optim_step, retrieve_future, retrieve_futures,
    save_weights, save_weights_external, save_weights_for_sampler, session_heartbeat,
    set_checkpoint_ttl, unload_model, weights_info,
};
use tinkrs_wire::{Body, DecodeError};

#[test]
fn every_request_of_the_sdk_comes_out_as_it_came_in() {
    for vector in vectors("requests") {
        let (operation, variant) = (vector.text("operation"), vector.text("variant"));
        let written = write_again(operation, &vector.bytes("body"))
            .unwrap_or_else(|e| panic!("{}: {e}: {:?}", vector.name, e));
        assert_eq!(written, vector.json["body"], "{}", vector.name);
        let (method, path) = routes::of(operation, variant);
        assert_eq!(
            (vector.text("method"), vector.text("path")),
            (method, path.as_str()),
            "{}",
            vector.name
        );
    }
}

/// Decodes a body and encodes what was decoded.
pub(super) fn write_again(operation: &str, body: &[u8]) -> Result<Value, DecodeError> {
    fn again<B: Body>(body: &[u8]) -> Result<Value, DecodeError> {
        let written = B::decode(body)?.encode();
        Ok(serde_json::from_slice(&written)?)
    }
    match operation {
        "asample" => again::<asample::SampleRequest>(body),
        "assign_session_project" => {
            again::<assign_session_project::AssignSessionProjectRequest>(body)
        }
        "auth_token" => again::<auth_token::AuthTokenRequest>(body),
        "cancel_future" => again::<cancel_future::CancelFutureRequest>(body),
        "client_config" | "client_dynamic_config" => {
            again::<client_config::ClientConfigRequest>(body)
        }
        "copy_weights" => again::<copy_weights::CopyWeightsRequest>(body),
        "create_custom_loss" => again::<create_custom_loss::CreateCustomLossRequest>(body),
        "create_model" => again::<create_model::CreateModelRequest>(body),
        "create_sampling_session" => {
            again::<create_sampling_session::CreateSamplingSessionRequest>(body)
        }
        "create_session" => again::<create_session::CreateSessionRequest>(body),
        "finish_session" => again::<finish_session::FinishSessionRequest>(body),
        "get_info" => again::<get_info::GetInfoRequest>(body),
        "join_sampling_session" => again::<join_sampling_session::JoinSamplingSessionRequest>(body),
        "load_weights" => again::<load_weights::LoadWeightsRequest>(body),
        "optim_step" => again::<optim_step::OptimStepRequest>(body),
        "retrieve_future" => again::<retrieve_future::RetrieveFutureRequest>(body),
        "retrieve_futures" => again::<retrieve_futures::RetrieveFuturesRequest>(body),
        "save_weights" => again::<save_weights::SaveWeightsRequest>(body),
        "save_weights_external" => again::<save_weights_external::SaveWeightsExternalRequest>(body),
        "save_weights_for_sampler" => {
            again::<save_weights_for_sampler::SaveWeightsForSamplerRequest>(body)
        }
        "search_sessions" => again::<SessionSearch>(body),
        "session_heartbeat" => again::<session_heartbeat::SessionHeartbeatRequest>(body),
        "set_checkpoint_ttl" => again::<set_checkpoint_ttl::SetCheckpointTtlRequest>(body),
        "telemetry" => again::<TelemetryBatch>(body),
        "unload_model" => again::<unload_model::UnloadModelRequest>(body),
        "weights_info" => again::<weights_info::WeightsInfoRequest>(body),
        unknown => panic!("no body is known for `{unknown}`: add its decoder here"),
    }
}
