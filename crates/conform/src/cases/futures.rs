//! Waiting for results.

use crate::case::{Case, OK, Verdict, case, ensure, measured};
use crate::numbers::{TEXT, datum};
use crate::run::Adam;
use crate::trial::{Answer, Trial, text};
use crate::wire::{Sent, shown};
use serde_json::json;
use std::time::Instant;
use tinkrs_types::LossFn;
use tinkrs_types::protocol::RequestType;
use tinkrs_wire::{endpoint, header};

pub(super) const CASES: &[Case] = &[
    case!("futures/pending", "A poll for a result that is not there yet is answered within 45 s, by 408 or `try_again`.", "protocol 13.2, 13.3", pending).after(&["models/create"]).beside().time(2),
    case!("futures/unknown", "A poll for a request that never was is answered by a 4xx, and not as pending.", "protocol 13.4", unknown),
    case!("futures/failure", "An operation that fails is status 200 with `error` and a category, in JSON even where a message was asked for.", "protocol 13.3, 20.8", failure).after(&["models/create"]),
    case!("futures/again", "A result that was not lost on the way can be fetched again, or is gone (410).", "protocol 13.4, 20.10", again).after(&["models/create"]),
];

async fn pending(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    // Its predecessor never comes, so it cannot have a result.
    let promise = run.promise(&run.step_at(2, Adam::new(1e-4))).await?;
    let body = json!({"request_id": text(&promise, "request_id")?, "allow_metadata_only": true});
    let sent = Sent::to(&endpoint::RETRIEVE_FUTURE)
        .json(&body)
        .header(header::REQUEST_TYPE, RequestType::OptimStep.name());
    let started = Instant::now();
    let reply = trial.wire().send(&sent).await?;
    let seconds = started.elapsed().as_secs_f64();
    ensure(
        seconds < 45.0,
        "an answer within 45 s",
        format_args!("{seconds:.0} s"),
    )?;
    let body = reply.json().unwrap_or_default();
    let is_pending = reply.status == 408 || (reply.status == 200 && body["type"] == "try_again");
    ensure(is_pending, "408, or 200 with `try_again`", &reply)?;
    let state = body["queue_state"].as_str();
    let is_known = state.is_none_or(|state| {
        ["active", "paused_capacity", "paused_rate_limit", "unknown"].contains(&state)
    });
    ensure(is_known, "a known `queue_state`", shown(&body.to_string()))?;
    measured(format_args!("answered after {seconds:.1} s"))
}

async fn unknown(trial: &Trial) -> Verdict {
    let body = json!({"request_id": "conform-no-such-request", "allow_metadata_only": true});
    let sent = Sent::to(&endpoint::RETRIEVE_FUTURE).json(&body);
    let reply = trial.wire().send(&sent).await?;
    ensure(reply.is_refusal(), "a 4xx", &reply)?;
    OK
}

async fn failure(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    // A loss that does not exist. The poll asks for a message; servers that refuse the request at once have no such future, so
    // a load of what does not exist follows.
    let loss = LossFn::Other {
        name: "conform_no_such_loss".into(),
        config: Default::default(),
    };
    let pass = run.pass_at(1, vec![datum(&TEXT, 1.0)], loss, false);
    let other = trial.model().await?;
    let path = format!("tinker://{}/weights/conform-no-such-checkpoint", other.id);
    let more = json!({"path": path, "optimizer": true});
    let load = other.weights_at(1, &endpoint::LOAD_WEIGHTS, more);
    for (sent, kind) in [
        (pass, RequestType::ForwardBackward),
        (load, RequestType::LoadWeights),
    ] {
        let reply = trial.wire().accepted(&sent).await?;
        if reply.is_refusal() {
            continue;
        }
        match trial.result(&reply.object()?, kind).await? {
            Answer::Failed { category, .. } => {
                let is_known = ["user", "server", "unknown"].contains(&category.as_str());
                let expected = "status 200 with a category user, server or unknown";
                ensure(is_known, expected, shown(&category))?;
            }
            Answer::Json(_) | Answer::Message(_) => ensure(false, "a failure", "a result")?,
        }
    }
    OK
}

async fn again(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let sent = run.pass_at(1, vec![datum(&TEXT, 1.0)], LossFn::CrossEntropy, false);
    let promise = run.promise(&sent).await?;
    let first = run.output(&promise).await?;
    let body = json!({"request_id": text(&promise, "request_id")?, "allow_metadata_only": false});
    let sent = Sent::to(&endpoint::RETRIEVE_FUTURE)
        .json(&body)
        .header("accept", header::PROTOBUF)
        .header(header::REQUEST_TYPE, RequestType::ForwardBackward.name());
    let reply = trial.wire().send(&sent).await?;
    if reply.status == 410 {
        return OK;
    }
    ensure(reply.status == 200, "the result, or 410", &reply)?;
    match trial.result(&promise, RequestType::ForwardBackward).await? {
        Answer::Failed { error, .. } => ensure(false, "the result, or 410", shown(&error))?,
        Answer::Message(_) | Answer::Json(_) => {}
    }
    let second = run.output(&promise).await?;
    ensure(
        first.metrics == second.metrics,
        "the same metrics",
        format_args!("{:?}", second.metrics),
    )?;
    OK
}
