//! One training example: what the model reads and what the loss needs to know about it.

use crate::error::elements;
use crate::input::Chunk;
use crate::protocol::key;
use crate::tensor::Dtype;
use crate::training::Provenance;
use crate::training::provenance::check_tiling;
use crate::{InvalidInput, ModelInput, TensorData};
use std::collections::BTreeMap;

/// The named tensors of a datum.
pub type LossInputs = BTreeMap<String, TensorData>;

/// One training example.
///
/// The constructors check element types and lengths, so that a datum which exists can be sent.
///
/// ```
/// use tinkrs_types::{Datum, ModelInput};
///
/// let datum = Datum::reinforcement(
///     ModelInput::from_tokens([1, 2, 3]),
///     [2, 3, 4],            // target tokens: the input shifted by one
///     [0.0, -0.7, -1.2],    // the sampler's log-probabilities
///     [0.0, 1.0, 1.0],      // advantages
/// )?;
/// assert_eq!(datum.loss_fn_inputs().len(), 3);
/// # Ok::<(), tinkrs_types::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Datum {
    model_input: ModelInput,
    loss_fn_inputs: LossInputs,
    provenance: Option<Provenance>,
}

impl Datum {
    /// Makes a datum from any named tensors.
    ///
    /// # Errors
    /// If a tensor that the built-in losses read has the wrong element type, or another length
    /// than the model input (where that is known) or the target tokens. Other names are left
    /// alone: they belong to custom losses.
    pub fn new(
        model_input: impl Into<ModelInput>,
        loss_fn_inputs: LossInputs,
    ) -> Result<Self, InvalidInput> {
        let model_input = model_input.into();
        check_inputs(&model_input, &loss_fn_inputs)?;
        Ok(Self {
            model_input,
            loss_fn_inputs,
            provenance: None,
        })
    }

    /// Makes a datum for supervised learning: the token to predict at each position, and how
    /// much that position counts.
    ///
    /// # Errors
    /// If the three lengths differ.
    pub fn supervised(
        model_input: impl Into<ModelInput>,
        target_tokens: impl Into<Vec<i64>>,
        weights: impl Into<Vec<f32>>,
    ) -> Result<Self, InvalidInput> {
        Self::new(
            model_input,
            BTreeMap::from([
                (key::TARGET_TOKENS.to_owned(), target_tokens.into().into()),
                (key::WEIGHTS.to_owned(), weights.into().into()),
            ]),
        )
    }

    /// Makes a datum that teaches to write `completion` after `prompt`.
    ///
    /// The input and the targets are the joined sequence shifted by one; only the completion's
    /// tokens have weight.
    ///
    /// # Errors
    /// If the two together have fewer than two tokens, since there is then nothing to predict.
    pub fn from_prompt_completion(
        prompt: &[u32],
        completion: &[u32],
    ) -> Result<Self, InvalidInput> {
        let total = prompt.len() + completion.len();
        if total < 2 {
            return Err(InvalidInput::new(
                "tokens",
                elements(total),
                "at least 2, to predict one",
            ));
        }
        let tokens = [prompt, completion].concat();
        let targets: Vec<i64> = tokens[1..].iter().map(|token| i64::from(*token)).collect();
        let weights: Vec<f32> = (1..total)
            .map(|position| if position >= prompt.len() { 1.0 } else { 0.0 })
            .collect();
        Self::supervised(tokens[..total - 1].to_vec(), targets, weights)
    }

    /// Makes a datum for the reinforcement losses.
    ///
    /// # Errors
    /// If the four lengths differ.
    pub fn reinforcement(
        model_input: impl Into<ModelInput>,
        target_tokens: impl Into<Vec<i64>>,
        logprobs: impl Into<Vec<f32>>,
        advantages: impl Into<Vec<f32>>,
    ) -> Result<Self, InvalidInput> {
        Self::new(
            model_input,
            BTreeMap::from([
                (key::TARGET_TOKENS.to_owned(), target_tokens.into().into()),
                (key::LOGPROBS.to_owned(), logprobs.into().into()),
                (key::ADVANTAGES.to_owned(), advantages.into().into()),
            ]),
        )
    }

    /// Adds or replaces a tensor.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_input(
        mut self,
        name: impl Into<String>,
        tensor: impl Into<TensorData>,
    ) -> Result<Self, InvalidInput> {
        self.loss_fn_inputs.insert(name.into(), tensor.into());
        check_inputs(&self.model_input, &self.loss_fn_inputs)?;
        Ok(self)
    }

    /// States where each position came from.
    ///
    /// # Errors
    /// If the spans do not cover the model input, or the target tokens, exactly.
    pub fn with_provenance(mut self, provenance: Provenance) -> Result<Self, InvalidInput> {
        if let Some(length) = self.model_input.len() {
            check_tiling("model_input_spans", &provenance.model_input, length)?;
        }
        if let Some(targets) = self.target_tokens().filter(|targets| targets.rank() == 1) {
            check_tiling(
                "loss_fn_input_spans",
                &provenance.loss_fn_inputs,
                targets.rows(),
            )?;
        }
        self.provenance = Some(provenance);
        Ok(self)
    }

    /// Returns what the model reads.
    pub fn model_input(&self) -> &ModelInput {
        &self.model_input
    }

    /// Returns the named tensors.
    pub fn loss_fn_inputs(&self) -> &LossInputs {
        &self.loss_fn_inputs
    }

    /// Returns where the positions came from, if that was stated.
    pub fn provenance(&self) -> Option<&Provenance> {
        self.provenance.as_ref()
    }

    /// Returns the tokens to predict.
    pub fn target_tokens(&self) -> Option<&TensorData> {
        self.loss_fn_inputs.get(key::TARGET_TOKENS)
    }

    /// Returns how much each position counts.
    pub fn weights(&self) -> Option<&TensorData> {
        self.loss_fn_inputs.get(key::WEIGHTS)
    }

    /// Takes the datum apart.
    pub fn into_parts(self) -> (ModelInput, LossInputs, Option<Provenance>) {
        (self.model_input, self.loss_fn_inputs, self.provenance)
    }
}

/// Returns the element type that a built-in loss needs under this name.
fn required_dtype(name: &str) -> Option<Dtype> {
    match name {
        key::TARGET_TOKENS => Some(Dtype::Int64),
        key::WEIGHTS
        | key::LOGPROBS
        | key::ADVANTAGES
        | key::CLIP_LOW_THRESHOLD
        | key::CLIP_HIGH_THRESHOLD
        | key::SEQUENCE_RATIO_MASK => Some(Dtype::Float32),
        _ => None,
    }
}

/// Returns the length of a text; an image's is only what its sender expects.
fn exact_length(input: &ModelInput) -> Option<usize> {
    input
        .chunks()
        .iter()
        .all(|chunk| matches!(chunk, Chunk::Text(_)))
        .then(|| input.len())?
}

fn check_inputs(model_input: &ModelInput, inputs: &LossInputs) -> Result<(), InvalidInput> {
    let targets = inputs.get(key::TARGET_TOKENS);
    for (name, tensor) in inputs {
        let Some(dtype) = required_dtype(name) else {
            continue;
        };
        if tensor.dtype() != dtype {
            return Err(InvalidInput::new(
                name.clone(),
                tensor.dtype(),
                dtype.to_string(),
            ));
        }
        if tensor.rank() > 2 {
            let found = format!("{} dimensions", tensor.rank());
            return Err(InvalidInput::new(name.clone(), found, "1 or 2"));
        }
        if let Some(targets) = targets.filter(|targets| targets.rows() != tensor.rows()) {
            let allowed = format!("{}, one for each target token", targets.rows());
            return Err(InvalidInput::new(
                name.clone(),
                elements(tensor.rows()),
                allowed,
            ));
        }
        if let Some(length) = exact_length(model_input).filter(|length| *length != tensor.rows()) {
            let allowed = format!("{length}, one for each token of the model input");
            return Err(InvalidInput::new(
                name.clone(),
                elements(tensor.rows()),
                allowed,
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::ProvenanceSpan;

    #[test]
    fn a_tensor_of_the_wrong_type_or_length_is_refused_by_name() {
        let input = || ModelInput::from_tokens([1, 2]);
        let inputs = |name: &str, tensor: TensorData| BTreeMap::from([(name.to_owned(), tensor)]);
        let cases = [
            (
                "target_tokens",
                TensorData::from(vec![1.0, 2.0]),
                "found float32, expected int64",
            ),
            (
                "weights",
                TensorData::from(vec![1, 2]),
                "found int64, expected float32",
            ),
            (
                "weights",
                TensorData::from(vec![1.0]),
                "found 1 element, expected 2, one for each token",
            ),
            (
                "advantages",
                TensorData::with_shape(vec![1.0, 2.0], [1, 1, 2]).unwrap(),
                "3 dimensions",
            ),
        ];
        for (name, tensor, expected) in cases {
            let error = Datum::new(input(), inputs(name, tensor)).unwrap_err();
            assert_eq!(error.field(), name);
            assert!(error.to_string().contains(expected), "{error}");
        }
        Datum::new(input(), inputs("my_own", TensorData::from(vec![1]))).unwrap();
    }

    #[test]
    fn a_completion_without_a_prompt_predicts_all_but_its_first_token() {
        let datum = Datum::from_prompt_completion(&[], &[4, 5, 6]).unwrap();
        assert_eq!(datum.weights().unwrap().as_f32(), Some(&[1.0, 1.0][..]));
        assert!(Datum::from_prompt_completion(&[1], &[]).is_err());
    }

    #[test]
    fn provenance_must_tile_the_input_and_the_targets() {
        let datum =
            || Datum::supervised(ModelInput::from_tokens([1, 2]), [2, 3], [0.0, 1.0]).unwrap();
        let span = |length| vec![ProvenanceSpan::sampled("q".into(), 0, length).unwrap()];
        let spans = |input, targets| Provenance {
            model_input: span(input),
            loss_fn_inputs: span(targets),
        };
        datum().with_provenance(spans(2, 2)).unwrap();
        let error = datum().with_provenance(spans(3, 2)).unwrap_err();
        assert_eq!(error.field(), "model_input_spans");
        let error = datum().with_provenance(spans(2, 1)).unwrap_err();
        assert_eq!(error.field(), "loss_fn_input_spans");
    }
}
