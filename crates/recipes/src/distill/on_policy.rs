//! On-policy distillation: the student writes, the teacher says how likely that was.
//!
//! Every token gets an advantage of its own, `log p_teacher − log p_student` less the batch's mean.
//! At the tokens that the student draws, this follows the gradient of the reverse KL divergence
//! down. There is no reward and no group: it is the reinforcement loop, pulled towards the
//! teacher and nothing else.

use crate::Error;
use crate::rl::{self, Baseline, Env, Problem, Reference, Turn};
use crate::run::{Hooks, Outcome};
use std::path::Path;
use std::sync::Arc;
use tinkrs::{BoxError, SamplingClient, SamplingParams, ServiceClient};

/// A prompt that the student continues, and nobody grades.
#[derive(Clone, Debug)]
struct Prompt {
    tokens: Arc<Vec<u32>>,
    params: SamplingParams,
}

impl Problem for Prompt {
    fn start(&self) -> Result<Box<dyn Env>, BoxError> {
        Ok(Box::new(self.clone()))
    }

    fn params(&self) -> SamplingParams {
        self.params.clone()
    }

    fn identity(&self) -> Vec<u32> {
        self.tokens.to_vec()
    }
}

impl Env for Prompt {
    fn observe(&self) -> Result<Vec<u32>, BoxError> {
        Ok(self.tokens.to_vec())
    }

    fn act(&mut self, _: &[u32]) -> Result<Turn, BoxError> {
        Ok(Turn::end(0.0))
    }
}

/// Returns how the run in a folder ended, if it did: [`on_policy`] then has nothing left to do.
///
/// # Errors
/// As [`rl::finished`].
pub fn on_policy_finished(
    config: &rl::Config,
    prompts: &[Vec<u32>],
    params: &SamplingParams,
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    rl::finished(&settings(config), &problems(prompts, params), folder)
}

/// Teaches the student of `config` to write as the teacher would, in a run folder.
///
/// The number to watch is `kl_reference`: how far the student still is, in nats a token. The two
/// models must share a tokenizer. `config.kl_penalty` is how much each nat counts, 1 if it is 0;
/// `baseline` and rewards play no part. Resumes and stops as [`rl::train`] does.
///
/// # Errors
/// As [`rl::train`].
pub async fn on_policy(
    service: &ServiceClient,
    config: &rl::Config,
    teacher: SamplingClient,
    prompts: &[Vec<u32>],
    params: &SamplingParams,
    folder: impl AsRef<Path>,
    hooks: Hooks<'_>,
) -> Result<Outcome, Error> {
    let config = settings(config);
    let reference = Reference {
        sampler: teacher,
        weight: config.kl_penalty,
    };
    let problems = problems(prompts, params);
    rl::train_towards(service, &config, &problems, Some(reference), folder, hooks).await
}

fn settings(config: &rl::Config) -> rl::Config {
    let weight = if config.kl_penalty > 0.0 {
        config.kl_penalty
    } else {
        1.0
    };
    rl::Config {
        baseline: Baseline::None,
        kl_penalty: weight,
        ..config.clone()
    }
}

fn problems(prompts: &[Vec<u32>], params: &SamplingParams) -> Vec<Arc<dyn Problem>> {
    let problem = |tokens: &Vec<u32>| -> Arc<dyn Problem> {
        Arc::new(Prompt {
            tokens: Arc::new(tokens.clone()),
            params: params.clone(),
        })
    };
    prompts.iter().map(problem).collect()
}
