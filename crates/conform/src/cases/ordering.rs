//! The order of operations, and that each is done once however often it is sent.

use super::optimizer::{equal, moved, scale};
use crate::case::{Case, OK, Stop, Verdict, case, ensure, mismatch};
use crate::numbers::{OTHER, TEXT, datum, differ, same};
use crate::run::{Adam, Run, logprobs};
use crate::trial::{Trial, text};
use crate::wire::{Sent, shown};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use std::time::Duration;
use tinkrs_types::LossFn;
use tinkrs_types::protocol::RequestType;
use tinkrs_wire::endpoint;

pub(super) const CASES: &[Case] = &[
    case!("ordering/out-of-order", "Operations that come in the wrong order are done in the order of their numbers.", "protocol 20.4, 10.3", out_of_order).after(&["optimizer/changes"]),
    case!("ordering/waits", "An operation whose predecessor has not come is not done before it.", "protocol 20.4", waits).after(&["optimizer/changes"]),
    case!("ordering/first-chunk-last", "Chunks 2 to n come first and chunk 1 last, as clients send them: all are done.", "client-behavior 6, pitfalls 5", first_chunk_last).after(&["passes/outputs"]),
    case!("ordering/pipelined", "Operations that are sent without waiting for results are done in order.", "client-behavior 6", pipelined).after(&["optimizer/changes"]),
    case!("ordering/pass-once", "A pass that is sent three times has one promise, and its gradient counts once.", "protocol 20.3, pitfalls 6", pass_once).after(&["optimizer/eps", "optimizer/accumulates"]),
    case!("ordering/step-once", "A step that is sent three times has one promise, and is made once.", "protocol 20.3", step_once).after(&["optimizer/changes"]),
    case!("ordering/late-repeat", "A repeat that comes after later operations are done changes nothing.", "protocol 20.3", late_repeat).after(&["optimizer/changes"]),
    case!("ordering/save-once", "A save that is sent twice is one checkpoint, and no conflict.", "protocol 20.3", save_once).after(&["passes/outputs"]),
    case!("ordering/sampler-once", "An unnamed save for sampling that is repeated with another `sampling_session_seq_id` returns the first result.", "protocol 11.3, pitfalls 7", sampler_once).after(&["passes/outputs"]),
    case!("ordering/sample-once", "A request for samples that is sent twice has one promise.", "protocol 12.1, 20.3", sample_once).after(&["sessions/create"]),
    case!("ordering/sampling-session-once", "A sampling session that is created twice under one number is one.", "protocol 20.3", sampling_session_once).after(&["sessions/create"]),
];

fn pass(run: &Run<'_>, seq_id: i32) -> Sent {
    run.pass_at(seq_id, vec![datum(&TEXT, 1.0)], LossFn::CrossEntropy, false)
}

async fn out_of_order(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let last = run.promise(&pass(&run, 3)).await?;
    let step = run.promise(&run.step_at(2, Adam::new(0.05))).await?;
    let first = run.promise(&pass(&run, 1)).await?;
    let first = logprobs(&run.output(&first).await?, 0)?;
    trial.json_result(&step, RequestType::OptimStep).await?;
    let last = logprobs(&run.output(&last).await?, 0)?;
    let base = trial.model().await?.logprobs(&TEXT).await?;
    same("pass 1 on the weights from before the step", &base, &first)?;
    differ("pass 3 on the weights from after the step", &first, &last)?;
    OK
}

async fn waits(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let step = run.promise(&run.step_at(2, Adam::new(0.05))).await?;
    let early = trial.result(&step, RequestType::OptimStep);
    if let Ok(result) = tokio::time::timeout(Duration::from_secs(2), early).await {
        let seen = format!("{:?}", result?);
        return Err(mismatch(
            "no result of operation 2 before operation 1 has come",
            shown(&seen),
        ));
    }
    let first = run.promise(&pass(&run, 1)).await?;
    run.output(&first).await?;
    trial.json_result(&step, RequestType::OptimStep).await?;
    OK
}

async fn first_chunk_last(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let texts: Vec<&[u32]> = vec![&TEXT, &OTHER, &TEXT[..7], &OTHER[..5]];
    let sent: Vec<_> = texts
        .iter()
        .zip(1..)
        .map(|(text, seq_id)| {
            run.pass_at(seq_id, vec![datum(text, 1.0)], LossFn::CrossEntropy, false)
        })
        .collect();
    let mut promises = try_join_all(sent[1..].iter().map(|sent| run.promise(sent))).await?;
    promises.insert(0, run.promise(&sent[0]).await?);
    for (promise, text) in promises.iter().zip(&texts) {
        let found = logprobs(&run.output(promise).await?, 0)?.len();
        ensure(
            found == text.len() - 1,
            "the result of each chunk by its own promise",
            found,
        )?;
    }
    OK
}

async fn pipelined(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let mut promises = Vec::new();
    for seq_id in (1..9).step_by(2) {
        promises.push(run.promise(&pass(&run, seq_id)).await?);
        run.promise(&run.step_at(seq_id + 1, Adam::new(0.003)))
            .await?;
    }
    let mut losses = Vec::new();
    for promise in &promises {
        let found = logprobs(&run.output(promise).await?, 0)?;
        losses.push(-found.iter().sum::<f32>());
    }
    let is_falling = losses.windows(2).all(|pair| pair[1] < pair[0]);
    ensure(
        is_falling,
        "a loss that falls from pass to pass",
        format_args!("{losses:.3?}"),
    )?;
    OK
}

/// Sends the same request three times and returns its promise.
async fn thrice(trial: &Trial, sent: &Sent) -> Result<Value, Stop> {
    let mut first = None;
    for _ in 0..3 {
        let promise = trial.wire().accepted(sent).await?.object()?;
        let id = text(&promise, "request_id")?;
        let (expected, _) = first.get_or_insert((id.clone(), promise));
        ensure(*expected == id, "the request id of the first", shown(&id))?;
    }
    first
        .map(|(_, promise)| promise)
        .ok_or_else(|| Stop::failed("nothing was sent"))
}

async fn pass_once(trial: &Trial) -> Verdict {
    let plain = Adam::plain(scale(trial).await?);
    let once = moved(&trial.model().await?, vec![vec![datum(&TEXT, 1.0)]], plain).await?;
    let run = trial.model().await?;
    let before = run.logprobs(&TEXT).await?;
    let promise = thrice(trial, &pass(&run, run.seq_id())).await?;
    run.output(&promise).await?;
    run.step(plain).await?;
    let seen = crate::numbers::length(&before, &run.logprobs(&TEXT).await?);
    equal(
        "a pass that was sent three times moves as much as one",
        once,
        seen,
    )
}

async fn step_once(trial: &Trial) -> Verdict {
    let (once, thrice_sent) = (trial.model().await?, trial.model().await?);
    for (run, repeat) in [(&once, false), (&thrice_sent, true)] {
        run.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
        let step = run.step_at(run.seq_id(), Adam::new(0.02));
        let promise = if repeat {
            thrice(trial, &step).await?
        } else {
            run.promise(&step).await?
        };
        trial.json_result(&promise, RequestType::OptimStep).await?;
    }
    same(
        "the log-probabilities of one step",
        &once.logprobs(&TEXT).await?,
        &thrice_sent.logprobs(&TEXT).await?,
    )?;
    OK
}

async fn late_repeat(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    run.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
    let number = run.seq_id();
    let step = run.step_at(number, Adam::new(0.02));
    let promise = run.promise(&step).await?;
    trial.json_result(&promise, RequestType::OptimStep).await?;
    run.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
    let before = run.logprobs(&TEXT).await?;
    // It may be answered by its promise, or refused as long gone: it must not be made again.
    trial.wire().accepted(&step).await?;
    same(
        "unchanged log-probabilities",
        &before,
        &run.logprobs(&TEXT).await?,
    )?;
    OK
}

async fn save_once(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let name = trial.name();
    trial.remember(&format!("tinker://{}/weights/{name}", run.id));
    let more = json!({"path": name, "overwrite": false});
    let sent = run.weights_at(run.seq_id(), &endpoint::SAVE_WEIGHTS, more);
    let promise = thrice(trial, &sent).await?;
    let saved = trial
        .json_result(&promise, RequestType::SaveWeights)
        .await?;
    text(&saved, "path")?;
    OK
}

async fn sampler_once(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let number = run.seq_id();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let more = json!({"sampling_session_seq_id": trial.number()});
        let sent = run.weights_at(number, &endpoint::SAVE_WEIGHTS_FOR_SAMPLER, more);
        let promise = run.promise(&sent).await?;
        let saved = trial
            .json_result(&promise, RequestType::SaveWeightsForSampler)
            .await?;
        ids.push(text(&saved, "sampling_session_id")?);
    }
    ensure(
        ids[0] == ids[1],
        "the first sampling session",
        shown(&ids.join(", ")),
    )?;
    OK
}

async fn sample_once(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let sent = sampler.request(&trial.prompt(), json!({}), json!({"num_samples": 2}));
    let promise = thrice(trial, &sent).await?;
    let output = sampler.output(&promise).await?;
    ensure(
        output.sequences.len() == 2,
        "2 sequences",
        output.sequences.len(),
    )?;
    OK
}

async fn sampling_session_once(trial: &Trial) -> Verdict {
    let body = json!({"session_id": trial.session().await?, "sampling_session_seq_id": 0,
        "base_model": trial.shared.model, "type": "create_sampling_session"});
    let first = trial
        .wire()
        .post(&endpoint::CREATE_SAMPLING_SESSION, &body)
        .await?;
    let second = trial
        .wire()
        .post(&endpoint::CREATE_SAMPLING_SESSION, &body)
        .await?;
    let name = "sampling_session_id";
    let (first, second) = (text(&first, name)?, text(&second, name)?);
    ensure(first == second, shown(&first), shown(&second))?;
    OK
}
