//! The logits that a token is drawn from, where a request's extras make them others than the model's.

use std::collections::HashMap;
use std::sync::Arc;

use crate::constraint::{Constraint, TokenMask};
use crate::{Error, SamplingExtras};

/// Changes the logits of one sample from token to token, as its [`SamplingExtras`] ask for.
///
/// ```
/// use tinkrs_backend::{LogitAdjuster, SamplingExtras};
///
/// let extras = SamplingExtras { presence_penalty: 1.5, ..SamplingExtras::default() };
/// let mut adjuster = LogitAdjuster::new(&extras.into(), 3, &[0], &[]).expect("a penalty changes logits");
/// adjuster.accept(2)?;
/// let mut logits = [0.5, 1.0, 2.0];
/// adjuster.apply(&mut logits)?;
/// assert_eq!(logits, [0.5, 1.0, 0.5]);
/// # Ok::<(), tinkrs_backend::Error>(())
/// ```
#[derive(Debug)]
pub struct LogitAdjuster {
    extras: Arc<SamplingExtras>,
    /// How often each token was generated. A token of the prompt that was not has 0, if that matters.
    counts: HashMap<u32, u32>,
    generated: usize,
    /// Tokens that may not come before `min_tokens`.
    end_tokens: Vec<u32>,
    constraint: Option<(Box<dyn Constraint>, TokenMask)>,
}

impl LogitAdjuster {
    /// Begins a sample of a model with this many tokens after a prompt; one of `end_tokens` would end it.
    /// Returns `None` if the extras leave the model's logits as they are.
    #[must_use]
    pub fn new(
        extras: &Arc<SamplingExtras>,
        vocabulary: usize,
        prompt: &[u32],
        end_tokens: &[u32],
    ) -> Option<Self> {
        if !extras.changes_logits() {
            return None;
        }
        let mut counts = HashMap::new();
        if extras.repetition_penalty != 1.0 {
            counts.extend(prompt.iter().map(|token| (*token, 0)));
        }
        let has_minimum = extras.min_tokens > 0;
        let grammar = extras.grammar.as_ref();
        Some(Self {
            counts,
            generated: 0,
            end_tokens: if has_minimum {
                end_tokens.to_vec()
            } else {
                Vec::new()
            },
            constraint: grammar.map(|grammar| (grammar.begin(), TokenMask::new(vocabulary))),
            extras: Arc::clone(extras),
        })
    }

    /// Turns the model's logits into those that the next token is drawn from. Tokens that may not come have
    /// negative infinity.
    ///
    /// # Errors
    ///
    /// When the grammar allows no token, or cannot find out which.
    pub fn apply(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        if let Some((constraint, mask)) = &mut self.constraint {
            mask.clear();
            constraint.allow(mask)?;
            if mask.is_empty() {
                return Err(Error::bad_request(
                    "the grammar of the response allows no token of this model to come next",
                ));
            }
            mask.apply(logits);
        }
        for (token, bias) in &self.extras.logit_bias {
            change(logits, *token, |logit| logit + bias);
        }
        if self.generated < self.extras.min_tokens as usize {
            for token in &self.end_tokens {
                change(logits, *token, |_| f32::NEG_INFINITY);
            }
        }
        self.penalize(logits);
        Ok(())
    }

    fn penalize(&self, logits: &mut [f32]) {
        let repetition = self.extras.repetition_penalty as f32;
        let frequency = self.extras.frequency_penalty as f32;
        let presence = self.extras.presence_penalty as f32;
        // Each token is changed once, so the order has no effect.
        for (token, count) in &self.counts {
            change(logits, *token, |logit| {
                let repeated = if logit > 0.0 {
                    logit / repetition
                } else {
                    logit * repetition
                };
                let present = if *count > 0 { presence } else { 0.0 };
                repeated - *count as f32 * frequency - present
            });
        }
    }

    /// Takes in the token that was drawn, and returns whether more may follow.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply).
    pub fn accept(&mut self, token: u32) -> Result<bool, Error> {
        self.generated += 1;
        *self.counts.entry(token).or_default() += 1;
        match &mut self.constraint {
            Some((constraint, _)) => constraint.accept(token),
            None => Ok(true),
        }
    }
}

/// Changes a logit, unless its token may not come.
fn change(logits: &mut [f32], token: u32, to: impl FnOnce(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize)
        && *logit != f32::NEG_INFINITY
    {
        *logit = to(*logit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grammar;

    fn adjuster(extras: SamplingExtras, prompt: &[u32]) -> LogitAdjuster {
        LogitAdjuster::new(&extras.into(), 4, prompt, &[3]).unwrap()
    }

    fn adjusted(adjuster: &mut LogitAdjuster, mut logits: [f32; 4]) -> [f32; 4] {
        adjuster.apply(&mut logits).unwrap();
        logits
    }

    #[test]
    fn the_default_changes_nothing_and_neither_does_another_end() {
        let extras = SamplingExtras {
            min_p: 0.5,
            stop_tokens: vec![1],
            ..SamplingExtras::default()
        };
        for extras in [SamplingExtras::default(), extras] {
            assert!(LogitAdjuster::new(&extras.into(), 4, &[1], &[3]).is_none());
        }
    }

    #[test]
    fn penalties_follow_their_published_definitions() {
        let extras = SamplingExtras {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..SamplingExtras::default()
        };
        let mut openai = adjuster(extras, &[0, 0, 1]);
        for token in [2, 2, 1] {
            openai.accept(token).unwrap();
        }
        // The prompt does not count; token 2 came twice, token 1 once.
        assert_eq!(adjusted(&mut openai, [1.0; 4]), [1.0, 0.25, 0.0, 1.0]);

        let extras = SamplingExtras {
            repetition_penalty: 2.0,
            ..SamplingExtras::default()
        };
        let mut repetition = adjuster(extras, &[0, 0, 1]);
        repetition.accept(3).unwrap();
        repetition.accept(3).unwrap();
        // The prompt counts, how often does not; 2 was never there.
        let logits = adjusted(&mut repetition, [1.0, -1.0, 1.0, 4.0]);
        assert_eq!(logits, [0.5, -2.0, 1.0, 2.0]);
    }

    #[test]
    fn a_sample_cannot_end_before_its_minimum() {
        let extras = SamplingExtras {
            min_tokens: 1,
            logit_bias: vec![(3, 100.0), (0, -1.0)],
            ..SamplingExtras::default()
        };
        let mut adjuster = adjuster(extras, &[]);
        let never = f32::NEG_INFINITY;
        assert_eq!(adjusted(&mut adjuster, [1.0; 4]), [0.0, 1.0, 1.0, never]);
        adjuster.accept(1).unwrap();
        assert_eq!(adjusted(&mut adjuster, [1.0; 4]), [0.0, 1.0, 1.0, 101.0]);
    }

    /// Allows 1, then 2, then nothing.
    #[derive(Clone, Debug)]
    struct OneTwo(Vec<u32>);

    impl Grammar for OneTwo {
        fn begin(&self) -> Box<dyn Constraint> {
            Box::new(self.clone())
        }
    }

    impl Constraint for OneTwo {
        fn allow(&mut self, mask: &mut TokenMask) -> Result<(), Error> {
            if let Some(next) = self.0.first() {
                mask.allow(*next);
            }
            Ok(())
        }

        fn accept(&mut self, token: u32) -> Result<bool, Error> {
            assert_eq!(self.0.remove(0), token);
            Ok(!self.0.is_empty())
        }
    }

    #[test]
    fn a_grammar_leaves_only_what_it_allows_whatever_the_bias() {
        let extras = SamplingExtras {
            logit_bias: vec![(0, 100.0), (1, -100.0)],
            presence_penalty: -2.0,
            grammar: Some(Arc::new(OneTwo(vec![1, 2]))),
            ..SamplingExtras::default()
        };
        let extras = Arc::new(extras);
        let never = f32::NEG_INFINITY;
        for _sample in 0..2 {
            let mut adjuster = LogitAdjuster::new(&extras, 4, &[], &[]).unwrap();
            assert_eq!(
                adjusted(&mut adjuster, [1.0; 4]),
                [never, -99.0, never, never]
            );
            assert!(adjuster.accept(1).unwrap());
            assert_eq!(
                adjusted(&mut adjuster, [1.0; 4]),
                [never, never, 1.0, never]
            );
            assert!(!adjuster.accept(2).unwrap());
            assert!(adjuster.apply(&mut [1.0; 4]).unwrap_err().is_bad_request());
        }
    }
}
