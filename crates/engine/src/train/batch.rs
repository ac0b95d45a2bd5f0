//! Datums, checked and ready to be computed.

use tinkrs_types::{Datum, LossFn};

use crate::loss::{Loss, LossTensors};
use crate::{Error, Model, ModelConfig};

/// Memory for kept activations of one group of datums; a single datum may need more.
const KEPT_BYTES: usize = 1 << 30;

/// Checked datums and their loss.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) loss: Loss,
    pub(crate) examples: Vec<Example>,
}

/// One datum's tokens and what the loss needs.
#[derive(Debug)]
pub(crate) struct Example {
    pub(crate) tokens: Vec<u32>,
    pub(crate) tensors: LossTensors,
}

impl Batch {
    /// Checks everything that can be checked before computing.
    pub(crate) fn new(model: &Model, data: &[Datum], loss: &LossFn) -> Result<Self, Error> {
        let loss = Loss::new(loss)?;
        let examples = data
            .iter()
            .enumerate()
            .map(|(index, datum)| {
                let tokens = text_tokens(index, datum)?;
                model.check_tokens(index, &tokens, 0)?;
                let tensors =
                    LossTensors::new(index, datum, &loss, tokens.len(), model.config().vocab)?;
                Ok(Example { tokens, tensors })
            })
            .collect::<Result<_, Error>>()?;
        Ok(Self { loss, examples })
    }

    /// Cuts the examples into groups whose kept activations fit in memory, in order.
    pub(crate) fn groups(&self, config: &ModelConfig) -> Vec<std::ops::Range<usize>> {
        let limit = (KEPT_BYTES / kept_bytes_per_token(config)).max(1);
        let mut groups = Vec::new();
        let (mut first, mut tokens) = (0, 0);
        for (index, example) in self.examples.iter().enumerate() {
            if index > first && tokens + example.tokens.len() > limit {
                groups.push(first..index);
                (first, tokens) = (index, 0);
            }
            tokens += example.tokens.len();
        }
        if first < self.examples.len() {
            groups.push(first..self.examples.len());
        }
        groups
    }
}

/// Bytes that the forward pass of one token leaves behind, adapters aside.
fn kept_bytes_per_token(config: &ModelConfig) -> usize {
    let (query, kv) = (config.query_width(), config.kv_width());
    let row = 2 * config.hidden + (query + 2 * kv) + query + config.heads + 2 * config.ffn;
    config.layers * row * size_of::<f32>()
}

fn text_tokens(index: usize, datum: &Datum) -> Result<Vec<u32>, Error> {
    datum.model_input().to_tokens().ok_or_else(|| {
        let chunks = datum.model_input().chunks();
        let kind = chunks
            .iter()
            .map(|chunk| chunk.kind())
            .find(|kind| *kind != "encoded_text");
        Error::Input {
            datum: index,
            input: "model_input".to_owned(),
            reason: format!(
                "has a chunk of kind `{}`, but the engine reads text only",
                kind.unwrap_or("unknown")
            ),
        }
    })
}
