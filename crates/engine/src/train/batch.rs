//! Datums, checked and ready to be computed.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use tinkrs_types::Datum;

use crate::loss::{CustomLoss, Loss, LossOutput, LossTensors, Objective, custom};
use crate::{Error, Model};

/// Memory for kept activations of one group of datums; a single datum may need more.
const KEPT_BYTES: usize = 1 << 30;

/// Checked datums and their loss.
pub(crate) struct Batch {
    pub(crate) loss: CheckedLoss,
    pub(crate) examples: Vec<Example>,
}

/// An objective whose settings were checked.
pub(crate) enum CheckedLoss {
    BuiltIn(Loss),
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
    pub(crate) fn new(
        model: &Model,
        data: Cow<'_, [Datum]>,
        objective: Objective,
    ) -> Result<Self, Error> {
        let vocab = model.config().vocab;
        match objective {
            Objective::BuiltIn(loss) => {
                let loss = Loss::new(&loss)?;
                let examples = examples(model, &data, |index, datum, length| {
                    LossTensors::new(index, datum, &loss, length, vocab)
                })?;
                let loss = CheckedLoss::BuiltIn(loss);
                Ok(Self { loss, examples })
            }
            Objective::Custom(loss) => {
                let examples = examples(model, &data, |index, datum, length| {
                    loss.check(datum).map_err(|error| error.at_datum(index))?;
                    LossTensors::only_targets(index, datum, length, vocab)
                })?;
                let data = data.into_owned();
                let loss = CheckedLoss::Custom { loss, data };
                Ok(Self { loss, examples })
            }
        }
    }

    /// Evaluates the loss of one example.
    pub(crate) fn evaluate(
        &self,
        example: &Example,
        logprobs: &[f32],
    ) -> Result<LossOutput, Error> {
        match &self.loss {
            CheckedLoss::BuiltIn(loss) => loss.evaluate(logprobs, &example.tensors.inputs()),
            CheckedLoss::Custom { loss, data } => {
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
