//! What is taken if nothing is given, as a file that `conformance/sdk-parity` compares with the official SDK.
//!
//! `TINKRS_BLESS=1 cargo test -p tinkrs --test it defaults` rewrites it.

use crate::support::{datums, sample, sampling, service};
use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tinkrs::admin::{AuditEntry, BillingUsage};
use tinkrs::rest::{Checkpoint, SessionSearch, TrainingRun, WeightsInfo};
use tinkrs::sampling::RetryConfig;
use tinkrs::training::{DimuonParams, ModelInfo};
use tinkrs::{
    AdamParams, ForwardBackwardOutput, LoraConfig, SampleOutput, SamplingParams, TinkerPath,
};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::BASE_MODEL;
use tinkrs_types::protocol::{ClientConfig, DynamicConfig};
use tinkrs_wire::Body;
use tinkrs_wire::op::asample::SampleRequest;
use tinkrs_wire::op::create_model::CreateModelRequest;
use tinkrs_wire::op::save_weights::SaveWeightsRequest;

/// Defaults by the path of what they are the default of.
#[derive(Default)]
struct Defaults(BTreeMap<String, Value>);

impl Defaults {
    fn add(&mut self, path: &str, value: impl Serialize) {
        let value = serde_json::to_value(value).expect("defaults are plain values");
        self.0.insert(path.to_owned(), value);
    }

    /// Adds the members of a value.
    fn members(&mut self, path: &str, value: impl Serialize) {
        let value = serde_json::to_value(value).expect("settings have text keys");
        for (name, member) in value.as_object().expect("a struct has members") {
            self.add(&format!("{path}::{name}"), member);
        }
    }

    /// Adds what a query says that was made without settings.
    fn query(&mut self, path: &str, server: &ScriptedServer, endpoint: &'static str) {
        let requests = server.requests_to(endpoint);
        let last = requests.last().expect("the call was made");
        for (name, text) in last.query() {
            let number = text.parse::<u64>().map(Value::from);
            let value = number.unwrap_or_else(|_| text.into());
            self.add(&format!("{path}::{name}"), value);
        }
    }
}

fn of_types(defaults: &mut Defaults) -> Result<()> {
    defaults.members("AdamParams", AdamParams::default());
    defaults.members("LoraConfig", LoraConfig::default());
    defaults.members("SamplingParams", SamplingParams::default());
    defaults.members("rest::SessionSearch", SessionSearch::default());
    let path = "tinkrs_types::protocol::ClientConfig";
    defaults.members(path, ClientConfig::default());
    let path = "tinkrs_types::protocol::DynamicConfig";
    defaults.members(path, DynamicConfig::default());
    let dimuon = DimuonParams::new(0.5);
    defaults.add("training::DimuonParams::beta1", dimuon.beta1);
    defaults.add(
        "training::DimuonParams::grad_clip_norm",
        dimuon.grad_clip_norm,
    );
    let retry = RetryConfig::default();
    for (name, value) in [
        (
            "progress_timeout",
            json!(retry.progress_timeout.as_secs_f64()),
        ),
        ("delay_base", json!(retry.delay_base.as_secs_f64())),
        ("delay_max", json!(retry.delay_max.as_secs_f64())),
        ("jitter", json!(retry.jitter)),
        ("enabled", json!(retry.enabled)),
        ("stuck_detection", json!(retry.stuck_detection)),
    ] {
        defaults.add(&format!("sampling::RetryConfig::{name}"), value);
    }
    let pass = ForwardBackwardOutput::default();
    defaults.add("ForwardBackwardOutput::metrics", pass.metrics);
    let output = SampleOutput::default();
    defaults.add(
        "SampleOutput::prompt_cache_hit_tokens",
        output.prompt_cache_hit_tokens,
    );
    Ok(())
}

/// What is read where a server, or a client, leaves a member out.
fn of_absent_members(defaults: &mut Defaults) -> Result<()> {
    let time = "2026-01-02T03:04:05Z";
    let checkpoint: Checkpoint = serde_json::from_value(json!({
        "checkpoint_id": "weights/a", "checkpoint_type": "training", "time": time,
        "tinker_path": "tinker://s:train:0/weights/a",
    }))?;
    defaults.add("rest::Checkpoint::public", checkpoint.public);
    let run: TrainingRun = serde_json::from_value(json!({
        "training_run_id": "s:train:0", "base_model": "m", "model_owner": "o", "is_lora": true,
        "last_request_time": time,
    }))?;
    defaults.add("rest::TrainingRun::corrupted", run.corrupted);
    let entry: AuditEntry = serde_json::from_value(json!({"timestamp": time, "event": "e"}))?;
    defaults.add("admin::AuditEntry::event_details", entry.event_details);
    let usage: BillingUsage = serde_json::from_value(json!({"data": []}))?;
    defaults.add("admin::BillingUsage::sessions", usage.sessions);
    let info: ModelInfo =
        serde_json::from_value(json!({"model_id": "s:train:0", "model_data": {}}))?;
    defaults.add(
        "training::ModelInfo::optimizer_config",
        info.optimizer_config,
    );
    let info: WeightsInfo = serde_json::from_value(json!({"base_model": "m", "is_lora": true}))?;
    defaults.add("rest::WeightsInfo::optimizer_config", info.optimizer_config);

    let body = json!({"session_id": "s", "model_seq_id": 0, "base_model": "m"});
    let create = CreateModelRequest::decode(body.to_string().as_bytes())?;
    let path = "tinkrs_wire::op::create_model::CreateModelRequest::optimizer_config";
    defaults.add(path, create.optimizer_config);
    let save = SaveWeightsRequest::decode(json!({"model_id": "s:train:0"}).to_string().as_bytes())?;
    let path = "tinkrs_wire::op::save_weights::SaveWeightsRequest::overwrite";
    defaults.add(path, save.overwrite);
    let body = json!({"prompt": {"chunks": []}, "sampling_params": {}});
    let sample = SampleRequest::decode(body.to_string().as_bytes())?;
    for (name, value) in [
        ("num_samples", sample.num_samples),
        ("topk_prompt_logprobs", sample.topk_prompt_logprobs),
        ("topk_sample_logprobs", sample.topk_sample_logprobs),
        ("prompt_alt_tokens_k", sample.prompt_alt_tokens_k),
    ] {
        defaults.add(
            &format!("tinkrs_wire::op::asample::SampleRequest::{name}"),
            value,
        );
    }
    Ok(())
}

/// What calls send if nothing is set.
async fn of_requests(defaults: &mut Defaults) -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = service(&server);
    let training = service.create_lora_training_client(BASE_MODEL).await?;
    let body = &server.requests_to("create_model")[0].body;
    let lora = CreateModelRequest::decode(body)?.lora_config;
    defaults.members("training::operation::CreateLoraTrainingClient", lora);
    training.forward_backward(datums([1])).await?;
    training.save_state("a").await?;
    let saved = SaveWeightsRequest::decode(&server.requests_to("save_weights")[0].body)?;
    defaults.add("Request<SaveState>::overwrite", saved.overwrite);

    sample(&sampling(&server).await?).await?;
    let sampled = SampleRequest::decode(&server.requests_to("asample")[0].body)?;
    let path = "sampling::CreateSamplingClient::record_stability_info";
    defaults.add(path, sampled.record_stability_info);
    for (name, value) in [
        ("prompt_logprobs", json!(sampled.prompt_logprobs)),
        ("topk_prompt_logprobs", json!(sampled.topk_prompt_logprobs)),
        ("topk_sample_logprobs", json!(sampled.topk_sample_logprobs)),
        ("prompt_alt_tokens", json!(sampled.prompt_alt_tokens_k)),
    ] {
        defaults.add(&format!("sampling::Sample::{name}"), value);
    }
    sample(&training.save_weights_and_get_sampling_client().await?).await?;
    let sampled = SampleRequest::decode(&server.requests_to("asample")[1].body)?;
    let path = "Request<SaveWeightsAndGetSamplingClient>::record_stability_info";
    defaults.add(path, sampled.record_stability_info);

    let rest = service.create_rest_client();
    // What is asked for counts here, not what the scripted server makes of it.
    let _ = rest.list_training_runs().await;
    defaults.query("rest::ListTrainingRuns", &server, "list_training_runs");
    let _ = rest.list_user_checkpoints().await;
    defaults.query(
        "rest::ListUserCheckpoints",
        &server,
        "list_user_checkpoints",
    );
    let _ = rest.list_sessions().await;
    defaults.query("rest::ListSessions", &server, "list_sessions");
    let _ = rest.get_training_run(training.model_id()).await;
    defaults.query("Scoped<TrainingRun>", &server, "get_training_run");
    let path: TinkerPath = "tinker://s:train:0/weights/a".parse()?;
    let _ = rest.get_training_run_by_tinker_path(&path).await;
    defaults.query("Scoped<TrainingRun>", &server, "get_training_run");
    let _ = rest.get_session(training.session_id()).await;
    defaults.query("Scoped<SessionInfo>", &server, "get_session");
    Ok(())
}

#[tokio::test]
async fn defaults_are_those_of_the_file_that_is_compared_with_the_official_sdk() -> Result<()> {
    let mut defaults = Defaults::default();
    of_types(&mut defaults)?;
    of_absent_members(&mut defaults)?;
    of_requests(&mut defaults).await?;
    let found = serde_json::to_string_pretty(&defaults.0)? + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = file.join("../../conformance/sdk-parity/defaults.json");
    if std::env::var_os("TINKRS_BLESS").is_some() {
        std::fs::write(&file, &found)?;
    }
    let kept: BTreeMap<String, Value> = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    let names: BTreeSet<_> = defaults.0.keys().chain(kept.keys()).collect();
    let changed = names
        .into_iter()
        .filter(|name| defaults.0.get(*name) != kept.get(*name));
    let changed: Vec<_> = changed.collect();
    let file = file.display();
    assert!(
        changed.is_empty(),
        "TINKRS_BLESS=1 rewrites {file}: {changed:?}"
    );
    Ok(())
}
