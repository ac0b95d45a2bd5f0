//! Losses other than the cross-entropy: their values, from the log-probabilities that come back.

use crate::case::{Case, OK, Stop, Verdict, case, ensure};
use crate::numbers::{TEXT, close, datum, rewarded};
use crate::run::{Run, logprobs};
use crate::trial::{Trial, text};
use crate::wire::Sent;
use serde_json::json;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::training::ClipBounds;
use tinkrs_types::{Datum, LossFn};
use tinkrs_wire::endpoint;

pub(super) const CASES: &[Case] = &[
    case!(
        "losses/importance-sampling",
        "`importance_sampling` is minus the sum of ratio times advantage.",
        "protocol 18.3",
        importance_sampling
    )
    .after(&["passes/metrics"]),
    case!(
        "losses/ppo",
        "`ppo` bounds the ratio itself, by default to 0.8 and 1.2.",
        "protocol 18.4, pitfalls 13",
        ppo
    )
    .after(&["passes/metrics"]),
    case!(
        "losses/ppo-bounds",
        "`ppo` has the bounds that are asked for.",
        "protocol 18.4",
        ppo_bounds
    )
    .after(&["passes/metrics"]),
    case!(
        "losses/cispo",
        "`cispo` weights the log-probability by the ratio within the bounds that are asked for.",
        "protocol 18.5",
        cispo
    )
    .after(&["passes/metrics"]),
    case!(
        "losses/dro",
        "`dro` has a quadratic penalty with the `beta` that is asked for.",
        "protocol 18.6",
        dro
    )
    .after(&["passes/metrics"]),
    case!(
        "losses/gspo",
        "`gspo` has one ratio for the positions of the mask.",
        "protocol 18.7",
        gspo
    )
    .after(&["passes/metrics"]),
    case!(
        "losses/custom",
        "An uploaded loss is computed by the server.",
        "protocol 9.9, 18.9",
        custom
    )
    .optional()
    .after(&["passes/metrics"]),
];

/// What makes ratios of about 1.5, 1.0, 0.5 and 6.
const OFFSETS: [f32; 4] = [0.405, 0.0, -0.693, 1.79];
const ADVANTAGES: [f32; 4] = [1.0, -0.5, -1.0, 2.0];

/// A token of a reinforcement loss: log-probability of the learner, of the sampler, and advantage.
struct Token {
    lp: f64,
    q: f64,
    a: f64,
}

impl Token {
    fn ratio(&self) -> f64 {
        (self.lp - self.q).exp()
    }
}

/// Makes a pass with a loss, and compares its value with a formula.
async fn compare(
    trial: &Trial,
    loss: LossFn,
    change: impl FnOnce(Datum) -> Datum,
    formula: impl FnOnce(&[Token]) -> f64,
) -> Verdict {
    let run = trial.model().await?;
    let base = run.logprobs(&TEXT).await?;
    let q: Vec<f32> = base
        .iter()
        .zip(OFFSETS.iter().cycle())
        .map(|(lp, offset)| lp - offset)
        .collect();
    let a: Vec<f32> = ADVANTAGES.iter().cycle().take(q.len()).copied().collect();
    let (found, seen) = pass(&run, change(rewarded(&TEXT, &q, &a)), loss).await?;
    ensure(
        found.len() == q.len(),
        "a log-probability for each token",
        found.len(),
    )?;
    let tokens: Vec<_> = (0..q.len())
        .map(|i| Token {
            lp: found[i].into(),
            q: q[i].into(),
            a: a[i].into(),
        })
        .collect();
    close("`loss:sum`", formula(&tokens), seen)?;
    OK
}

async fn pass(run: &Run<'_>, datum: Datum, loss: LossFn) -> Result<(Vec<f32>, f64), Stop> {
    let sent = run.pass_at(run.seq_id(), vec![datum], loss, false);
    let reply = run.trial.wire().accepted(&sent).await?;
    if reply.is_refusal() {
        return Err(Stop::NotSupported(reply.to_string()));
    }
    let output = run.output(&reply.object()?).await?;
    Ok((logprobs(&output, 0)?, output.loss().unwrap_or(f64::NAN)))
}

async fn importance_sampling(trial: &Trial) -> Verdict {
    let formula = |tokens: &[Token]| -tokens.iter().map(|t| t.ratio() * t.a).sum::<f64>();
    compare(trial, LossFn::ImportanceSampling, |datum| datum, formula).await
}

fn clipped(tokens: &[Token], low: f64, high: f64) -> f64 {
    let term = |t: &Token| (t.ratio() * t.a).min(t.ratio().clamp(low, high) * t.a);
    -tokens.iter().map(term).sum::<f64>()
}

async fn ppo(trial: &Trial) -> Verdict {
    let loss = LossFn::Ppo(ClipBounds::default());
    compare(
        trial,
        loss,
        |datum| datum,
        |tokens| clipped(tokens, 0.8, 1.2),
    )
    .await
}

async fn ppo_bounds(trial: &Trial) -> Verdict {
    let loss = LossFn::Ppo(ClipBounds::new(0.6, 2.0));
    compare(
        trial,
        loss,
        |datum| datum,
        |tokens| clipped(tokens, 0.6, 2.0),
    )
    .await
}

async fn cispo(trial: &Trial) -> Verdict {
    let loss = LossFn::Cispo(ClipBounds::new(0.7, 3.0));
    let formula = |tokens: &[Token]| {
        -tokens
            .iter()
            .map(|t| t.ratio().clamp(0.7, 3.0) * t.lp * t.a)
            .sum::<f64>()
    };
    compare(trial, loss, |datum| datum, formula).await
}

async fn dro(trial: &Trial) -> Verdict {
    let loss = LossFn::Dro { beta: Some(0.1) };
    let formula = |tokens: &[Token]| {
        let term = |t: &Token| t.lp * t.a - 0.05 * (t.lp - t.q).powi(2);
        -tokens.iter().map(term).sum::<f64>()
    };
    compare(trial, loss, |datum| datum, formula).await
}

async fn gspo(trial: &Trial) -> Verdict {
    // The first four positions are a prompt, say.
    let mask = |count: usize| {
        (0..count)
            .map(|i| if i < 4 { 0.0 } else { 1.0 })
            .collect::<Vec<f32>>()
    };
    let masked = |datum: Datum| {
        let count = TEXT.len() - 1;
        datum
            .with_input("sequence_ratio_mask", mask(count))
            .expect("it has the length of the targets")
    };
    let formula = |tokens: &[Token]| {
        let counted = &tokens[4..];
        let mean = counted.iter().map(|t| t.lp - t.q).sum::<f64>() / counted.len() as f64;
        let s = mean.exp();
        let term = |t: &Token| (s * t.a).min(s.clamp(0.5, 1.1) * t.a);
        -tokens.iter().map(term).sum::<f64>()
    };
    compare(
        trial,
        LossFn::Gspo(ClipBounds::new(0.5, 1.1)),
        masked,
        formula,
    )
    .await
}

async fn custom(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let node = |op: &str, name: &str, target: &str, args: serde_json::Value| json!({"op": op, "name": name, "target": target, "args": args, "kwargs": {}});
    let graph = json!({"format": 1, "nodes": [
        node("placeholder", "logprobs", "logprobs", json!([])),
        node("placeholder", "weights", "weights", json!([])),
        node("call_function", "mul", "operator.mul", json!([{"ref": "logprobs"}, {"ref": "weights"}])),
        node("call_method", "total", "sum", json!([{"ref": "mul"}])),
        node("call_function", "neg", "operator.neg", json!([{"ref": "total"}])),
        node("output", "output", "output", json!([{"tuple": [{"ref": "neg"}, {"dict": {"custom/nll:sum": {"ref": "neg"}}}]}])),
    ]});
    let body = json!({"session_id": trial.session().await?, "custom_loss_seq_id": 0, "name": "nll",
        "inputs": [{"name": "logprobs", "rank": 1}, {"name": "weights", "rank": 1}], "graph": graph,
        "type": "create_custom_loss"});
    let sent = Sent::to(&endpoint::CREATE_CUSTOM_LOSS).json(&body);
    let promise = trial.wire().accepted(&sent).await?.object()?;
    let made = trial
        .json_result(&promise, RequestType::CreateCustomLoss)
        .await?;
    let loss = LossFn::Custom {
        loss_id: text(&made, "loss_id")?.into(),
    };
    let plain = run.forward_backward(vec![datum(&TEXT, 0.5)]).await?;
    let output = run.pass(vec![datum(&TEXT, 0.5)], loss, false).await?;
    let expected = plain.loss().unwrap_or(f64::NAN);
    close("`loss:sum`", expected, output.loss().unwrap_or(f64::NAN))?;
    let metric = output.metrics.get("custom/nll:sum").copied();
    close(
        "the metric of the loss",
        expected,
        metric.unwrap_or(f64::NAN),
    )?;
    OK
}
