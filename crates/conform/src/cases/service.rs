//! What a client asks a server before it does anything.

use crate::case::{Case, OK, Verdict, case, ensure, mismatch};
use crate::suite;
use crate::trial::Trial;
use crate::wire::{Sent, shown};
use serde_json::{Value, json};
use tinkrs_wire::{SDK_VERSION, endpoint};

pub(super) const CASES: &[Case] = &[
    case!(
        "service/health",
        "`healthz` says `ok`.",
        "protocol 9.3",
        health
    ),
    case!(
        "service/config",
        "`client/config` is an object whose flags have their types; without it no client starts.",
        "protocol 9.1",
        config
    ),
    case!(
        "service/dynamic-config",
        "`client/dynamic_config` is an object whose flags have their types, or 404.",
        "protocol 9.2",
        dynamic_config
    )
    .optional(),
    case!(
        "service/capabilities",
        "`get_server_capabilities` lists the models, among them the one under test.",
        "protocol 9.4",
        capabilities
    ),
    case!(
        "service/unknown-headers",
        "Headers that the server does not know are ignored.",
        "protocol 20.1",
        unknown_headers
    ),
    case!(
        "service/telemetry",
        "Telemetry is accepted, whatever is in its events.",
        "protocol 16",
        telemetry
    ),
    case!(
        "service/token",
        "A key is exchanged for a token, if the config asks for that.",
        "protocol 3.6",
        token
    )
    .optional(),
];

async fn health(trial: &Trial) -> Verdict {
    let health = trial
        .wire()
        .send(&Sent::to(&endpoint::HEALTHZ))
        .await?
        .object()?;
    ensure(
        health["status"] == "ok",
        "`status` to be `ok`",
        shown(&health.to_string()),
    )?;
    OK
}

type HasType = fn(&Value) -> bool;

/// Names of flags with the type that the client reads them as.
const FLAGS: &[(&str, HasType)] = &[
    ("pjwt_auth_enabled", Value::is_boolean),
    ("credential_default_source", Value::is_string),
    ("sample_dispatch_bytes_semaphore_size", Value::is_u64),
    ("inflight_response_bytes_semaphore_size", Value::is_u64),
    ("parallel_fwdbwd_chunks", Value::is_boolean),
    ("proto_compress_fwdbwd", Value::is_boolean),
    ("fwdbwd_max_chunk_len", Value::is_u64),
    ("fwdbwd_max_chunk_bytes_count", Value::is_u64),
    ("fwdbwd_dispatch_bytes_semaphore_size", Value::is_u64),
    ("billing_exception_max_pause_duration_sec", Value::is_u64),
    ("sample_no_retries", Value::is_boolean),
    ("sample_enable_stuck_detection", Value::is_boolean),
    ("sample_max_concurrent_requests", Value::is_u64),
    ("create_model_via_load_weights", Value::is_boolean),
    ("sample_use_retrieve_futures", Value::is_boolean),
    ("custom_loss_server_side", Value::is_boolean),
    ("sample_join_sampling_session", Value::is_boolean),
    ("refresh_interval_sec", Value::is_u64),
    ("sample_cancel_enabled", Value::is_boolean),
    ("sample_cancel_max_batch_size", Value::is_u64),
];

fn check_flags(found: &Value) -> Verdict {
    for (name, has_type) in FLAGS {
        if let Some(value) = found.get(name) {
            let expected = format!("`{name}` to have the client's type");
            ensure(has_type(value), expected, shown(&value.to_string()))?;
        }
    }
    OK
}

async fn config(trial: &Trial) -> Verdict {
    let body = json!({"sdk_version": SDK_VERSION});
    check_flags(&trial.wire().post(&endpoint::CLIENT_CONFIG, &body).await?)
}

async fn dynamic_config(trial: &Trial) -> Verdict {
    let body = json!({"sdk_version": SDK_VERSION});
    check_flags(
        &trial
            .wire()
            .post(&endpoint::CLIENT_DYNAMIC_CONFIG, &body)
            .await?,
    )
}

async fn capabilities(trial: &Trial) -> Verdict {
    let sent = Sent::to(&endpoint::GET_SERVER_CAPABILITIES);
    let found = trial.wire().send(&sent).await?.object()?;
    let Some(models) = found["supported_models"].as_array() else {
        return Err(mismatch(
            "a list `supported_models`",
            shown(&found.to_string()),
        ));
    };
    let model = &trial.shared.model;
    ensure(
        !model.is_empty(),
        "a model that can be trained and sampled",
        shown(&found.to_string()),
    )?;
    let is_listed = models
        .iter()
        .any(|offer| offer["model_name"] == model.as_str());
    ensure(
        is_listed,
        format_args!("`{model}` in the list"),
        shown(&found.to_string()),
    )?;
    OK
}

async fn unknown_headers(trial: &Trial) -> Verdict {
    let sent = Sent::to(&endpoint::GET_SERVER_CAPABILITIES)
        .header("x-stainless-os", "Other:conform")
        .header("x-conform", "anything");
    trial.wire().send(&sent).await?.success()?;
    OK
}

async fn telemetry(trial: &Trial) -> Verdict {
    let event = json!({"event": "GENERIC_EVENT", "event_id": "00000000-0000-4000-8000-000000000001",
        "event_session_index": 0, "severity": "INFO", "timestamp": "2026-01-01T00:00:00Z",
        "event_name": "conform", "event_data": {"any": [1, null, {"deep": true}]}});
    let body = json!({"events": [event], "platform": "Linux", "sdk_version": SDK_VERSION,
        "session_id": trial.session().await?, "process_uuid": "00000000-0000-4000-8000-000000000002"});
    let found = trial.wire().post(&endpoint::TELEMETRY, &body).await?;
    ensure(
        found["status"] == "accepted",
        "`status` to be `accepted`",
        shown(&found.to_string()),
    )?;
    OK
}

async fn token(trial: &Trial) -> Verdict {
    if !trial.shared.config.pjwt_auth_enabled {
        let sent = Sent::to(&endpoint::AUTH_TOKEN).json(&json!({}));
        trial.wire().send(&sent).await?.exists()?;
    }
    suite::exchange(trial.wire()).await?;
    OK
}
