//! What a run will cost, before it starts.
//!
//! Supervised runs are counted exactly: the batches are known. Reinforcement runs are bounded
//! from above: every answer is taken to be as long as it may be, and no prompt to be cached.

use crate::Prices;
use crate::data::{DataSet, Examples, Stored};
use crate::distill::{OffPolicyConfig, OnPolicyConfig, PromptConfig};
use crate::dpo::{self, Pair};
use crate::reward::{self, JudgedPair};
use crate::run::{Evaluation, Passes};
use crate::{Error, rl, sft};
use std::fmt;
use tinkrs_chat::{Conversation, Example, Renderer};

/// Returns how often a run of so many steps is evaluated: before the first step of each interval, and at the end.
fn evaluations(evaluation: &Evaluation, steps: usize) -> u64 {
    match evaluation.every {
        0 => 0,
        every => steps.div_ceil(every) as u64 + 1,
    }
}

/// Counts the tokens that a run trains on, rounded up to whole passes, and those of an evaluation.
fn whole_passes<T: Stored>(
    pairs: &DataSet<T>,
    passes: Passes,
    seed: u64,
) -> Result<(u64, u64), Error> {
    let batches = pairs.batches(passes.batch_size, seed)?;
    let order = batches.epoch(0);
    let pass: u64 = order.iter().map(|i| pairs.train.tokens(*i) as u64).sum();
    let steps = passes.steps(pairs.train.len())?;
    let count = steps.div_ceil(batches.steps_per_epoch()) as u64;
    let evaluated = pairs.eval.iter().map(|pair| pair.tokens() as u64).sum();
    Ok((pass.saturating_mul(count), evaluated))
}

/// Tokens of a run, by what is done with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Tokens that a sampler reads.
    pub prefill: u64,
    /// Tokens that a sampler writes.
    pub sample: u64,
    /// Tokens that a trainer reads. Evaluation counts here too.
    pub train: u64,
}

impl Tokens {
    /// Counts the tokens of a supervised run.
    ///
    /// # Errors
    /// If there is nothing to train on.
    pub fn of_sft(config: &sft::Config, examples: &Examples) -> Result<Self, Error> {
        let (train, eval) = (&examples.train, &examples.eval);
        let batches = sft::batches(config, examples)?;
        let length = |example: &Example| example.tokens.len().saturating_sub(1) as u64;
        let length_of = |index: &usize| train.tokens(*index).saturating_sub(1) as u64;
        let steps = config.passes.steps(train.len())?;
        let (epochs, rest) = (
            steps / batches.steps_per_epoch(),
            steps % batches.steps_per_epoch(),
        );
        let order = batches.epoch(epochs);
        let rest = order.iter().take(rest * config.passes.batch_size);
        let rest = rest.map(length_of).sum::<u64>();
        // Where files have weights, passes differ from each other by a little.
        let pass = batches.epoch(0).iter().map(length_of).sum::<u64>();
        let trained = (epochs as u64).saturating_mul(pass);
        let trained = trained.saturating_add(rest);
        let evaluated: u64 = eval.iter().map(length).sum();
        let evaluated = evaluated.saturating_mul(evaluations(&config.evaluation, steps));
        Ok(Self {
            train: trained.saturating_add(evaluated),
            ..Self::default()
        })
    }

    /// Bounds the tokens of a reinforcement run whose prompts have at most `prompt_tokens` tokens
    /// and whose answers at most `answer_tokens`, in episodes of one turn. It is evaluated with `eval` problems.
    pub fn of_rl(
        config: &rl::Config,
        prompt_tokens: usize,
        answer_tokens: u32,
        eval: usize,
    ) -> Self {
        let problems = config
            .policy
            .steps
            .saturating_mul(config.policy.problems_per_step);
        let episodes = problems.saturating_mul(config.policy.group_size) as u64;
        let (prompt, answer) = (prompt_tokens as u64, u64::from(answer_tokens));
        // The reference reads each episode once more.
        let reference = if config.kl_penalty > 0.0 {
            prompt + answer
        } else {
            0
        };
        let evaluations = evaluations(&config.evaluation, config.policy.steps);
        let evaluated = evaluations.saturating_mul(eval as u64);
        let prefill = episodes.saturating_mul(prompt + reference);
        Self {
            prefill: prefill.saturating_add(evaluated.saturating_mul(prompt)),
            sample: episodes.saturating_add(evaluated).saturating_mul(answer),
            train: episodes.saturating_mul(prompt + answer),
        }
    }

    /// Bounds the tokens of on-policy distillation, as [`of_rl`](Self::of_rl) does.
    pub fn of_on_policy(config: &OnPolicyConfig, prompt_tokens: usize, answer_tokens: u32) -> Self {
        Self::of_rl(&config.as_rl(), prompt_tokens, answer_tokens, 0)
    }

    /// Counts the tokens of a preference run: those that are trained, twice since the loss is the
    /// caller's, and those that the model before training reads.
    ///
    /// # Errors
    /// If there is nothing to train on.
    pub fn of_dpo(config: &dpo::Config, pairs: &DataSet<Pair>) -> Result<Self, Error> {
        let (read, evaluated) = whole_passes(pairs, config.passes, config.seed)?;
        let steps = config.passes.steps(pairs.train.len())?;
        let evaluations = evaluations(&config.evaluation, steps);
        Ok(Self {
            prefill: read.saturating_add(evaluated),
            train: read
                .saturating_mul(2)
                .saturating_add(evaluated.saturating_mul(evaluations)),
            ..Self::default()
        })
    }

    /// Counts the tokens of a reward model's training: twice what it trains on, since the loss is the caller's.
    ///
    /// # Errors
    /// If there is nothing to train on.
    pub fn of_reward(config: &reward::Config, pairs: &DataSet<JudgedPair>) -> Result<Self, Error> {
        let (read, evaluated) = whole_passes(pairs, config.passes, config.seed)?;
        let steps = config.passes.steps(pairs.train.len())?;
        let evaluated = evaluated.saturating_mul(evaluations(&config.evaluation, steps));
        Ok(Self {
            train: read.saturating_mul(2).saturating_add(evaluated),
            ..Self::default()
        })
    }

    /// Bounds the tokens of off-policy distillation on these questions, each with its tokens: those of
    /// [prompt distillation](Self::of_prompt_distillation), and the teacher reads each answer once more.
    ///
    /// # Errors
    /// As there.
    pub fn of_off_policy(
        config: &OffPolicyConfig,
        renderer: &Renderer,
        questions: &[(Conversation, Vec<u32>)],
    ) -> Result<Self, Error> {
        let asked = Self::of_prompt_distillation(&config.as_prompt(), renderer, questions)?;
        let again = asked.prefill.saturating_mul(u64::from(config.answers));
        Ok(Self {
            prefill: asked
                .prefill
                .saturating_add(again)
                .saturating_add(asked.sample),
            ..asked
        })
    }

    /// Bounds the tokens of prompt distillation on these questions, each with its tokens.
    ///
    /// # Errors
    /// If the instructions cannot be written, or there are no questions.
    pub fn of_prompt_distillation(
        config: &PromptConfig,
        renderer: &Renderer,
        questions: &[(Conversation, Vec<u32>)],
    ) -> Result<Self, Error> {
        let instructions = renderer
            .vocabulary()
            .encode_text(&config.instructions)?
            .len() as u64;
        let asked: u64 = questions
            .iter()
            .map(|(_, tokens)| tokens.len() as u64)
            .sum();
        let (count, answers) = (questions.len() as u64, u64::from(config.answers));
        let written = (count * answers).saturating_mul(u64::from(config.max_tokens));
        let examples = questions.len().saturating_mul(config.answers as usize);
        let steps = config.passes.steps(examples)?;
        let passes = steps.div_ceil(examples.div_ceil(config.passes.batch_size)) as u64;
        let example = asked.saturating_mul(answers).saturating_add(written);
        Ok(Self {
            prefill: asked + count * instructions,
            sample: written,
            train: example.saturating_mul(passes),
        })
    }

    /// Returns what the tokens cost, if the model has a price for all that is used.
    pub fn cost(&self, model: &str, prices: &Prices) -> Option<f64> {
        let price = prices.models.get(model)?;
        let parts = [
            (self.prefill, price.prefill),
            (self.sample, price.sample),
            (self.train, price.train),
        ];
        // What is not used needs no price.
        let used = parts.into_iter().filter(|(tokens, _)| *tokens > 0);
        used.map(|(tokens, price)| Some(tokens as f64 / 1e6 * price?))
            .sum()
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.train, "trained"),
            (self.sample, "sampled"),
            (self.prefill, "read while sampling"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let words: Vec<_> = counts
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if words.is_empty() {
            return f.write_str("no tokens");
        }
        write!(f, "tokens: {}", words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Batches;

    fn example(tokens: usize) -> Example {
        Example {
            tokens: vec![0; tokens],
            weights: vec![1.0; tokens],
        }
    }

    #[test]
    fn a_supervised_run_is_counted_exactly() {
        let mut config = sft::Config::new("m");
        config.passes.batch_size = 2;
        config.passes.epochs = 3;
        config.evaluation.every = 2;
        let examples = |train: Vec<Example>, eval| Examples {
            train: train.into(),
            eval,
            ..Examples::default()
        };
        let train = || vec![example(11), example(21), example(31)];
        let tokens = Tokens::of_sft(&config, &examples(train(), vec![example(6)])).unwrap();
        // Three epochs of 60, and evaluations before steps 0, 2 and 4 and at the end.
        assert_eq!(tokens.train, 3 * 60 + 4 * 5);
        let mut short = config;
        short.passes.max_steps = Some(2);
        short.evaluation.every = 0;
        assert_eq!(
            Tokens::of_sft(&short, &examples(train(), vec![]))
                .unwrap()
                .train,
            60
        );
        let mut longer = short.clone();
        longer.passes.max_steps = Some(3);
        let third = Batches::new(3, 2, 0).unwrap().batch(2);
        let third: usize = third.iter().map(|index| 10 * (index + 1)).sum();
        let counted = Tokens::of_sft(&longer, &examples(train(), vec![]))
            .unwrap()
            .train;
        assert_eq!(counted, 60 + third as u64);
        assert!(Tokens::of_sft(&short, &examples(vec![], vec![])).is_err());
    }

    #[test]
    fn a_reinforcement_run_is_bounded() {
        let mut config = rl::Config::new("m");
        config.policy.steps = 2;
        config.policy.problems_per_step = 3;
        config.policy.group_size = 4;
        let tokens = Tokens::of_rl(&config, 10, 5, 0);
        assert_eq!(
            tokens,
            Tokens {
                prefill: 240,
                sample: 120,
                train: 360
            }
        );
        assert_eq!(
            tokens.to_string(),
            "tokens: 360 trained, 120 sampled, 240 read while sampling"
        );
        // Before the first step and at the end.
        let evaluated = Tokens::of_rl(&config, 10, 5, 7);
        assert_eq!(evaluated.sample, 120 + 2 * 7 * 5);
        assert_eq!(evaluated.prefill, 240 + 2 * 7 * 10);
    }
}
