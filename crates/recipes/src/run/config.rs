//! Settings that several recipes have.
//!
//! A setting is one field: its doc comment is the help of its option, and its path in the serialized
//! settings is the option's id. Option names differ from field names only where settings of several
//! structs come together on one command line.

use super::at_least_one;
use super::start::Start;
use crate::Error;
use crate::data::Batches;
use serde::{Deserialize, Serialize};
use tinkrs::{AdamParams, UserMetadata};

/// Which adapter of which model a run trains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Adapter {
    /// Base model, by the server's name for it.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub base_model: String,
    /// What the run is called on the server; a name that it makes up unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub name: Option<String>,
    /// Rank of the adapter: that of the checkpoint it starts from, else 32, unless given.
    #[serde(default)]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "adapter.rank",
            long = "rank",
            value_name = "N",
            help_heading = "Optimizer"
        )
    )]
    pub rank: Option<u32>,
    /// Seed for the adapter's first weights, if it starts from no checkpoint.
    #[serde(default)]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "adapter.seed",
            long = "adapter-seed",
            value_name = "N",
            help_heading = "Optimizer"
        )
    )]
    pub seed: i64,
    /// The checkpoint to start from, in place of a new adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub from: Option<Start>,
    /// What else the server is to remember of the run, as its labels.
    #[serde(default, skip_serializing_if = "UserMetadata::is_empty")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub labels: UserMetadata,
}

impl Adapter {
    /// Describes an adapter of the default rank.
    pub fn new(base_model: impl Into<String>) -> Self {
        Self {
            base_model: base_model.into(),
            name: None,
            rank: None,
            seed: 0,
            from: None,
            labels: UserMetadata::new(),
        }
    }

    /// Checks ranges.
    pub(crate) fn check(&self) -> Result<(), Error> {
        at_least_one("rank", self.rank.unwrap_or(1) as usize)
    }
}

/// Settings of the optimizer other than the learning rate, which changes from step to step.
///
/// The defaults are those of [`AdamParams`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Adam {
    /// Decay of the running mean of Adam's gradients.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "adam.beta1",
            long = "adam-beta1",
            value_name = "X",
            help_heading = "Optimizer"
        )
    )]
    pub beta1: f64,
    /// Decay of the running mean of Adam's squared gradients.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "adam.beta2",
            long = "adam-beta2",
            value_name = "X",
            help_heading = "Optimizer"
        )
    )]
    pub beta2: f64,
    /// Added to Adam's denominator.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "adam.eps",
            long = "adam-eps",
            value_name = "X",
            help_heading = "Optimizer"
        )
    )]
    pub eps: f64,
    /// Decoupled weight decay.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "adam.weight_decay",
            long = "weight-decay",
            value_name = "X",
            help_heading = "Optimizer"
        )
    )]
    pub weight_decay: f64,
    /// Largest norm of the gradients; 0 means no clipping.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "adam.grad_clip_norm",
            long = "grad-clip-norm",
            value_name = "X",
            help_heading = "Optimizer"
        )
    )]
    pub grad_clip_norm: f64,
}

impl Adam {
    /// Returns the parameters of a step with this learning rate.
    pub fn with_rate(&self, learning_rate: f64) -> AdamParams {
        AdamParams {
            learning_rate,
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            weight_decay: self.weight_decay,
            grad_clip_norm: self.grad_clip_norm,
        }
    }

    /// Checks ranges.
    pub(crate) fn check(&self) -> Result<(), Error> {
        Ok(self.with_rate(0.0).check()?)
    }
}

impl Default for Adam {
    fn default() -> Self {
        let params = AdamParams::default();
        Self {
            beta1: params.beta1,
            beta2: params.beta2,
            eps: params.eps,
            weight_decay: params.weight_decay,
            grad_clip_norm: params.grad_clip_norm,
        }
    }
}

/// How a recipe goes through a fixed set of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Passes {
    /// Lines of the data in a step.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub batch_size: usize,
    /// Passes over the data.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub epochs: usize,
    /// End the run after this many steps, even if data is left.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub max_steps: Option<usize>,
}

impl Passes {
    /// Returns how many steps a run over so many examples takes.
    ///
    /// # Errors
    /// If there are no examples, or the batch size is 0.
    pub fn steps(&self, examples: usize) -> Result<usize, Error> {
        let batches = Batches::new(examples, self.batch_size, 0)?;
        Ok(batches.steps(self.epochs, self.max_steps))
    }

    /// Checks ranges.
    pub(crate) fn check(&self) -> Result<(), Error> {
        at_least_one("batch_size", self.batch_size)?;
        at_least_one("epochs", self.epochs)?;
        at_least_one("max_steps", self.max_steps.unwrap_or(1))
    }
}

impl Default for Passes {
    fn default() -> Self {
        Self {
            batch_size: 16,
            epochs: 1,
            max_steps: None,
        }
    }
}
