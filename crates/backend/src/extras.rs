//! What a sampler can do beyond the parameters of the Tinker API, for endpoints of other APIs.

use std::sync::Arc;

use tinkrs_types::InvalidInput;

use crate::Grammar;

/// Largest bias of a token, either way.
pub const MAX_LOGIT_BIAS: f32 = 100.0;

/// Most tokens of [`SamplingExtras::stop_tokens`].
pub const MAX_STOP_TOKENS: usize = 1024;

/// Changes to how tokens are drawn. By default there are none.
///
/// They are applied to the model's logits in this order: the grammar, `logit_bias`, `min_tokens`,
/// repetition, frequency and presence penalties, temperature, `min_p`, `top_k`, `top_p`.
///
/// None of them changes what is reported: log-probabilities, of the tokens drawn and of alternatives, are
/// the model's own at the request's temperature, as for requests without extras. So they can be compared
/// between requests and with those of a training pass. A token that its grammar forced may therefore have a
/// very low one.
#[derive(Clone, Debug)]
pub struct SamplingExtras {
    /// Numbers that are added to the logits of tokens, between -100 and 100; each token at most once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Subtracted from the logits of tokens that were generated before, as OpenAI defines it: -2 to 2.
    pub presence_penalty: f64,
    /// Subtracted from the logits of tokens for each time they were generated before, as OpenAI defines it:
    /// -2 to 2.
    pub frequency_penalty: f64,
    /// Divides the positive logits of tokens of the prompt and of generated ones, and multiplies their
    /// negative ones, as Hugging Face and vLLM define it: 0.01 to 100, where 1 changes nothing.
    pub repetition_penalty: f64,
    /// Draws only from tokens whose probability is at least this part of the likeliest one's: 0 to 1.
    pub min_p: f64,
    /// No sample ends, by a token or a text, before it has this many tokens. Stop texts are looked for in what follows them.
    pub min_tokens: u32,
    /// Whether the model's end-of-sequence tokens end a sample.
    pub end_of_sequence: EndOfSequence,
    /// Tokens that end a sample besides those of `params.stop`.
    pub stop_tokens: Vec<u32>,
    /// What samples have to keep to.
    pub grammar: Option<Arc<dyn Grammar>>,
}

/// Whether the model's end-of-sequence tokens end a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndOfSequence {
    /// If the request has no `stop`, as in the Tinker API.
    #[default]
    WithoutStop,
    /// Always, besides `stop`.
    Always,
    /// Never.
    Ignored,
}

impl Default for SamplingExtras {
    fn default() -> Self {
        Self {
            logit_bias: Vec::new(),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            min_p: 0.0,
            min_tokens: 0,
            end_of_sequence: EndOfSequence::default(),
            stop_tokens: Vec::new(),
            grammar: None,
        }
    }
}

impl SamplingExtras {
    /// Checks everything against a vocabulary and the request's `max_tokens`, before anything runs.
    ///
    /// # Errors
    ///
    /// Names the first field that cannot be used, and what it may hold.
    pub fn check(&self, vocabulary: usize, max_tokens: usize) -> Result<(), InvalidInput> {
        let in_vocabulary = |field: &'static str, token: u32| {
            if (token as usize) < vocabulary {
                return Ok(());
            }
            let allowed = format!("tokens below {vocabulary}, the size of the vocabulary");
            Err(InvalidInput::new(field, format!("token {token}"), allowed))
        };
        self.check_bias(vocabulary, in_vocabulary)?;
        let ranges = [
            ("presence_penalty", self.presence_penalty, -2.0..=2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0..=2.0),
            ("repetition_penalty", self.repetition_penalty, 0.01..=100.0),
            ("min_p", self.min_p, 0.0..=1.0),
        ];
        for (field, value, range) in ranges {
            if !range.contains(&value) {
                let allowed = format!("{} to {}", range.start(), range.end());
                return Err(InvalidInput::new(field, value, allowed));
            }
        }
        if self.min_tokens as usize > max_tokens {
            let allowed = format!("at most max_tokens, {max_tokens}");
            return Err(InvalidInput::new("min_tokens", self.min_tokens, allowed));
        }
        if self.min_tokens > 0 && self.grammar.is_some() {
            return Err(InvalidInput::new(
                "min_tokens",
                self.min_tokens,
                "0 with a grammar, which decides where a sample may end",
            ));
        }
        if self.stop_tokens.len() > MAX_STOP_TOKENS {
            let found = format!("{} tokens", self.stop_tokens.len());
            let allowed = format!("at most {MAX_STOP_TOKENS}");
            return Err(InvalidInput::new("stop_tokens", found, allowed));
        }
        let mut stop_tokens = self.stop_tokens.iter();
        stop_tokens.try_for_each(|token| in_vocabulary("stop_tokens", *token))
    }

    fn check_bias(
        &self,
        vocabulary: usize,
        in_vocabulary: impl Fn(&'static str, u32) -> Result<(), InvalidInput>,
    ) -> Result<(), InvalidInput> {
        let field = "logit_bias";
        if self.logit_bias.is_empty() {
            return Ok(());
        }
        let mut is_biased = vec![false; vocabulary];
        for &(token, bias) in &self.logit_bias {
            in_vocabulary(field, token)?;
            if !(-MAX_LOGIT_BIAS..=MAX_LOGIT_BIAS).contains(&bias) {
                let found = format!("{bias} for token {token}");
                return Err(InvalidInput::new(field, found, "-100 to 100"));
            }
            if std::mem::replace(&mut is_biased[token as usize], true) {
                let found = format!("token {token} twice");
                return Err(InvalidInput::new(field, found, "each token at most once"));
            }
        }
        Ok(())
    }

    /// Returns whether a draw needs other logits than the model's. A different end of the sample does not.
    pub(crate) fn changes_logits(&self) -> bool {
        !self.logit_bias.is_empty()
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.repetition_penalty != 1.0
            || self.min_tokens > 0
            || self.grammar.is_some()
    }

    /// Returns about how many bytes of memory they take, the grammar aside.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.logit_bias.capacity() * size_of::<(u32, f32)>()
            + self.stop_tokens.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extras_out_of_range_are_refused_by_name() {
        type Change = fn(&mut SamplingExtras);
        let cases: [(&str, Change); 17] = [
            ("logit_bias", |e| e.logit_bias = vec![(50, 1.0)]),
            ("logit_bias", |e| e.logit_bias = vec![(1, f32::NAN)]),
            ("logit_bias", |e| e.logit_bias = vec![(1, f32::INFINITY)]),
            ("logit_bias", |e| e.logit_bias = vec![(1, -100.5)]),
            ("logit_bias", |e| e.logit_bias = vec![(1, 1.0), (1, 2.0)]),
            ("presence_penalty", |e| e.presence_penalty = 2.1),
            ("presence_penalty", |e| e.presence_penalty = f64::NAN),
            ("frequency_penalty", |e| e.frequency_penalty = -2.1),
            ("repetition_penalty", |e| e.repetition_penalty = 0.0),
            ("repetition_penalty", |e| {
                e.repetition_penalty = f64::INFINITY
            }),
            ("min_p", |e| e.min_p = -0.1),
            ("min_p", |e| e.min_p = 1.1),
            ("min_p", |e| e.min_p = f64::NAN),
            ("min_tokens", |e| e.min_tokens = 9),
            ("min_tokens", |e| {
                e.min_tokens = 1;
                e.grammar = Some(Arc::new(Anything));
            }),
            ("stop_tokens", |e| e.stop_tokens = vec![50]),
            ("stop_tokens", |e| {
                e.stop_tokens = vec![1; MAX_STOP_TOKENS + 1];
            }),
        ];
        for (field, change) in cases {
            let mut extras = SamplingExtras::default();
            extras.check(50, 8).unwrap();
            change(&mut extras);
            assert_eq!(extras.check(50, 8).unwrap_err().field(), field);
        }
    }

    #[derive(Debug)]
    struct Anything;

    impl Grammar for Anything {
        fn begin(&self) -> Box<dyn crate::Constraint> {
            unreachable!("it is only checked")
        }
    }
}
