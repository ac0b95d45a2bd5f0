//! Creating models.

use crate::case::{Case, OK, Stop, Verdict, case, ensure};
use crate::trial::{Trial, text};
use crate::wire::{Sent, shown};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use tinkrs_types::protocol::RequestType;
use tinkrs_wire::endpoint;

pub(super) const CASES: &[Case] = &[
    case!(
        "models/official",
        "A model is created by the request that the official client sends, with its optimizer.",
        "protocol 10.1, appendix A",
        official
    )
    .after(&["sessions/create"])
    .time(3),
    case!(
        "models/create",
        "A model is created; its id has the client's form where the client makes ids itself.",
        "protocol 10.1, 7.1",
        create
    )
    .after(&["sessions/create"])
    .time(3),
    case!(
        "models/create-once",
        "A repeated creation returns the first promise, and no second model.",
        "protocol 20.3",
        create_once
    )
    .after(&["models/create"]),
    case!(
        "models/info",
        "`get_info` names the model, its base and the rank that was asked for.",
        "protocol 10.2",
        info
    )
    .after(&["models/create"]),
    case!(
        "models/unknown-base",
        "A base model that the server does not have is refused.",
        "protocol 6.3, pitfalls",
        unknown_base
    )
    .after(&["sessions/create"]),
    case!(
        "models/rank",
        "A rank of zero is refused.",
        "protocol 6.3",
        rank
    )
    .after(&["models/create"]),
    case!(
        "models/nothing-to-train",
        "An adapter without layers to train is refused.",
        "protocol 6.3",
        nothing_to_train
    )
    .after(&["models/create"]),
    case!(
        "models/unknown-optimizer",
        "An optimizer that the server does not have is refused.",
        "protocol 19",
        unknown_optimizer
    )
    .after(&["models/create"]),
    case!(
        "models/unknown-session",
        "A model of a session that does not exist is refused.",
        "protocol 6.3",
        unknown_session
    )
    .after(&["models/create"]),
];

async fn official(trial: &Trial) -> Verdict {
    let lora = json!({"rank": 8});
    let body = trial.model_body(0, lora.clone()).await?;
    let Err(refused) = trial.created(&body).await else {
        return OK;
    };
    // The other cases can still tell something if the server takes what earlier clients sent.
    trial.shared.older_models.store(true, Ordering::Relaxed);
    let older = trial.created(&trial.model_body(1, lora).await?).await;
    trial
        .shared
        .older_models
        .store(older.is_ok(), Ordering::Relaxed);
    Err(refused)
}

async fn create(trial: &Trial) -> Verdict {
    let body = trial.model_body(3, json!({"rank": 8})).await?;
    let id = trial.created(&body).await?;
    if trial.shared.config.create_model_via_load_weights {
        let expected = format!("{}:train:3", trial.session().await?);
        ensure(id == expected, &expected, shown(&id))?;
    }
    OK
}

async fn create_once(trial: &Trial) -> Verdict {
    let body = trial.model_body(0, json!({"rank": 8})).await?;
    let mut promises = Vec::new();
    for _ in 0..3 {
        let promise = trial.wire().post(&endpoint::CREATE_MODEL, &body).await?;
        promises.push(text(&promise, "request_id")?);
    }
    let first = json!({"request_id": promises[0]});
    let made = trial.json_result(&first, RequestType::CreateModel).await?;
    trial.remember_model(&text(&made, "model_id")?);
    let is_one = promises.iter().all(|id| *id == promises[0]);
    ensure(
        is_one,
        "one request id for all three",
        shown(&promises.join(", ")),
    )?;
    OK
}

async fn info_of(trial: &Trial, id: &str) -> Result<Value, Stop> {
    let body = json!({"model_id": id, "type": "get_info"});
    trial.wire().post(&endpoint::GET_INFO, &body).await
}

async fn info(trial: &Trial) -> Verdict {
    let run = trial.model_with(json!({"rank": 4})).await?;
    let found = info_of(trial, &run.id).await?;
    let seen = shown(&found.to_string());
    ensure(
        found["model_id"] == run.id.as_str(),
        "the id of the model",
        &seen,
    )?;
    let name = &found["model_data"]["model_name"];
    ensure(
        *name == trial.shared.model.as_str(),
        "the base model as `model_data.model_name`",
        &seen,
    )?;
    let rank = &found["lora_rank"];
    ensure(rank.is_null() || *rank == 4, "`lora_rank` 4", &seen)?;
    OK
}

/// Expects that the creation of a model is refused that differs in one member from a good one.
async fn refuses(trial: &Trial, lora: Value, change: (&str, Value)) -> Verdict {
    let mut body = trial.model_body(trial.number(), lora).await?;
    let (member, value) = change;
    body[member] = value;
    let sent = Sent::to(&endpoint::CREATE_MODEL).json(&body);
    trial.refused(&sent, RequestType::CreateModel).await?;
    OK
}

async fn unknown_base(trial: &Trial) -> Verdict {
    refuses(
        trial,
        json!({"rank": 8}),
        ("base_model", json!("conform/no-such-model")),
    )
    .await
}

async fn rank(trial: &Trial) -> Verdict {
    refuses(trial, json!({"rank": 0}), ("type", json!("create_model"))).await
}

async fn nothing_to_train(trial: &Trial) -> Verdict {
    let none = json!({"rank": 8, "train_mlp": false, "train_attn": false, "train_unembed": false});
    refuses(trial, none, ("type", json!("create_model"))).await
}

async fn unknown_optimizer(trial: &Trial) -> Verdict {
    let optimizer = json!({"type": "conform-no-such-optimizer"});
    refuses(trial, json!({"rank": 8}), ("optimizer_config", optimizer)).await
}

async fn unknown_session(trial: &Trial) -> Verdict {
    let session = json!("00000000-0000-4000-8000-00000000c0f0");
    refuses(trial, json!({"rank": 8}), ("session_id", session)).await
}
