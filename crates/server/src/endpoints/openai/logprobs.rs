//! Log-probabilities in the two forms of the OpenAI API. The numbers are those of the sampler, to the bit.

use std::collections::BTreeMap;

use tinkrs_types::sampling::{SampledSequence, TopkLogprobs};
use tinkrs_wire::openai::chat::{ChatLogprobs, TokenLogprob, TopLogprob};
use tinkrs_wire::openai::completions::TextLogprobs;

use crate::endpoints::text::token_text;
use crate::state::Base;
use crate::token_watch::DrawnToken;

/// A token with what was reported of its place.
pub(super) struct Scored {
    pub(super) token: u32,
    /// `None` for the first token of a prompt.
    pub(super) logprob: Option<f32>,
    pub(super) alternatives: Vec<(u32, f32)>,
}

impl From<&DrawnToken> for Scored {
    fn from(drawn: &DrawnToken) -> Self {
        Self {
            token: drawn.token,
            logprob: Some(drawn.logprob),
            alternatives: drawn.alternatives.clone(),
        }
    }
}

/// Returns the tokens of a sample with their log-probabilities.
pub(super) fn of_sequence(sequence: &SampledSequence) -> impl Iterator<Item = Scored> {
    let logprobs = sequence.logprobs.as_deref().unwrap_or_default();
    let topk = sequence.topk_logprobs.as_ref();
    sequence
        .tokens
        .iter()
        .enumerate()
        .map(move |(index, token)| Scored {
            token: *token,
            logprob: logprobs.get(index).copied(),
            alternatives: row(topk, index),
        })
}

/// Returns what was reported of a place.
pub(super) fn row(topk: Option<&TopkLogprobs>, index: usize) -> Vec<(u32, f32)> {
    let row = topk.and_then(|topk| topk.row(index));
    row.map_or_else(Vec::new, Iterator::collect)
}

/// Writes tokens as chat completions do.
pub(super) fn chat(base: &Base, tokens: impl Iterator<Item = Scored>) -> ChatLogprobs {
    let content = tokens.map(|scored| {
        let bytes = base.token_bytes(scored.token);
        let top = scored.alternatives.into_iter().map(|(token, logprob)| {
            let bytes = base.token_bytes(token);
            TopLogprob {
                token: token_text(bytes),
                logprob,
                bytes: Some(bytes.to_vec()),
            }
        });
        TokenLogprob {
            token: token_text(bytes),
            logprob: scored.logprob.unwrap_or_default(),
            bytes: Some(bytes.to_vec()),
            top_logprobs: top.collect(),
        }
    });
    ChatLogprobs {
        content: Some(content.collect()),
        refusal: None,
    }
}

/// Writes tokens as completions do. `offset` is where the text of the first of them begins, and then where it ends.
pub(super) fn text(
    base: &Base,
    tokens: impl Iterator<Item = Scored>,
    offset: &mut u64,
) -> TextLogprobs {
    let mut all = TextLogprobs::default();
    for scored in tokens {
        let text = token_text(base.token_bytes(scored.token));
        let top = scored.logprob.map(|logprob| {
            let likeliest = scored.alternatives.iter();
            let likeliest =
                likeliest.map(|(token, logprob)| (token_text(base.token_bytes(*token)), *logprob));
            let mut top: BTreeMap<_, _> = likeliest.collect();
            top.insert(text.clone(), logprob);
            top
        });
        all.text_offset.push(*offset);
        *offset += String::from_utf8_lossy(base.token_bytes(scored.token))
            .chars()
            .count() as u64;
        all.tokens.push(text);
        all.token_logprobs.push(scored.logprob);
        all.top_logprobs.push(top);
    }
    all
}
