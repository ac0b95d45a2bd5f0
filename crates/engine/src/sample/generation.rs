//! One sample while it is being generated.

use tinkrs_backend::{LogitAdjuster, MAX_ALTERNATIVES};
use tinkrs_types::sampling::{SampledSequence, StopReason};

use super::distribution::{Distribution, DistributionScratch, Rule};
use super::draft::Drafting;
use super::request::Checked;
use super::rng::{Purpose, SampleRng};
use super::scoring::Likeliest;
use super::stop::{Detokenizer, StopMatcher};
use crate::Error;

/// The tokens of a sample so far, and what decides about the next one.
#[derive(Debug)]
pub(crate) struct Generation {
    prompt: usize,
    max_tokens: usize,
    rule: Rule,
    rng: SampleRng,
    adjuster: Option<LogitAdjuster>,
    stop: StopMatcher,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    likeliest: Option<Likeliest>,
    ended: Option<StopReason>,
    drafting: Drafting,
    /// Tokens that have been reported.
    reported: usize,
}

impl Generation {
    /// Begins the sample with index `sample` of a request.
    pub(crate) fn new(request: &Checked, sample: usize) -> Self {
        let k = request.topk_sample_logprobs;
        Self {
            prompt: request.prompt.len(),
            max_tokens: request.max_tokens,
            rule: request.rule,
            rng: SampleRng::new(request.seed, sample as u32),
            adjuster: LogitAdjuster::new(
                &request.extras,
                request.vocab,
                &request.prompt,
                request.stop.tokens(),
            ),
            stop: request.stop.clone(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            likeliest: (k > 0).then(|| Likeliest::filled(k, 0)),
            ended: None,
            drafting: Drafting::default(),
            reported: 0,
        }
    }

    /// Guesses at most `limit` of the tokens that come next, and no more than may come before the last.
    pub(crate) fn guess(&self, prompt: &[u32], limit: usize) -> Vec<u32> {
        let room = self.max_tokens - self.tokens.len();
        self.drafting
            .guess(prompt, &self.tokens, limit.min(room.saturating_sub(1)))
    }

    /// Learns how many of the guesses were right.
    pub(crate) fn learn(&mut self, guessed: usize, right: usize) {
        self.drafting.learn(guessed, right);
    }

    /// Draws the next token from its logits.
    ///
    /// # Errors
    ///
    /// Logits that are not finite, or a grammar that allows no token.
    pub(crate) fn take_logits(
        &mut self,
        logits: &[f32],
        detokenizer: Option<&dyn Detokenizer>,
        scratch: &mut DistributionScratch,
    ) -> Result<(), Error> {
        let position = self.prompt + self.tokens.len();
        let uniform = self.rng.uniform(Purpose::Token, position as u32, 0);
        let adjusted = match &mut self.adjuster {
            Some(adjuster) => Some(draw_adjusted(
                adjuster, logits, &self.rule, uniform, scratch,
            )?),
            None => None,
        };
        // What is reported is the model's own distribution, wherever the token was drawn from.
        let mut distribution = Distribution::new(logits, self.rule.temperature, scratch)?;
        let (token, may_go_on) =
            adjusted.unwrap_or_else(|| (distribution.draw(&self.rule, uniform), true));
        self.tokens.push(token);
        self.logprobs.push(distribution.logprob(token));
        if let Some(likeliest) = &mut self.likeliest {
            likeliest.push(&mut distribution);
        }
        self.ended = if self.stop.ends_with(token, detokenizer) || !may_go_on {
            Some(StopReason::Stop)
        } else {
            (self.tokens.len() == self.max_tokens).then_some(StopReason::Length)
        };
        Ok(())
    }

    /// Returns the tokens drawn so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the tokens drawn since the last call, each with its log-probability and the likeliest tokens at its place
    /// as far as they are reported with it.
    pub(crate) fn report(&mut self) -> impl Iterator<Item = (u32, f32, Vec<(u32, f32)>)> {
        let new = self.reported..self.tokens.len();
        self.reported = new.end;
        new.map(|at| {
            let likeliest = self.likeliest.iter();
            let alternatives = likeliest.flat_map(|likeliest| likeliest.at(at));
            let alternatives = alternatives.take(MAX_ALTERNATIVES).collect();
            (self.tokens[at], self.logprobs[at], alternatives)
        })
    }

    /// Returns why the sample has ended, if it has.
    pub(crate) fn ended(&self) -> Option<StopReason> {
        self.ended
    }

    /// Turns an ended sample into a result.
    pub(crate) fn finish(self) -> SampledSequence {
        let mut sequence =
            SampledSequence::new(self.tokens, self.ended.unwrap_or(StopReason::Length));
        sequence.logprobs = Some(self.logprobs);
        sequence.topk_logprobs = self.likeliest.map(Likeliest::finish);
        sequence
    }
}

/// Draws a token from logits that are not the model's own, and returns whether more may follow.
fn draw_adjusted(
    adjuster: &mut LogitAdjuster,
    logits: &[f32],
    rule: &Rule,
    uniform: f64,
    scratch: &mut DistributionScratch,
) -> Result<(u32, bool), Error> {
    let mut adjusted = scratch.take_adjusted();
    adjusted.extend_from_slice(logits);
    adjuster.apply(&mut adjusted).map_err(grammar_error)?;
    let mut distribution = Distribution::new(&adjusted, rule.temperature, scratch)?;
    distribution.drop_impossible();
    let token = distribution.draw(rule, uniform);
    scratch.put_adjusted(adjusted);
    let may_go_on = adjuster.accept(token).map_err(grammar_error)?;
    Ok((token, may_go_on))
}

fn grammar_error(error: tinkrs_backend::Error) -> Error {
    Error::invalid("grammar", error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;
    use crate::sample::SampleRequest;
    use tinkrs_types::sampling::Stop;

    fn generation(change: impl FnOnce(&mut SampleRequest)) -> Generation {
        let config = ModelConfig {
            vocab: 4,
            eos: vec![2],
            ..ModelConfig::tiny_qwen3()
        };
        let mut request = SampleRequest::new([1, 1], 3);
        change(&mut request);
        Generation::new(&Checked::new(request, &config, false).unwrap(), 0)
    }

    /// Feeds logits that make one token certain after the other, until the sample ends.
    fn run(mut generation: Generation, tokens: &[u32]) -> SampledSequence {
        for &token in tokens {
            let mut logits = [0.0; 4];
            logits[token as usize] = 100.0;
            generation
                .take_logits(&logits, None, &mut DistributionScratch::default())
                .unwrap();
            if generation.ended().is_some() {
                break;
            }
        }
        generation.finish()
    }

    #[test]
    fn the_stop_token_is_the_last_one_returned() {
        let sequence = run(generation(|_| {}), &[3, 2, 1]);
        assert_eq!(sequence.tokens, [3, 2]);
        assert_eq!(sequence.stop_reason, StopReason::Stop);
        assert_eq!(sequence.logprobs.unwrap().len(), 2);
    }

    #[test]
    fn an_empty_stop_list_generates_past_the_end_of_sequence() {
        let sequence = run(
            generation(|request| request.params.stop = Some(Stop::Never)),
            &[2, 2, 2, 2],
        );
        assert_eq!(sequence.tokens, [2, 2, 2]);
        assert_eq!(sequence.stop_reason, StopReason::Length);
    }

    #[test]
    fn a_stop_at_the_last_token_counts_as_a_stop() {
        let sequence = run(generation(|_| {}), &[3, 3, 2]);
        assert_eq!(sequence.stop_reason, StopReason::Stop);
    }

    #[test]
    fn the_likeliest_tokens_come_with_every_token() {
        let sequence = run(
            generation(|request| request.options.topk_sample_logprobs = 2),
            &[3, 1, 2],
        );
        let topk = sequence.topk_logprobs.unwrap();
        assert_eq!((topk.k(), topk.len()), (2, 3));
        assert_eq!(topk.token_ids(), [3, 0, 1, 0, 2, 0]);
        assert_eq!(topk.logprobs()[0], sequence.logprobs.unwrap()[0]);
    }
}
