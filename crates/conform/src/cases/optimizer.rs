//! `optim_step`: what it does to the weights.
//!
//! Adam hides the size of a gradient: its step is the same for any. With an `eps` that is large beside the gradient and without
//! moments, a step is the gradient times a number ([`Adam::plain`]), and the size can be seen in how far the log-probabilities move.

use crate::case::{Case, OK, Stop, Verdict, case, ensure, measured};
use crate::numbers::{OTHER, TEXT, datum, differ, length, same};
use crate::run::{Adam, Run};
use crate::trial::{Trial, text};
use crate::wire::{Sent, shown};
use serde_json::json;
use tinkrs_types::Datum;
use tinkrs_types::protocol::RequestType;
use tinkrs_wire::endpoint;

pub(super) const CASES: &[Case] = &[
    case!(
        "optimizer/changes",
        "A step changes the weights, and the loss of what it was trained on falls.",
        "protocol 19, 10.4",
        changes
    )
    .after(&["passes/outputs"])
    .time(3),
    case!(
        "optimizer/zero-rate",
        "A step with a learning rate of zero changes nothing.",
        "protocol 19",
        zero_rate
    )
    .after(&["optimizer/changes"]),
    case!(
        "optimizer/clears",
        "A step uses up the gradients: the next one has none.",
        "protocol 19",
        clears
    )
    .after(&["optimizer/changes"]),
    case!("optimizer/eps", "`eps` is heeded.", "protocol 19", eps).after(&["optimizer/changes"]),
    case!(
        "optimizer/accumulates",
        "The gradients of two passes are added.",
        "protocol 18.1",
        accumulates
    )
    .after(&["optimizer/eps"])
    .time(2),
    case!(
        "optimizer/sum-over-weights",
        "The gradient is a plain sum: four times the weight is four times the gradient.",
        "protocol 18.1, pitfalls 13",
        sum_over_weights
    )
    .after(&["optimizer/eps"])
    .time(2),
    case!(
        "optimizer/sum-over-datums",
        "The gradient is a plain sum: four equal datums have four times the gradient of one.",
        "protocol 18.1, pitfalls 13",
        sum_over_datums
    )
    .after(&["optimizer/eps"])
    .time(2),
    case!(
        "optimizer/clip",
        "`grad_clip_norm` is heeded.",
        "protocol 19, pitfalls",
        clip
    )
    .after(&["optimizer/eps"])
    .time(2),
    case!(
        "optimizer/weight-decay",
        "`weight_decay` is heeded.",
        "protocol 19",
        weight_decay
    )
    .after(&["optimizer/changes"]),
    case!(
        "optimizer/isolation",
        "Training one model leaves another alone.",
        "pitfalls",
        isolation
    )
    .after(&["optimizer/changes"]),
    case!(
        "optimizer/lora-options",
        "Which layers are trained is as asked for, or refused: not the same whatever is asked.",
        "protocol 10.1, pitfalls",
        lora_options
    )
    .after(&["optimizer/changes"]),
    case!(
        "optimizer/seed",
        "Two models with the same seed train alike.",
        "protocol 10.1",
        seed
    )
    .after(&["optimizer/changes"]),
];

async fn changes(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let before = run.logprobs(&TEXT).await?;
    run.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
    let result = run.step(Adam::new(0.005)).await?;
    let metrics = result.get("metrics");
    let is_map = metrics.is_none_or(|metrics| metrics.is_null() || metrics.is_object());
    ensure(
        is_map,
        "`metrics` to be an object or null",
        shown(&result.to_string()),
    )?;
    run.train(3).await?;
    let after = run.logprobs(&TEXT).await?;
    differ("log-probabilities to move", &before, &after)?;
    let (before, after): (f32, f32) = (-before.iter().sum::<f32>(), -after.iter().sum::<f32>());
    ensure(
        after < before,
        format_args!("a loss below {before:.3}"),
        format_args!("{after:.3}"),
    )?;
    measured(format_args!(
        "the loss went from {before:.2} to {after:.2} in 4 steps"
    ))
}

async fn zero_rate(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let before = run.logprobs(&TEXT).await?;
    run.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
    run.step(Adam::new(0.0)).await?;
    same(
        "unchanged log-probabilities",
        &before,
        &run.logprobs(&TEXT).await?,
    )?;
    OK
}

async fn clears(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let adam = Adam {
        beta1: 0.0,
        beta2: 0.0,
        ..Adam::new(0.02)
    };
    run.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
    run.step(adam).await?;
    let before = run.logprobs(&TEXT).await?;
    // It may be refused, for there is nothing to apply.
    let again = run.promise(&run.step_at(run.seq_id(), adam)).await?;
    trial.result(&again, RequestType::OptimStep).await?;
    same(
        "unchanged log-probabilities",
        &before,
        &run.logprobs(&TEXT).await?,
    )?;
    OK
}

async fn eps(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let before = run.logprobs(&TEXT).await?;
    run.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
    run.step(Adam {
        eps: 1e9,
        ..Adam::new(0.02)
    })
    .await?;
    same(
        "a step that a large `eps` makes small",
        &before,
        &run.logprobs(&TEXT).await?,
    )?;
    OK
}

/// Returns by how much a gradient has to be scaled for the log-probabilities to move well: found once, by trying.
pub(super) async fn scale(trial: &Trial) -> Result<f64, Stop> {
    let search = || async {
        let run = trial.model().await?;
        let before = run.logprobs(&TEXT).await?;
        let mut scale = 1e-4;
        for _ in 0..16 {
            run.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
            run.step(Adam::plain(scale)).await?;
            let moved = length(&before, &run.logprobs(&TEXT).await?);
            if moved > 0.25 {
                return Ok(scale);
            }
            scale *= 3.0;
        }
        Err(Stop::failed(
            "no step of the size of the gradient moves the log-probabilities",
        ))
    };
    trial.shared.step.get_or_try_init(search).await.copied()
}

/// Returns how far the log-probabilities move by a step after some passes.
pub(super) async fn moved(run: &Run<'_>, passes: Vec<Vec<Datum>>, adam: Adam) -> Result<f64, Stop> {
    let before = run.logprobs(&TEXT).await?;
    for data in passes {
        run.forward_backward(data).await?;
    }
    run.step(adam).await?;
    Ok(length(&before, &run.logprobs(&TEXT).await?))
}

/// Expects two movements to be of the same size.
pub(super) fn equal(what: &str, expected: f64, seen: f64) -> Verdict {
    let ratio = seen / expected;
    let is_close = (0.7..1.4).contains(&ratio);
    ensure(
        is_close,
        format_args!("{what}: a ratio of 1"),
        format_args!("{ratio:.2}"),
    )?;
    measured(format_args!("ratio {ratio:.3}"))
}

async fn accumulates(trial: &Trial) -> Verdict {
    let scale = scale(trial).await?;
    let one = || datum(&TEXT, 1.0);
    let together = moved(
        &trial.model().await?,
        vec![vec![one(), one()]],
        Adam::plain(scale),
    )
    .await?;
    let apart = moved(
        &trial.model().await?,
        vec![vec![one()], vec![one()]],
        Adam::plain(scale),
    )
    .await?;
    equal("two passes move as much as both in one", together, apart)
}

async fn sum_over_weights(trial: &Trial) -> Verdict {
    let scale = scale(trial).await?;
    let one = moved(
        &trial.model().await?,
        vec![vec![datum(&TEXT, 1.0)]],
        Adam::plain(scale),
    )
    .await?;
    let four = moved(
        &trial.model().await?,
        vec![vec![datum(&TEXT, 4.0)]],
        Adam::plain(scale / 4.0),
    )
    .await?;
    equal("four times the weight at a quarter of the rate", one, four)
}

async fn sum_over_datums(trial: &Trial) -> Verdict {
    let scale = scale(trial).await?;
    let one = moved(
        &trial.model().await?,
        vec![vec![datum(&TEXT, 1.0)]],
        Adam::plain(scale),
    )
    .await?;
    let four = vec![datum(&TEXT, 1.0); 4];
    let four = moved(&trial.model().await?, vec![four], Adam::plain(scale / 4.0)).await?;
    equal("four datums at a quarter of the rate", one, four)
}

async fn clip(trial: &Trial) -> Verdict {
    let scale = scale(trial).await?;
    let pass = || vec![vec![datum(&TEXT, 1.0)]];
    let free = moved(&trial.model().await?, pass(), Adam::plain(scale)).await?;
    let clipped = Adam {
        grad_clip_norm: 1e-6,
        ..Adam::plain(scale)
    };
    let clipped = moved(&trial.model().await?, pass(), clipped).await?;
    let expected = format!("far less than {free:.3}, the movement without a bound");
    ensure(clipped < 0.2 * free, expected, format_args!("{clipped:.3}"))?;
    OK
}

async fn weight_decay(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    run.train(4).await?;
    let before = run.logprobs(&TEXT).await?;
    for _ in 0..2 {
        // Without weights there is no gradient, so the decay is all that is left.
        run.forward_backward(vec![datum(&TEXT, 0.0)]).await?;
        run.step(Adam {
            weight_decay: 1.0,
            ..Adam::plain(3e-7)
        })
        .await?;
    }
    differ(
        "log-probabilities to move",
        &before,
        &run.logprobs(&TEXT).await?,
    )?;
    OK
}

async fn isolation(trial: &Trial) -> Verdict {
    let (trained, other) = (trial.model().await?, trial.model().await?);
    let before = other.logprobs(&OTHER).await?;
    trained.train(3).await?;
    same(
        "unchanged log-probabilities of the other model",
        &before,
        &other.logprobs(&OTHER).await?,
    )?;
    OK
}

async fn lora_options(trial: &Trial) -> Verdict {
    let all = trial.model().await?;
    let some = json!({"rank": 8, "seed": 7, "train_mlp": false, "train_unembed": false});
    let body = trial.model_body(trial.number(), some).await?;
    let sent = Sent::to(&endpoint::CREATE_MODEL).json(&body);
    let reply = trial.wire().accepted(&sent).await?;
    if reply.is_refusal() {
        return Err(Stop::NotSupported(reply.to_string()));
    }
    let made = trial
        .json_result(&reply.object()?, RequestType::CreateModel)
        .await?;
    let attention = Run::new(trial, text(&made, "model_id")?);
    trial.remember_model(&attention.id);
    all.train(2).await?;
    attention.train(2).await?;
    let what = "training attention alone to differ from training everything";
    differ(
        what,
        &all.logprobs(&TEXT).await?,
        &attention.logprobs(&TEXT).await?,
    )?;
    OK
}

async fn seed(trial: &Trial) -> Verdict {
    let mut trained = Vec::new();
    for _ in 0..2 {
        let run = trial.model_with(json!({"rank": 8, "seed": 1234})).await?;
        run.train(1).await?;
        trained.push(run.logprobs(&TEXT).await?);
    }
    same(
        "the same log-probabilities after a step",
        &trained[0],
        &trained[1],
    )?;
    OK
}
