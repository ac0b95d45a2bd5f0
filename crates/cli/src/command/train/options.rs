//! Options that every recipe has.

use std::path::PathBuf;

use tinkrs::AdamParams;
use tinkrs_recipes::run::Adapter;
use tinkrs_recipes::{Decay, Schedule};

use crate::backend::BackendArgs;
use crate::choice;
use crate::report::Hint;

/// What every recipe is told
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(super) backend: BackendArgs,

    /// File with one JSON object a line, as described above. Required, here or in `--config`
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    pub(super) data: Option<PathBuf>,

    /// Folder for the run: settings, journal, metrics, samples and report. Required, here or in `--config`
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub(super) run_dir: Option<PathBuf>,

    /// TOML file of settings: every option here is a key, with `_` for `-`
    ///
    /// What is typed comes before what the file says. Paths are relative to the folder in which the
    /// command is run. `yes` is not a key.
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    config: Option<PathBuf>,

    /// Save a checkpoint every so many steps; 0 saves one at the end only. Default 50; 20 where the model
    /// learns from its own answers
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub(super) checkpoint_every: Option<usize>,

    /// Seed for the order of the data and, where the recipe samples, for the draws. Default 0
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub(super) seed: Option<u64>,

    /// Ask the model this before and after training, for the report; may be repeated
    #[arg(long, value_name = "TEXT", help_heading = "Run")]
    pub(super) ask: Vec<String>,

    /// Do not ask before training on the hosted service, which charges for it
    #[arg(long, help_heading = "Run")]
    pub(super) yes: bool,

    /// Rank of the adapter. Default 32
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Optimizer")]
    rank: Option<u32>,

    /// Seed for the adapter's first weights. Default 0
    #[arg(long, value_name = "N", help_heading = "Optimizer")]
    adapter_seed: Option<i64>,

    /// Highest learning rate. Default 5e-4 for examples, 1e-5 for preferences, 1e-4 where the model learns
    /// from its own answers
    #[arg(long, value_name = "RATE", help_heading = "Optimizer")]
    learning_rate: Option<f64>,

    /// Steps over which the learning rate rises to its highest. Default 5 for examples, else 0
    #[arg(long, value_name = "N", help_heading = "Optimizer")]
    warmup_steps: Option<usize>,

    /// How the learning rate goes on after that: constant, linear or cosine. Default cosine for examples,
    /// else linear
    #[arg(long, value_name = "NAME", value_parser = choice::read::<Decay>, help_heading = "Optimizer")]
    decay: Option<Decay>,

    /// Part of the highest learning rate that it falls to, from 0 to 1. Default 0
    #[arg(long, value_name = "PART", help_heading = "Optimizer")]
    decay_floor: Option<f64>,

    /// Adam's beta1. Default 0.9
    #[arg(long, value_name = "X", help_heading = "Optimizer")]
    adam_beta1: Option<f64>,

    /// Adam's beta2. Default 0.95
    #[arg(long, value_name = "X", help_heading = "Optimizer")]
    adam_beta2: Option<f64>,

    /// Adam's epsilon. Default 1e-12
    #[arg(long, value_name = "X", help_heading = "Optimizer")]
    adam_eps: Option<f64>,

    /// Decoupled weight decay. Default 0
    #[arg(long, value_name = "X", help_heading = "Optimizer")]
    weight_decay: Option<f64>,

    /// Largest norm of the gradients; 0 does not clip. Default 0
    #[arg(long, value_name = "X", help_heading = "Optimizer")]
    grad_clip_norm: Option<f64>,
}

impl RunArgs {
    /// Returns the file of data, which must be given somewhere.
    pub(super) fn data(&self) -> anyhow::Result<&PathBuf> {
        self.data.as_ref().ok_or_else(|| {
            anyhow::anyhow!("there is no file to learn from").context(Hint(
                "name it with `--data FILE`, or with the key `data` of the `--config` file",
            ))
        })
    }

    /// Returns the folder of the run, which must be given somewhere.
    pub(super) fn run_dir(&self) -> anyhow::Result<&PathBuf> {
        self.run_dir.as_ref().ok_or_else(|| {
            anyhow::anyhow!("there is no folder for the run").context(Hint(
                "name one with `--run-dir DIR`, or with the key `run_dir` of the `--config` file",
            ))
        })
    }

    pub(super) fn adapter(&self, model: &str) -> Adapter {
        let default = Adapter::new(model);
        Adapter {
            rank: self.rank.unwrap_or(default.rank),
            seed: self.adapter_seed.unwrap_or(default.seed),
            ..default
        }
    }

    /// Changes a recipe's learning rate to what was asked for.
    pub(super) fn schedule(&self, default: Schedule) -> Schedule {
        Schedule {
            peak: self.learning_rate.unwrap_or(default.peak),
            warmup_steps: self.warmup_steps.unwrap_or(default.warmup_steps),
            decay: self.decay.unwrap_or(default.decay),
            floor: self.decay_floor.unwrap_or(default.floor),
        }
    }

    pub(super) fn adam(&self) -> anyhow::Result<AdamParams> {
        let default = AdamParams::default();
        let adam = AdamParams {
            beta1: self.adam_beta1.unwrap_or(default.beta1),
            beta2: self.adam_beta2.unwrap_or(default.beta2),
            eps: self.adam_eps.unwrap_or(default.eps),
            weight_decay: self.weight_decay.unwrap_or(default.weight_decay),
            grad_clip_norm: self.grad_clip_norm.unwrap_or(default.grad_clip_norm),
            ..default
        };
        adam.check()?;
        Ok(adam)
    }
}
