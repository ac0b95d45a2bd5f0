//! Episodes as training data.

use super::env::Turn;
use crate::Error;
use crate::run::Numbers;
use tinkrs::Datum;
use tinkrs_chat::Message;

/// A stretch of an episode that reads as one sequence of tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    /// All tokens, seen and written.
    pub tokens: Vec<u32>,
    /// For each token, the sampler's log-probability if the model wrote it.
    pub written: Vec<Option<f32>>,
}

/// An episode that was played.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Episode {
    /// What was seen and written; more than one if the environment rewrote what came before.
    pub sequences: Vec<Sequence>,
    /// What was earned in all.
    pub reward: f64,
    /// How many turns the model had.
    pub turns: usize,
    /// Whether a limit ended it, and not the environment.
    pub cut_short: bool,
    /// Numbers of its turns, added up by name.
    pub metrics: Numbers,
    /// What was said, if the environment tells.
    pub messages: Vec<Message>,
}

impl Episode {
    /// Adds a turn: what was seen, what was written, and how likely the sampler found that.
    pub fn turn(&mut self, seen: Vec<u32>, written: &[u32], logprobs: &[f32]) {
        let continues = |sequence: &&mut Sequence| {
            seen.len() >= sequence.tokens.len() && seen.starts_with(&sequence.tokens)
        };
        let sequence = match self.sequences.last_mut().filter(continues) {
            Some(sequence) => sequence,
            None => {
                self.sequences.push(Sequence::default());
                self.sequences.last_mut().expect("one was just added")
            }
        };
        sequence.tokens = seen;
        sequence.written.resize(sequence.tokens.len(), None);
        sequence.tokens.extend_from_slice(written);
        sequence
            .written
            .extend(logprobs.iter().map(|logprob| Some(*logprob)));
    }

    /// Adds what came of a turn.
    pub(super) fn earn(&mut self, turn: Turn) {
        self.turns += 1;
        self.reward += turn.reward;
        for (name, number) in turn.metrics {
            *self.metrics.entry(name).or_default() += number;
        }
    }

    /// Returns how many tokens the model wrote.
    pub fn written_tokens(&self) -> usize {
        self.sequences.iter().map(Sequence::written_tokens).sum()
    }
}

impl Sequence {
    /// Returns how many tokens the model wrote.
    pub fn written_tokens(&self) -> usize {
        self.written.iter().flatten().count()
    }

    /// Makes the datum, with an advantage for each token that the model wrote; `advantage` gets
    /// the token's place in the sequence.
    ///
    /// # Errors
    /// If there are fewer than two tokens.
    pub fn to_datum(&self, advantage: impl Fn(usize) -> f32) -> Result<Datum, Error> {
        let last = self.tokens.len().saturating_sub(1);
        let inputs = self.tokens[..last].to_vec();
        let targets: Vec<i64> = self
            .tokens
            .iter()
            .skip(1)
            .map(|token| i64::from(*token))
            .collect();
        let written = || self.written.iter().enumerate().skip(1);
        let logprobs: Vec<f32> = written()
            .map(|(_, logprob)| logprob.unwrap_or(0.0))
            .collect();
        let advantages: Vec<f32> = written()
            .map(|(place, logprob)| {
                if logprob.is_some() {
                    advantage(place)
                } else {
                    0.0
                }
            })
            .collect();
        Ok(Datum::reinforcement(inputs, targets, logprobs, advantages)?)
    }

    /// Says which targets the model wrote: those that make the ratio of a whole sequence.
    pub(super) fn mask(&self) -> Vec<f32> {
        let written = self.written.iter().skip(1);
        written
            .map(|logprob| if logprob.is_some() { 1.0 } else { 0.0 })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_that_continue_each_other_are_one_sequence() {
        let mut episode = Episode::default();
        episode.turn(vec![1, 2], &[3, 4], &[-0.3, -0.4]);
        episode.turn(vec![1, 2, 3, 4, 5], &[6], &[-0.6]);
        assert_eq!(episode.sequences.len(), 1);
        assert_eq!(episode.sequences[0].tokens, [1, 2, 3, 4, 5, 6]);
        assert_eq!(episode.written_tokens(), 3);
        episode.turn(vec![1, 9], &[7], &[-0.7]);
        assert_eq!(
            episode.sequences.len(),
            2,
            "the environment rewrote the past"
        );

        let datum = episode.sequences[0].to_datum(|place| place as f32).unwrap();
        let tensor = |name: &str| datum.loss_fn_inputs()[name].as_f32().unwrap().to_vec();
        assert_eq!(datum.model_input().to_tokens().unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(
            datum.target_tokens().unwrap().as_i64().unwrap(),
            [2, 3, 4, 5, 6]
        );
        assert_eq!(tensor("logprobs"), [0.0, -0.3, -0.4, 0.0, -0.6]);
        assert_eq!(tensor("advantages"), [0.0, 2.0, 3.0, 0.0, 5.0]);
    }
}
