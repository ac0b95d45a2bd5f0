//! Settings of a reinforcement run.

use super::advantage::Baseline;
use super::episodes::Episodes;
use super::loss::PolicyLoss;
use crate::run::{self, Adam, Adapter, Checkpoints, Evaluation, ReferenceModel};
use crate::{Error, Schedule};
use serde::{Deserialize, Serialize};

/// Settings of a reinforcement run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Config {
    /// Which adapter of which model.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub adapter: Adapter,
    /// The learning rate.
    #[serde(default)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub learning_rate: Schedule,
    /// How many episodes are played, and how the model learns from them.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub policy: PolicyConfig,
    /// What episodes may take, and what becomes of those that fail.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub episodes: Episodes,
    /// How rewards become advantages.
    #[serde(default)]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "NAME", value_enum, help_heading = "Loss")
    )]
    pub baseline: Baseline,
    /// How much distance from the weights that it starts from costs, per token and nat.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "X", help_heading = "Loss"))]
    pub kl_penalty: f64,
    /// What the distance is measured from, if not the weights that it starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub kl_reference: Option<ReferenceModel>,
    /// How much a token also counts for the distance of those after it, less by this factor a token: 0 for its own
    /// alone.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "X", help_heading = "Loss"))]
    pub kl_discount: f64,
    /// Seed for the order of the problems, and for sampling.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Run"))]
    pub seed: u64,
    /// Save a checkpoint every so many steps, and one at the end; 0 saves the last one only.
    #[serde(default = "default_checkpoint_every")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Run"))]
    pub checkpoint_every: usize,
    /// Which checkpoints stay.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub checkpoints: Checkpoints,
    /// When it is evaluated, and what follows from it.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub evaluation: Evaluation,
    /// Other settings of the optimizer.
    #[serde(default)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub adam: Adam,
}

/// Settings of every recipe that learns from what the model itself writes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct PolicyConfig {
    /// How many steps.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub steps: usize,
    /// Problems (questions) in a step.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub problems_per_step: usize,
    /// Episodes of each problem (answers to each question), which are compared with each other.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub group_size: usize,
    /// How many steps old the weights may be that an episode is sampled with. 0 samples and trains in
    /// turns; from 1 on, the next episodes are sampled while a step trains.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub max_staleness: usize,
    /// Train on the groups that finish first, whichever they are, in place of playing each step's to the end.
    /// A group that took longer than `--max-staleness` allows is dropped or played again, as `--stale` says.
    #[cfg_attr(feature = "clap", arg(long))]
    pub asynchronous: bool,
    /// What becomes of groups that are too old, with `--asynchronous`.
    #[cfg_attr(feature = "clap", arg(long, value_name = "WHAT", value_enum))]
    pub stale: Stale,
    /// Updates of the weights in a step, each with its part of the groups.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub substeps: usize,
    /// Parts of the groups of an update. Gradients of the first are computed while the others are still being
    /// played.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub minibatches: usize,
    /// Which policy gradient.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub loss: PolicyLoss,
}

/// What becomes of a group whose weights are too old when it is finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Stale {
    /// It is left out, and the next problem has its turn.
    #[default]
    Drop,
    /// Its problem is played again, with the present weights.
    Requeue,
}

impl PolicyConfig {
    /// Returns in how many parts a step trains.
    pub(super) fn parts(&self) -> usize {
        self.substeps * self.minibatches
    }

    fn check(&self) -> Result<(), Error> {
        run::at_least_one("steps", self.steps)?;
        run::at_least_one("problems_per_step", self.problems_per_step)?;
        run::at_least_one("group_size", self.group_size)?;
        run::at_least_one("substeps", self.substeps)?;
        run::at_least_one("minibatches", self.minibatches)?;
        let parts = self.substeps.checked_mul(self.minibatches);
        if parts.is_none_or(|parts| parts > self.problems_per_step) {
            let problem = format!(
                "{} times {}, but a step has groups of {} problems",
                self.substeps, self.minibatches, self.problems_per_step
            );
            return Err(Error::setting("substeps and minibatches", problem));
        }
        if self.stale != Stale::default() && !self.asynchronous {
            let problem = "no group can be too old without `asynchronous`";
            return Err(Error::setting("stale", problem));
        }
        self.loss.check()
    }
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            steps: 50,
            problems_per_step: 8,
            group_size: 8,
            max_staleness: 1,
            asynchronous: false,
            stale: Stale::default(),
            substeps: 1,
            minibatches: 1,
            loss: PolicyLoss::default(),
        }
    }
}

impl Config {
    /// Makes the default settings for a model.
    pub fn new(base_model: impl Into<String>) -> Self {
        Self {
            adapter: Adapter::new(base_model),
            learning_rate: Schedule::default(),
            policy: PolicyConfig::default(),
            episodes: Episodes::default(),
            baseline: Baseline::default(),
            kl_penalty: 0.0,
            kl_reference: None,
            kl_discount: 0.0,
            seed: 0,
            checkpoint_every: default_checkpoint_every(),
            checkpoints: Checkpoints::default(),
            evaluation: Evaluation::default(),
            adam: Adam::default(),
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If a value is out of range; the error names the setting.
    pub fn check(&self) -> Result<(), Error> {
        self.learning_rate.check()?;
        self.policy.check()?;
        if self.policy.group_size == 1 && self.baseline != Baseline::None && self.kl_penalty == 0.0
        {
            let problem = "1: a group of one has nothing to be compared with";
            return Err(Error::setting("group_size", problem));
        }
        if !(self.kl_penalty >= 0.0 && self.kl_penalty.is_finite()) {
            let problem = format!("{}, expected 0 or more", self.kl_penalty);
            return Err(Error::setting("kl_penalty", problem));
        }
        check_discount(self.kl_discount)?;
        if self.kl_penalty == 0.0 && (self.kl_discount > 0.0 || self.kl_reference.is_some()) {
            let problem = "0, but a reference or a discount is given";
            return Err(Error::setting("kl_penalty", problem));
        }
        self.episodes.check(self.policy.group_size)?;
        self.adam.check()?;
        self.checkpoints.check()?;
        self.evaluation.check()?;
        self.adapter.check()
    }
}

/// Refuses a discount that would not be one.
fn check_discount(discount: f64) -> Result<(), Error> {
    if (0.0..=1.0).contains(&discount) {
        return Ok(());
    }
    let problem = format!("{discount}, expected 0 to 1");
    Err(Error::setting("kl_discount", problem))
}

/// Steps between checkpoints where the model learns from its own answers, which takes longer.
pub(crate) fn default_checkpoint_every() -> usize {
    20
}
