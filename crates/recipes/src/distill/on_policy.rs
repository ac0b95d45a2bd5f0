//! On-policy distillation: the student writes, the teacher says how likely that was.
//!
//! Every token gets an advantage of its own, `log p_teacher − log p_student` less the batch's mean.
//! At the tokens that the student draws, this follows the gradient of the reverse KL divergence
//! down. There is no reward and no group: it is the reinforcement loop, pulled towards the
//! teacher and nothing else.

use crate::rl::{self, Baseline, Env, EnvFuture, Episodes, PolicyConfig, Problem, Reference, Turn};
use crate::run::{Adam, Adapter, Checkpoints, Evaluation, Hooks, Outcome};
use crate::{Error, Schedule};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use tinkrs::{BoxError, SamplingClient, SamplingParams, ServiceClient};

/// Settings of on-policy distillation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct OnPolicyConfig {
    /// Which adapter of which student.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub adapter: Adapter,
    /// The learning rate.
    #[serde(default)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub learning_rate: Schedule,
    /// How many answers are sampled, and how the student learns from them.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub policy: PolicyConfig,
    /// How much each nat of distance from the teacher counts.
    #[serde(default = "default_kl_weight")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "X"))]
    pub kl_weight: f64,
    /// How much a token also counts for the distance of those after it, less by this factor a token: 0 for its own
    /// alone.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "X"))]
    pub kl_discount: f64,
    /// Seed for the order of the prompts, and for sampling.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Run"))]
    pub seed: u64,
    /// Save a checkpoint every so many steps, and one at the end; 0 saves the last one only.
    #[serde(default = "rl::default_checkpoint_every")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Run"))]
    pub checkpoint_every: usize,
    /// Which checkpoints stay.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub checkpoints: Checkpoints,
    /// Other settings of the optimizer.
    #[serde(default)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub adam: Adam,
}

impl OnPolicyConfig {
    /// Makes the default settings for a student.
    pub fn new(student: impl Into<String>) -> Self {
        Self {
            adapter: Adapter::new(student),
            learning_rate: Schedule::default(),
            policy: PolicyConfig::default(),
            kl_weight: default_kl_weight(),
            kl_discount: 0.0,
            seed: 0,
            checkpoint_every: rl::default_checkpoint_every(),
            checkpoints: Checkpoints::default(),
            adam: Adam::default(),
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If a value is out of range; the error names the setting.
    pub fn check(&self) -> Result<(), Error> {
        if !(self.kl_weight > 0.0 && self.kl_weight.is_finite()) {
            let problem = format!("{}, expected a positive number", self.kl_weight);
            return Err(Error::setting("kl_weight", problem));
        }
        self.as_rl().check()
    }

    /// Returns the reinforcement run that this is: one that earns nothing but the teacher's agreement.
    pub(crate) fn as_rl(&self) -> rl::Config {
        rl::Config {
            adapter: self.adapter.clone(),
            learning_rate: self.learning_rate,
            policy: self.policy,
            episodes: Episodes::default(),
            baseline: Baseline::None,
            kl_penalty: self.kl_weight,
            kl_reference: None,
            kl_discount: self.kl_discount,
            seed: self.seed,
            checkpoint_every: self.checkpoint_every,
            checkpoints: self.checkpoints,
            evaluation: Evaluation::NEVER,
            adam: self.adam,
        }
    }
}

fn default_kl_weight() -> f64 {
    1.0
}

/// Who teaches: one model, or several with prompts of their own.
#[derive(Clone, Debug)]
pub struct Teachers {
    samplers: Vec<SamplingClient>,
    /// For each prompt, whose it is; empty for a single teacher.
    of_prompt: Vec<usize>,
}

impl Teachers {
    /// Several teachers; `of_prompt` says for each prompt, by index, who teaches it.
    pub fn new(samplers: Vec<SamplingClient>, of_prompt: Vec<usize>) -> Self {
        Self {
            samplers,
            of_prompt,
        }
    }
}

impl From<SamplingClient> for Teachers {
    fn from(teacher: SamplingClient) -> Self {
        Self::new(vec![teacher], Vec::new())
    }
}

/// A prompt that the student continues. Its answers earn no reward.
#[derive(Clone, Debug)]
struct Prompt {
    tokens: Arc<Vec<u32>>,
    /// Which of several teachers it has.
    teacher: Option<usize>,
    params: SamplingParams,
}

impl Problem for Prompt {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        let prompt: Box<dyn Env> = Box::new(self.clone());
        Box::pin(std::future::ready(Ok(prompt)))
    }

    fn params(&self) -> SamplingParams {
        self.params.clone()
    }

    fn identity(&self) -> Vec<u32> {
        let teacher = self.teacher.map(|teacher| teacher as u32);
        self.tokens.iter().copied().chain(teacher).collect()
    }
}

impl Env for Prompt {
    fn observe(&self) -> Result<Vec<u32>, BoxError> {
        Ok(self.tokens.to_vec())
    }

    fn act<'a>(&'a mut self, _: &'a [u32]) -> EnvFuture<'a, Turn> {
        Box::pin(std::future::ready(Ok(Turn::end(0.0))))
    }
}

/// Returns how the run in a folder ended, if it did: [`on_policy`] then has nothing left to do. `of_prompt` is that of
/// [`Teachers`].
///
/// # Errors
/// As [`rl::finished`].
pub fn on_policy_finished(
    config: &OnPolicyConfig,
    prompts: &[Vec<u32>],
    of_prompt: &[usize],
    params: &SamplingParams,
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    config.check()?;
    let problems = problems(prompts, of_prompt, params);
    rl::finished(&config.as_rl(), &problems, folder)
}

/// Teaches the student of `config` to write as the teacher would, in a run folder.
///
/// The number to watch is `kl_reference`: how far the student still is, in nats a token. All
/// models must share a tokenizer. Resumes and stops as [`rl::train`] does.
///
/// # Errors
/// As [`rl::train`].
pub async fn on_policy(
    service: &ServiceClient,
    config: &OnPolicyConfig,
    teachers: impl Into<Teachers>,
    prompts: &[Vec<u32>],
    params: &SamplingParams,
    folder: impl AsRef<Path>,
    hooks: Hooks<'_>,
) -> Result<Outcome, Error> {
    config.check()?;
    let teachers = teachers.into();
    let problems = problems(prompts, &teachers.of_prompt, params);
    let Teachers {
        samplers,
        of_prompt,
    } = teachers;
    let reference = Reference::of_problems(samplers, of_prompt, config.kl_weight)?;
    let reference = reference.discounted(config.kl_discount);
    let config = config.as_rl();
    rl::train_towards(service, &config, &problems, Some(reference), folder, hooks).await
}

fn problems(
    prompts: &[Vec<u32>],
    of_prompt: &[usize],
    params: &SamplingParams,
) -> Vec<Arc<dyn Problem>> {
    let problem = |(index, tokens): (usize, &Vec<u32>)| -> Arc<dyn Problem> {
        Arc::new(Prompt {
            tokens: Arc::new(tokens.clone()),
            teacher: of_prompt.get(index).copied(),
            params: params.clone(),
        })
    };
    prompts.iter().enumerate().map(problem).collect()
}
