//! Datums, checked and ready to be computed.

use tinkrs_types::{Datum, LossFn};

use crate::loss::{CustomLoss, Loss, LossOutput, LossTensors, custom};
use crate::{Error, Model};

/// Memory for kept activations of one group of datums; a single datum may need more.
const KEPT_BYTES: usize = 1 << 30;

/// Checked datums and their loss.
pub(crate) struct Batch<'a> {
    pub(crate) objective: Objective<'a>,
    pub(crate) examples: Vec<Example>,
}

/// Where the loss of a batch comes from.
pub(crate) enum Objective<'a> {
    /// The engine has it.
    Known(Loss),
    /// The caller brought it along. It reads the datums itself.
    Custom {
        loss: &'a dyn CustomLoss,
        data: &'a [Datum],
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

impl<'a> Batch<'a> {
    /// Checks everything that can be checked before computing.
    pub(crate) fn new(model: &Model, data: &'a [Datum], loss: &LossFn) -> Result<Self, Error> {
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
        data: &'a [Datum],
        loss: &'a dyn CustomLoss,
    ) -> Result<Self, Error> {
        let vocab = model.config().vocab;
        let examples = examples(model, data, |index, datum, length| {
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
                custom::evaluate(*loss, example.index, logprobs, &data[example.index])
            }
        }
    }

    /// Cuts the examples into groups whose kept activations fit in memory, in order.
    pub(crate) fn groups(&self, model: &Model) -> Vec<std::ops::Range<usize>> {
        let limit = (KEPT_BYTES / model.kept_bytes_per_token()).max(1);
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
