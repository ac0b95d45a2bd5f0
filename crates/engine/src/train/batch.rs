//! Datums, checked and ready to be computed.

use std::ops::Range;
use std::sync::Arc;

use tinkrs_types::{Datum, LossFn};

use crate::loss::{CustomLoss, Loss, LossOutput, LossTensors, custom};
use crate::{Error, Model};

/// Memory for kept activations of one group of datums; a single datum may need more.
const KEPT_BYTES: usize = 1 << 30;

/// Checked datums and their loss.
pub(crate) struct Batch {
    pub(crate) objective: Objective,
    pub(crate) examples: Vec<Example>,
}

/// Where the loss of a batch comes from.
pub(crate) enum Objective {
    /// The engine has it.
    Known(Loss),
    /// The caller brought it along. It reads the datums itself.
    Custom {
        loss: Arc<dyn CustomLoss>,
        data: Vec<Datum>,
    },
}

/// One datum's tokens and what the loss needs.
#[derive(Debug)]
pub(crate) struct Example {
    /// Which datum of the request it is.
    index: usize,
    pub(crate) tokens: Vec<u32>,
    pub(crate) tensors: LossTensors,
}

impl Batch {
    /// Checks everything that can be checked before computing.
    pub(crate) fn new(model: &Model, data: &[Datum], loss: &LossFn) -> Result<Self, Error> {
        let loss = Loss::new(loss)?;
        let vocab = model.config().vocab;
        let examples = examples(model, data, |index, datum, length| {
            LossTensors::new(index, datum, &loss, length, vocab)
        })?;
        Ok(Self {
            objective: Objective::Known(loss),
            examples,
        })
    }

    /// As [`new`](Self::new), for a loss that the caller brought along.
    pub(crate) fn custom(
        model: &Model,
        data: Vec<Datum>,
        loss: Arc<dyn CustomLoss>,
    ) -> Result<Self, Error> {
        let vocab = model.config().vocab;
        let examples = examples(model, &data, |index, datum, length| {
            loss.check(datum).map_err(|error| error.at_datum(index))?;
            LossTensors::only_targets(index, datum, length, vocab)
        })?;
        Ok(Self {
            objective: Objective::Custom { loss, data },
            examples,
        })
    }

    /// Evaluates the loss of one example.
    pub(crate) fn evaluate(
        &self,
        example: &Example,
        logprobs: &[f32],
    ) -> Result<LossOutput, Error> {
        match &self.objective {
            Objective::Known(loss) => loss.evaluate(logprobs, &example.tensors.inputs()),
            Objective::Custom { loss, data } => {
                custom::evaluate(&**loss, example.index, logprobs, &data[example.index])
            }
        }
    }

    /// Returns the group of examples that begins with `first`: as many as have `max_tokens` tokens and
    /// whose kept activations fit in memory, and at least one if there is one left.
    pub(crate) fn group(&self, model: &Model, first: usize, max_tokens: usize) -> Range<usize> {
        let limit = group_tokens(model, max_tokens);
        let mut tokens = 0;
        let fits = |example: &&Example| {
            let is_first = tokens == 0;
            tokens += example.tokens.len();
            is_first || tokens <= limit
        };
        first..first + self.examples[first..].iter().take_while(fits).count()
    }
}

fn examples(
    model: &Model,
    data: &[Datum],
    tensors: impl Fn(usize, &Datum, usize) -> Result<LossTensors, Error>,
) -> Result<Vec<Example>, Error> {
    let example = |(index, datum): (usize, &Datum)| {
        let tokens = text_tokens(index, datum)?;
        model.check_tokens(index, &tokens, 0)?;
        let tensors = tensors(index, datum, tokens.len())?;
        Ok(Example {
            index,
            tokens,
            tensors,
        })
    };
    data.iter().enumerate().map(example).collect()
}

/// Returns how many of some tokens are computed at once, a single datum aside.
pub(crate) fn group_tokens(model: &Model, tokens: usize) -> usize {
    tokens.min(KEPT_BYTES / model.kept_bytes_per_token())
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
