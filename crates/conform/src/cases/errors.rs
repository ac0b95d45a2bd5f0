//! Requests that no client should send: they are refused by a 4xx, and the server goes on.

use crate::case::{Case, OK, Verdict, case, ensure};
use crate::numbers::{TEXT, datum};
use crate::trial::Trial;
use crate::wire::{Reply, Sent};
use http::Method;
use serde_json::json;
use tinkrs_types::LossFn;
use tinkrs_wire::endpoint::{self, PREFIX};
use tinkrs_wire::header;

pub(super) const CASES: &[Case] = &[
    case!(
        "errors/not-json",
        "A body that is not JSON is refused with a reason.",
        "protocol 6.3, pitfalls 14",
        not_json
    ),
    case!(
        "errors/wrong-type",
        "A member of the wrong type is refused with a reason.",
        "protocol 6.3",
        wrong_type
    ),
    case!(
        "errors/missing-member",
        "A body without a required member is refused with a reason.",
        "protocol 6.3",
        missing_member
    ),
    case!(
        "errors/not-protobuf",
        "A message that is cut off is refused with a reason.",
        "protocol 6.3",
        not_protobuf
    )
    .after(&["models/create", "passes/protobuf"]),
    case!(
        "errors/unknown-model",
        "An operation of a model that does not exist is refused.",
        "protocol 6.3",
        unknown_model
    ),
    case!(
        "errors/unknown-sampler",
        "A sample of a sampler that does not exist is refused.",
        "protocol 6.3",
        unknown_sampler
    ),
    case!(
        "errors/unknown-path",
        "A path that the API does not have is 404.",
        "protocol 6.3",
        unknown_path
    ),
    case!(
        "errors/sampler-of-nothing",
        "A sampler of neither a base model nor a checkpoint is refused.",
        "protocol 9.8",
        sampler_of_nothing
    )
    .after(&["sessions/create"]),
    case!(
        "errors/sampler-of-missing",
        "A sampler of a checkpoint that does not exist is refused, or fails its samples.",
        "protocol 9.8",
        sampler_of_missing
    )
    .after(&["sessions/create"]),
];

/// Expects a refusal with a reason: a client takes a 400 without a body for a broken connection, and repeats it.
fn refusal(reply: &Reply) -> Verdict {
    ensure(reply.is_refusal(), "a 4xx", reply)?;
    ensure(!reply.body.is_empty(), "a reason in the body", reply)?;
    OK
}

async fn not_json(trial: &Trial) -> Verdict {
    let sent = Sent::to(&endpoint::CREATE_SESSION).bytes(header::JSON, "{\"tags\": [");
    refusal(&trial.wire().send(&sent).await?)
}

async fn wrong_type(trial: &Trial) -> Verdict {
    let body = json!({"tags": "not a list", "user_metadata": {}, "sdk_version": 36, "type": "create_session"});
    refusal(
        &trial
            .wire()
            .send(&Sent::to(&endpoint::CREATE_SESSION).json(&body))
            .await?,
    )
}

async fn missing_member(trial: &Trial) -> Verdict {
    refusal(
        &trial
            .wire()
            .send(&Sent::to(&endpoint::OPTIM_STEP).json(&json!({"seq_id": 1})))
            .await?,
    )
}

async fn not_protobuf(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let whole = tinkrs_wire::op::forward_backward::ForwardBackwardRequest {
        model_id: run.id.as_str().into(),
        seq_id: 1,
        data: vec![datum(&TEXT, 1.0)],
        loss_fn: LossFn::CrossEntropy,
        forward_only: false,
    };
    let mut body = whole.encode().expect("cases send text");
    body.truncate(body.len() / 2);
    let sent = Sent::to(&endpoint::FORWARD_BACKWARD).bytes(header::PROTOBUF, body);
    refusal(&trial.wire().send(&sent).await?)
}

async fn unknown_model(trial: &Trial) -> Verdict {
    let run = crate::run::Run::new(trial, "00000000-0000-4000-8000-00000000c0f0:train:0".into());
    let sent = run.step_at(1, crate::run::Adam::new(1e-4));
    trial
        .refused(&sent, tinkrs_types::protocol::RequestType::OptimStep)
        .await?;
    OK
}

async fn unknown_sampler(trial: &Trial) -> Verdict {
    let sampler = crate::sampler::Sampler::new(trial, "conform-no-such-sampler".into());
    let sent = sampler.request(&trial.prompt(), json!({}), json!({}));
    trial
        .refused(&sent, tinkrs_types::protocol::RequestType::Sample)
        .await?;
    OK
}

async fn unknown_path(trial: &Trial) -> Verdict {
    let sent = Sent::new(Method::GET, format!("{PREFIX}/conform/no/such/path"));
    let reply = trial.wire().send(&sent).await?;
    ensure(reply.status == 404, "404", &reply)?;
    OK
}

async fn sampler_of_nothing(trial: &Trial) -> Verdict {
    let body = json!({"session_id": trial.session().await?, "sampling_session_seq_id": 0,
        "type": "create_sampling_session"});
    refusal(
        &trial
            .wire()
            .send(&Sent::to(&endpoint::CREATE_SAMPLING_SESSION).json(&body))
            .await?,
    )
}

async fn sampler_of_missing(trial: &Trial) -> Verdict {
    let path = "tinker://00000000-0000-4000-8000-00000000c0f0:train:0/sampler_weights/none";
    let body = json!({"session_id": trial.session().await?, "sampling_session_seq_id": 0,
        "model_path": path, "type": "create_sampling_session"});
    let reply = trial
        .wire()
        .send(&Sent::to(&endpoint::CREATE_SAMPLING_SESSION).json(&body))
        .await?;
    if !reply.is_success() {
        return refusal(&reply);
    }
    let id = crate::trial::text(&reply.object()?, "sampling_session_id")?;
    let sampler = crate::sampler::Sampler::new(trial, id);
    let sent = sampler.request(&trial.prompt(), json!({}), json!({}));
    trial
        .refused(&sent, tinkrs_types::protocol::RequestType::Sample)
        .await?;
    OK
}
