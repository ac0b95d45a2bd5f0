//! Settings of a reinforcement run.

use super::advantage::Baseline;
use crate::run::{self, Adapter};
use crate::{Error, Schedule};
use serde::{Deserialize, Serialize};
use tinkrs::training::ClipBounds;
use tinkrs::{AdamParams, LossFn};

/// Which policy gradient to train with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLoss {
    /// Corrected by the probability ratio of trainer and sampler, without a limit.
    #[default]
    ImportanceSampling,
    /// With the ratio's effect clipped.
    Ppo {
        /// The lowest ratio that counts, such as 0.8.
        low: f64,
        /// The highest, such as 1.2.
        high: f64,
    },
    /// With the ratio clipped, but every token's gradient kept.
    Cispo {
        /// The lowest ratio.
        low: f64,
        /// The highest.
        high: f64,
    },
}

impl PolicyLoss {
    pub(super) fn to_loss_fn(self) -> LossFn {
        match self {
            Self::ImportanceSampling => LossFn::ImportanceSampling,
            Self::Ppo { low, high } => LossFn::Ppo(ClipBounds::new(low, high)),
            Self::Cispo { low, high } => LossFn::Cispo(ClipBounds::new(low, high)),
        }
    }
}

/// Settings of a reinforcement run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Which adapter of which model.
    pub adapter: Adapter,
    /// The learning rate.
    #[serde(default)]
    pub learning_rate: Schedule,
    /// How many steps. Default 50.
    #[serde(default = "default_steps")]
    pub steps: usize,
    /// Problems in a step. Default 8.
    #[serde(default = "default_problems")]
    pub problems_per_step: usize,
    /// Episodes of each problem, which are compared with each other. Default 8.
    #[serde(default = "default_group_size")]
    pub group_size: usize,
    /// How many steps old the weights may be that an episode is played with. 0 plays and trains
    /// in turns; from 1 on, the next episodes are played while a step trains. Default 1.
    #[serde(default = "default_staleness")]
    pub max_staleness: usize,
    /// How rewards become advantages. Default: less the group's mean.
    #[serde(default)]
    pub baseline: Baseline,
    /// Which policy gradient. Default importance sampling.
    #[serde(default)]
    pub loss: PolicyLoss,
    /// How much straying from the base model costs, per token and nat. Default 0.
    #[serde(default)]
    pub kl_penalty: f64,
    /// Seeds the order of problems, and the sampling. Default 0.
    #[serde(default)]
    pub seed: u64,
    /// Saves a checkpoint every so many steps; 0 saves one at the end only. Default 20.
    #[serde(default = "default_checkpoint_every")]
    pub checkpoint_every: usize,
    /// Other settings of the optimizer; the learning rate in here is not used.
    #[serde(default)]
    pub adam: AdamParams,
}

impl Config {
    /// Makes the default settings for a model.
    pub fn new(base_model: impl Into<String>) -> Self {
        Self {
            adapter: Adapter::new(base_model),
            learning_rate: Schedule::default(),
            steps: default_steps(),
            problems_per_step: default_problems(),
            group_size: default_group_size(),
            max_staleness: default_staleness(),
            baseline: Baseline::default(),
            loss: PolicyLoss::default(),
            kl_penalty: 0.0,
            seed: 0,
            checkpoint_every: default_checkpoint_every(),
            adam: AdamParams::default(),
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If a value makes no sense; the error names it.
    pub fn check(&self) -> Result<(), Error> {
        self.learning_rate.check()?;
        run::at_least_one("steps", self.steps)?;
        run::at_least_one("problems_per_step", self.problems_per_step)?;
        run::at_least_one("group_size", self.group_size)?;
        if self.group_size == 1 && self.baseline != Baseline::None && self.kl_penalty == 0.0 {
            let problem = "1: a group of one has nothing to be compared with";
            return Err(Error::setting("group_size", problem));
        }
        if !(self.kl_penalty >= 0.0 && self.kl_penalty.is_finite()) {
            let problem = format!("{}, expected 0 or more", self.kl_penalty);
            return Err(Error::setting("kl_penalty", problem));
        }
        if let PolicyLoss::Ppo { low, high } | PolicyLoss::Cispo { low, high } = self.loss
            && !((0.0..=1.0).contains(&low) && high >= 1.0 && high.is_finite())
        {
            let problem = format!("ratios from {low} to {high}, expected a range around 1");
            return Err(Error::setting("loss", problem));
        }
        self.adapter.check()
    }
}

fn default_steps() -> usize {
    50
}

fn default_problems() -> usize {
    8
}

fn default_group_size() -> usize {
    8
}

fn default_staleness() -> usize {
    1
}

fn default_checkpoint_every() -> usize {
    20
}
