//! What the server measures of a run at each step, for any client.
//!
//! What a pass adds to the step is computed when it begins, from its data, and when it ends, from its result. The
//! sums of the passes since the last step are stored with the result of each, and become the metrics of the step
//! with the result of `optim_step`: in the same commits, so a step is counted once, however often the server ends.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tinkrs_backend::Objective;
use tinkrs_types::protocol::key;
use tinkrs_types::training::{Metrics, OptimStepOutput, OptimizerParams};
use tinkrs_types::{Datum, LossFn};

/// What passes add up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PassSums {
    datums: u64,
    tokens: u64,
    loss: f64,
    /// Of the tokens that count.
    weight: f64,
    /// Of tokens that were sampled.
    sampled: u64,
    logprobs: f64,
    advantages: f64,
    /// The divergence of each datum, and of how many.
    divergence: f64,
    diverging: u64,
    busy_ms: f64,
    queue_ms: f64,
}

/// How far a run has come.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    pub(crate) steps: i64,
    pub(crate) tokens: u64,
    pub(crate) busy_ms: f64,
    pub(crate) passes: PassSums,
}

/// What an operation adds to its run's progress.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Measured {
    Pass(PassSums),
    Step(StepFacts),
}

/// What is known of a step when the optimizer has been applied.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepFacts {
    learning_rate: Option<f64>,
    gradient_norm: Option<f64>,
    busy_ms: f64,
    queue_ms: f64,
}

impl PassSums {
    /// Adds up the data of a pass.
    pub(crate) fn of(data: &[Datum], objective: &Objective) -> Self {
        let is_policy = matches!(
            objective,
            Objective::BuiltIn(
                LossFn::ImportanceSampling
                    | LossFn::Ppo(_)
                    | LossFn::Cispo(_)
                    | LossFn::Dro { .. }
                    | LossFn::Gspo(_)
            )
        );
        let mut sums = Self {
            datums: data.len() as u64,
            ..Self::default()
        };
        for datum in data {
            sums.tokens += datum.model_input().len().unwrap_or_default() as u64;
            sums.add_targets(datum, is_policy);
        }
        sums
    }

    fn add_targets(&mut self, datum: &Datum, is_policy: bool) {
        let tensor = |name: &str| datum.loss_fn_inputs().get(name)?.as_f32();
        let weights = tensor(key::WEIGHTS);
        let advantages = tensor(key::ADVANTAGES).filter(|_| is_policy);
        let Some(advantages) = advantages else {
            self.weight += match (weights, datum.target_tokens()) {
                (Some(weights), _) => weights.iter().map(|weight| f64::from(weight.abs())).sum(),
                (None, Some(targets)) => targets.rows() as f64,
                (None, None) => 0.0,
            };
            return;
        };
        let logprobs = tensor(key::LOGPROBS).unwrap_or_default();
        for (index, advantage) in advantages.iter().enumerate() {
            let weight = weights.map_or(1.0, |all| all.get(index).copied().unwrap_or_default());
            // Tokens of the prompt are marked so, and count for nothing.
            if *advantage == 0.0 || weight == 0.0 {
                continue;
            }
            self.weight += f64::from(weight.abs());
            self.advantages += f64::from(*advantage);
            self.logprobs += f64::from(logprobs.get(index).copied().unwrap_or_default());
            self.sampled += 1;
        }
    }

    /// Adds what the pass reports of itself.
    pub(crate) fn add_result(&mut self, metrics: &Metrics) {
        self.loss += metrics.get("loss:sum").copied().unwrap_or(f64::NAN);
        if let Some(mean) = metrics.get("kl_sampler:mean") {
            self.divergence += mean * self.datums as f64;
            self.diverging += self.datums;
        }
    }

    /// Adds how long the pass took, and waited.
    pub(crate) fn add_times(&mut self, busy: Duration, queue_ms: u64) {
        self.busy_ms += milliseconds(busy);
        self.queue_ms += queue_ms as f64;
    }

    fn add(&mut self, other: &Self) {
        self.datums += other.datums;
        self.tokens += other.tokens;
        self.loss += other.loss;
        self.weight += other.weight;
        self.sampled += other.sampled;
        self.logprobs += other.logprobs;
        self.advantages += other.advantages;
        self.divergence += other.divergence;
        self.diverging += other.diverging;
        self.busy_ms += other.busy_ms;
        self.queue_ms += other.queue_ms;
    }
}

impl StepFacts {
    pub(crate) fn new(params: &OptimizerParams, output: &OptimStepOutput) -> Self {
        let metrics = output.metrics.as_ref();
        Self {
            learning_rate: match params {
                OptimizerParams::Adam(params) => Some(params.learning_rate),
                OptimizerParams::Dimuon(params) => Some(params.learning_rate),
                _ => None,
            },
            gradient_norm: metrics.and_then(|metrics| metrics.get("grad_norm").copied()),
            ..Self::default()
        }
    }

    /// Adds how long the step took, and waited.
    pub(crate) fn add_times(&mut self, busy: Duration, queue_ms: u64) {
        self.busy_ms += milliseconds(busy);
        self.queue_ms += queue_ms as f64;
    }
}

impl Measured {
    /// Adds how long the operation took, and waited.
    pub(crate) fn add_times(&mut self, busy: Duration, queue_ms: u64) {
        match self {
            Self::Pass(sums) => sums.add_times(busy, queue_ms),
            Self::Step(facts) => facts.add_times(busy, queue_ms),
        }
    }
}

impl Progress {
    /// Takes an operation in. Returns the metrics of the step that it ended, if it did.
    pub(crate) fn advance(&mut self, measured: &Measured) -> Option<Vec<(&'static str, f64)>> {
        match measured {
            Measured::Pass(sums) => {
                self.tokens += sums.tokens;
                self.busy_ms += sums.busy_ms;
                self.passes.add(sums);
                None
            }
            Measured::Step(facts) => {
                self.steps += 1;
                self.busy_ms += facts.busy_ms;
                Some(metrics(&std::mem::take(&mut self.passes), facts))
            }
        }
    }
}

/// Returns the metrics of a step. Those that mean nothing for it are left out.
fn metrics(passes: &PassSums, step: &StepFacts) -> Vec<(&'static str, f64)> {
    let per = |sum: f64, count: f64| (count > 0.0).then(|| sum / count);
    let had_passes = passes.datums > 0;
    let when_passed = |value: f64| had_passes.then_some(value);
    let seconds = (passes.busy_ms + step.busy_ms) / 1000.0;
    let sampled = passes.sampled as f64;
    let all = [
        ("loss", per(passes.loss, passes.weight)),
        ("loss_per_datum", per(passes.loss, passes.datums as f64)),
        ("loss_sum", when_passed(passes.loss)),
        ("tokens", when_passed(passes.tokens as f64)),
        ("datums", when_passed(passes.datums as f64)),
        ("grad_norm", step.gradient_norm),
        ("learning_rate", step.learning_rate),
        (
            "tokens_per_second",
            per(passes.tokens as f64, seconds).filter(|_| had_passes),
        ),
        ("forward_backward_ms", when_passed(passes.busy_ms)),
        ("optim_step_ms", Some(step.busy_ms)),
        ("queue_ms", Some(passes.queue_ms + step.queue_ms)),
        (
            "kl_sampler_trainer",
            per(passes.divergence, passes.diverging as f64),
        ),
        ("entropy_estimate", per(-passes.logprobs, sampled)),
        ("advantage_mean", per(passes.advantages, sampled)),
    ];
    let known = all.into_iter();
    let known = known.filter_map(|(name, value)| Some((name, value?)));
    known.filter(|(_, value)| value.is_finite()).collect()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_types::ModelInput;
    use tinkrs_types::training::AdamParams;

    fn value(metrics: &[(&'static str, f64)], name: &str) -> Option<f64> {
        let found = metrics.iter().find(|(found, _)| *found == name);
        found.map(|(_, value)| *value)
    }

    fn step() -> Measured {
        let params = OptimizerParams::Adam(AdamParams::new(0.5));
        let metrics = Metrics::from([("grad_norm".to_owned(), 2.0)]);
        let output = OptimStepOutput::new(Some(metrics));
        let mut facts = StepFacts::new(&params, &output);
        facts.add_times(Duration::from_millis(100), 7);
        Measured::Step(facts)
    }

    #[test]
    fn the_passes_of_a_step_are_added_up_and_the_next_begins_at_zero() {
        let datum = Datum::supervised(vec![1, 2, 3], [2, 3, 4], [0.0, 1.0, 1.0]).unwrap();
        let mut sums = PassSums::of(&[datum.clone(), datum], &LossFn::CrossEntropy.into());
        sums.add_result(&Metrics::from([("loss:sum".to_owned(), 8.0)]));
        sums.add_times(Duration::from_millis(200), 3);
        let mut progress = Progress::default();
        for _ in 0..2 {
            assert_eq!(progress.advance(&Measured::Pass(sums.clone())), None);
        }
        let metrics = progress.advance(&step()).unwrap();
        for (name, expected) in [
            ("loss", 16.0 / 8.0),
            ("loss_per_datum", 4.0),
            ("loss_sum", 16.0),
            ("tokens", 12.0),
            ("datums", 4.0),
            ("grad_norm", 2.0),
            ("learning_rate", 0.5),
            ("tokens_per_second", 12.0 / 0.5),
            ("forward_backward_ms", 400.0),
            ("optim_step_ms", 100.0),
            ("queue_ms", 13.0),
        ] {
            assert_eq!(value(&metrics, name), Some(expected), "{name}");
        }
        assert_eq!(metrics.len(), 11, "{metrics:?}");
        assert_eq!((progress.steps, progress.tokens), (1, 12));
        // A step without passes has no loss.
        let metrics = progress.advance(&step()).unwrap();
        assert_eq!(value(&metrics, "loss"), None);
        assert_eq!(value(&metrics, "learning_rate"), Some(0.5));
        assert_eq!(progress.steps, 2);
    }

    #[test]
    fn the_tokens_of_a_prompt_say_nothing_of_the_policy() {
        let datum = Datum::reinforcement(
            ModelInput::from_tokens([1, 2, 3]),
            [2_i64, 3, 4],
            [0.0_f32, -1.0, -3.0],
            [0.0_f32, 0.5, -1.5],
        )
        .unwrap();
        let mut sums = PassSums::of(&[datum], &LossFn::ImportanceSampling.into());
        sums.add_result(&Metrics::from([
            ("loss:sum".to_owned(), 1.0),
            ("kl_sampler:mean".to_owned(), 0.25),
        ]));
        let mut progress = Progress::default();
        progress.advance(&Measured::Pass(sums));
        let metrics = progress.advance(&step()).unwrap();
        assert_eq!(value(&metrics, "entropy_estimate"), Some(2.0));
        assert_eq!(value(&metrics, "advantage_mean"), Some(-0.5));
        assert_eq!(value(&metrics, "kl_sampler_trainer"), Some(0.25));
        assert_eq!(value(&metrics, "loss"), Some(0.5), "two tokens count");
    }

    #[test]
    fn what_is_not_a_number_is_left_out() {
        let mut sums = PassSums::of(&[], &LossFn::CrossEntropy.into());
        sums.datums = 1;
        sums.add_result(&Metrics::new());
        let mut progress = Progress::default();
        progress.advance(&Measured::Pass(sums));
        let metrics = progress.advance(&step()).unwrap();
        assert_eq!(value(&metrics, "loss_sum"), None);
        assert_eq!(value(&metrics, "datums"), Some(1.0));
    }
}
