//! One pass of the model for many requests, and what is made of its logits.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::distribution::{DistributionScratch, Rule};
use super::generation::Generation;
use super::prefix_cache::WeightsId;
use super::rng::SampleRng;
use super::scheduler::Ticket;
use super::scoring::Scoring;
use super::stop::Detokenizer;
use crate::{Adapter, Error, KvCache, Model, SequenceInput};

/// Logits held at once: rows are scored in blocks, so that a long prompt does not need `P × vocab`.
const MAX_LOGITS: usize = 4 << 20;

/// The work of one step. It owns what it works on; [`run`](Self::run) gives it back.
#[derive(Debug, Default)]
pub(crate) struct SamplingBatch {
    entries: Vec<(Ticket, WeightsId, Input, Target)>,
}

/// What one sequence feeds to the model.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) cache: KvCache,
    pub(crate) tokens: Vec<u32>,
    pub(crate) adapter: Option<Arc<Adapter>>,
    /// Which of the tokens' logits are wanted: all from some row on.
    pub(crate) wanted: Range<usize>,
}

/// Who receives the logits.
#[derive(Debug)]
pub(crate) enum Target {
    /// A sample, which draws its next tokens.
    Sample(Box<Drawing>),
    /// A prompt, which is scored.
    Prompt(Box<Prompt>),
}

/// A sample while its next tokens are computed.
#[derive(Debug)]
pub(crate) struct Drawing {
    /// Index in its request.
    pub(crate) sample: usize,
    pub(crate) generation: Box<Generation>,
    /// What was read after the newest token, before anyone knows whether it is said.
    pub(crate) guesses: Vec<u32>,
    /// Tokens drawn in this pass.
    pub(crate) drawn: usize,
}

/// A prompt while a piece of it is computed.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// The row of the first logits that come.
    pub(crate) first_row: usize,
    /// The tokens that follow those rows. The last row of the whole prompt has none.
    pub(crate) next_tokens: Vec<u32>,
    pub(crate) scoring: Scoring,
    pub(crate) rule: Rule,
    pub(crate) rng: SampleRng,
    /// Logits of the last row of the whole prompt, if this piece holds it.
    pub(crate) last_logits: Vec<f32>,
}

/// An entry of a batch after the pass.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) ticket: Ticket,
    pub(crate) cache: KvCache,
    pub(crate) target: Target,
    pub(crate) outcome: Result<(), Error>,
}

impl SamplingBatch {
    pub(crate) fn push(
        &mut self,
        ticket: Ticket,
        weights: WeightsId,
        input: Input,
        target: Target,
    ) {
        self.entries.push((ticket, weights, input, target));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Runs the model once, and hands every row of logits to whom it belongs.
    pub(crate) fn run(mut self, model: &Model, detokenizer: Option<&dyn Detokenizer>) -> Vec<Done> {
        // Neighbours with the same adapter share its products; the order has no other effect.
        self.entries
            .sort_by_key(|(ticket, weights, ..)| (*weights, *ticket));
        let (mut inputs, mut receivers) = (Vec::new(), Vec::new());
        for (ticket, _, input, target) in self.entries {
            receivers.push(Receiver {
                target,
                taken: 0,
                wanted: input.wanted.len(),
                outcome: Ok(()),
            });
            inputs.push((ticket, input));
        }
        if let Err(error) = pass(model, &mut inputs, &mut receivers, detokenizer) {
            // Inputs were checked at submission; if the model refuses one anyway, all of them fail.
            let reason = error.to_string();
            for receiver in &mut receivers {
                receiver.outcome = Err(Error::invalid("sampling step", reason.clone()));
            }
        }
        let done = |((ticket, input), receiver): ((Ticket, Input), Receiver)| Done {
            ticket,
            cache: input.cache,
            target: receiver.target,
            outcome: receiver.outcome,
        };
        inputs.into_iter().zip(receivers).map(done).collect()
    }
}

/// A target, and how many of the rows it wants it has received.
struct Receiver {
    target: Target,
    taken: usize,
    wanted: usize,
    outcome: Result<(), Error>,
}

fn pass(
    model: &Model,
    inputs: &mut [(Ticket, Input)],
    receivers: &mut [Receiver],
    detokenizer: Option<&dyn Detokenizer>,
) -> Result<(), Error> {
    let mut sequences: Vec<SequenceInput<'_>> = inputs
        .iter_mut()
        .map(|(_, input)| SequenceInput {
            cache: &mut input.cache,
            tokens: &input.tokens,
            adapter: input.adapter.as_deref(),
            wanted: input.wanted.clone(),
        })
        .collect();
    let hidden = model.step(&mut sequences)?;
    let vocab = model.config().vocab;
    let rows_at_once = (MAX_LOGITS / vocab).max(1);
    let mut row = 0;
    while row < hidden.len() {
        let end = (row + rows_at_once).min(hidden.len());
        let logits = model.logits(&hidden, row..end);
        // Each receiver gets the rows of this block that are its own, which follow each other.
        let mut rest = logits.as_slice();
        let mut shares: Vec<(&mut Receiver, &[f32])> = Vec::new();
        for receiver in receivers.iter_mut() {
            let rows = (receiver.wanted - receiver.taken).min(rest.len() / vocab);
            let share;
            (share, rest) = rest.split_at(rows * vocab);
            if rows > 0 {
                shares.push((receiver, share));
            }
        }
        model.threads().run(|| {
            shares.into_par_iter().for_each_init(
                DistributionScratch::default,
                |scratch, (receiver, share)| {
                    receiver.take(share, vocab, detokenizer, scratch);
                },
            );
        });
        row = end;
    }
    Ok(())
}

impl Receiver {
    fn take(
        &mut self,
        rows: &[f32],
        vocab: usize,
        detokenizer: Option<&dyn Detokenizer>,
        scratch: &mut DistributionScratch,
    ) {
        for logits in rows.chunks_exact(vocab) {
            let outcome = match &mut self.target {
                Target::Sample(drawing) => {
                    drawing.take_row(self.taken, logits, detokenizer, scratch)
                }
                Target::Prompt(prompt) => prompt.take_row(self.taken, logits, scratch),
            };
            self.taken += 1;
            if outcome.is_err() && self.outcome.is_ok() {
                self.outcome = outcome;
            }
        }
    }
}

impl Drawing {
    /// Draws a token from the logits of a row, unless the row follows a guess that was wrong, or the end.
    fn take_row(
        &mut self,
        row: usize,
        logits: &[f32],
        detokenizer: Option<&dyn Detokenizer>,
        scratch: &mut DistributionScratch,
    ) -> Result<(), Error> {
        let follows = match row.checked_sub(1) {
            None => true,
            Some(guess) => {
                let is_right = self.generation.tokens().last() == self.guesses.get(guess);
                self.drawn == row && is_right && self.generation.ended().is_none()
            }
        };
        if follows {
            self.generation.take_logits(logits, detokenizer, scratch)?;
            self.drawn += 1;
        }
        Ok(())
    }
}

impl Prompt {
    fn take_row(
        &mut self,
        index: usize,
        logits: &[f32],
        scratch: &mut DistributionScratch,
    ) -> Result<(), Error> {
        match self.next_tokens.get(index) {
            Some(&next_token) => {
                let row = self.first_row + index;
                self.scoring
                    .take_row(row, logits, next_token, &self.rule, self.rng, scratch)
            }
            None => {
                self.last_logits = logits.to_vec();
                Ok(())
            }
        }
    }
}
