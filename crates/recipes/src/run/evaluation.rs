//! Evaluations during a run: which weights were the best, and whether it still gets better.

use super::journal::SavedCheckpoint;
use super::metrics::Numbers;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// When a run evaluates, and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Evaluation {
    /// Evaluate every so many steps, before the first one and at the end; 0 never does.
    #[serde(rename = "eval_every")]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "eval_every",
            long = "eval-every",
            value_name = "N",
            help_heading = "Evaluation"
        )
    )]
    pub every: usize,
    /// Stop when so many evaluations in a row were no better than the best one; the run then ends with the
    /// weights of the best one. 0 never stops.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "N", help_heading = "Evaluation")
    )]
    pub early_stop: usize,
    /// Save a checkpoint at the best evaluation, too, and keep it whatever `keep-last` says.
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Evaluation"))]
    pub keep_best: bool,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self {
            every: 20,
            early_stop: 0,
            keep_best: false,
        }
    }
}

impl Evaluation {
    /// Makes the settings of a run that never evaluates.
    pub const NEVER: Self = Self {
        every: 0,
        early_stop: 0,
        keep_best: false,
    };

    /// Whether the checkpoint of the best evaluation is wanted.
    pub(super) fn keeps_best(&self) -> bool {
        self.keep_best || self.early_stop > 0
    }

    fn needing(&self) -> Option<(&'static str, String)> {
        match self {
            Self {
                early_stop: 1.., ..
            } => Some(("early_stop", self.early_stop.to_string())),
            Self {
                keep_best: true, ..
            } => Some(("keep_best", "true".to_owned())),
            _ => None,
        }
    }

    /// Checks that what needs evaluations gets some.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.needing() {
            Some((setting, value)) if self.every == 0 => {
                let problem = format!("{value}, but there are no evaluations: their interval is 0");
                Err(Error::setting(setting, problem))
            }
            _ => Ok(()),
        }
    }

    /// Refuses to go by evaluations if there is nothing to evaluate with.
    pub(crate) fn check_data(&self, items: usize) -> Result<(), Error> {
        match self.needing() {
            Some((setting, value)) if items == 0 => {
                let problem = format!("{value}, but there are no evaluation data");
                Err(Error::setting(setting, problem))
            }
            _ => Ok(()),
        }
    }
}

/// The number by which weights are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// Its name in the metrics.
    pub number: &'static str,
    /// Whether more is better.
    pub more: bool,
}

impl Goal {
    /// The loss on data that are not trained on.
    pub const LOSS: Self = Self {
        number: "eval_loss",
        more: false,
    };
    /// The mean reward on problems that are not trained on.
    pub const REWARD: Self = Self {
        number: "eval_reward",
        more: true,
    };

    /// Whether one value is better than another.
    pub fn is_better(self, value: f64, than: f64) -> bool {
        if self.more {
            value > than
        } else {
            value < than
        }
    }
}

/// The best evaluation of a run so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// How many steps the weights had seen.
    pub steps: usize,
    /// How good they were.
    pub value: f64,
}

/// What the evaluations of a run so far say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Standing {
    pub(super) best: Option<Best>,
    /// How many evaluations came after the best one.
    pub(super) since_best: usize,
}

impl Standing {
    /// Reads it from the metrics of a run that goes on. Weights that were not saved cannot be the best ones: a
    /// run could not end with them.
    pub(super) fn of_run(
        metrics: &BTreeMap<usize, Numbers>,
        saved: &[SavedCheckpoint],
        goal: Goal,
    ) -> Self {
        let mut standing = Self::default();
        for (steps, numbers) in metrics {
            let Some(value) = numbers.get(goal.number) else {
                continue;
            };
            if saved.iter().any(|saved| saved.steps == *steps) {
                standing.add(*steps, *value, goal);
            } else {
                standing.since_best += usize::from(standing.best.is_some());
            }
        }
        standing
    }

    /// Adds an evaluation. Returns whether it is the best one so far.
    pub(super) fn add(&mut self, steps: usize, value: f64, goal: Goal) -> bool {
        let is_best = match self.best {
            // What is not a number is never good.
            _ if value.is_nan() => false,
            Some(best) => goal.is_better(value, best.value),
            None => true,
        };
        if is_best {
            *self = Self {
                best: Some(Best { steps, value }),
                since_best: 0,
            };
        } else {
            self.since_best += 1;
        }
        is_best
    }

    /// Whether a run with so much patience stops.
    pub(super) fn is_over(&self, early_stop: usize) -> bool {
        early_stop > 0 && self.since_best >= early_stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_over_when_it_has_not_got_better_for_too_long() {
        let mut standing = Standing::default();
        let values = [3.0, 2.0, 2.0, f64::NAN, 1.5, 1.6, 1.7];
        let mut over = Vec::new();
        for (steps, value) in values.into_iter().enumerate() {
            standing.add(steps, value, Goal::LOSS);
            over.push(standing.is_over(2));
        }
        assert_eq!(over, [false, false, false, true, false, false, true]);
        assert_eq!(
            standing.best,
            Some(Best {
                steps: 4,
                value: 1.5
            })
        );
        assert!(!standing.is_over(0), "0 never stops");
        assert!(standing.add(9, 1.0, Goal::LOSS));
        assert!(!standing.add(9, 0.5, Goal::REWARD), "more reward is better");
    }

    #[test]
    fn weights_that_were_not_saved_are_not_the_best() {
        let numbers = |loss: f64| Numbers::from([("eval_loss".to_owned(), loss)]);
        let metrics = BTreeMap::from([(0, numbers(3.0)), (2, numbers(2.0)), (4, numbers(1.0))]);
        let saved = |steps: usize| SavedCheckpoint {
            steps,
            path: "tinker://run:train:0/weights/a".parse().unwrap(),
            temporary: false,
        };
        let standing = Standing::of_run(&metrics, &[saved(0), saved(2)], Goal::LOSS);
        assert_eq!(standing.best.map(|best| best.steps), Some(2));
        assert_eq!(standing.since_best, 1);
        let nothing = Standing::of_run(&metrics, &[], Goal::LOSS);
        assert_eq!(nothing, Standing::default());
    }

    #[test]
    fn what_needs_evaluations_says_so_without_them() {
        let stop = Evaluation {
            every: 0,
            early_stop: 3,
            keep_best: false,
        };
        let error = stop.check().unwrap_err().to_string();
        assert_eq!(
            error,
            "early_stop: 3, but there are no evaluations: their interval is 0"
        );
        assert!(Evaluation::NEVER.check().is_ok());
        let error = stop.check_data(0).unwrap_err().to_string();
        assert!(error.contains("no evaluation data"), "{error}");
        assert!(Evaluation::default().check_data(0).is_ok());
    }
}
