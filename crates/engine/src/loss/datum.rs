//! From the named tensors of a datum to the slices that a loss reads.

use tinkrs_types::protocol::key;
use tinkrs_types::tensor::TensorValues;
use tinkrs_types::{Datum, TensorData};

use super::{Loss, LossInputs};
use crate::Error;

/// The tensors of one datum: checked, dense and flat.
///
/// Cells that a sparse tensor does not list hold 0, which is token 0 with weight 0.
#[derive(Clone, Debug, PartialEq)]
pub struct LossTensors {
    datum: usize,
    targets: Vec<u32>,
    shape: Vec<usize>,
    tensors: Vec<(&'static str, Vec<f32>)>,
}

impl LossTensors {
    /// Reads the tensors of a datum that has `length` input tokens.
    ///
    /// `index` is the datum's index in its request, for error messages.
    ///
    /// # Errors
    ///
    /// A tensor that the loss does not know, targets that are missing, outside the vocabulary or not one
    /// row a token, or another tensor of another shape than the targets.
    pub fn new(
        index: usize,
        datum: &Datum,
        loss: &Loss,
        length: usize,
        vocab: usize,
    ) -> Result<Self, Error> {
        let read = Self::only_targets(index, datum, length, vocab)?;
        let Self { targets, shape, .. } = read;
        let refuse = |input: &str, reason: &str| Error::Input {
            datum: index,
            input: input.to_owned(),
            reason: reason.to_owned(),
        };
        if shape.len() == 2 && !loss.takes_candidates() {
            let reason = "has several candidates a position, which gspo does not take";
            return Err(refuse(key::TARGET_TOKENS, reason));
        }
        let mut tensors = Vec::new();
        for (name, tensor) in datum.loss_fn_inputs() {
            if name == key::TARGET_TOKENS {
                continue;
            }
            let known = loss.inputs().iter().find(|known| **known == name.as_str());
            let Some(&known) = known else {
                return Err(refuse(name, "is not known to this loss"));
            };
            let dense = tensor.clone().into_dense(0);
            let got = shape_of(&dense);
            // A flat tensor of the right length is accepted for targets of any shape.
            if got != shape && got != [targets.len()] {
                let (input, expected) = (name.clone(), shape);
                return Err(Error::InputShape {
                    datum: index,
                    input,
                    expected,
                    got,
                });
            }
            match dense.into_values() {
                TensorValues::F32(values) => tensors.push((known, values)),
                TensorValues::I64(_) => return Err(refuse(name, "does not hold float32 numbers")),
            }
        }
        Ok(Self {
            datum: index,
            targets,
            shape,
            tensors,
        })
    }

    /// Reads the targets alone, for a loss that reads the other tensors itself.
    pub(crate) fn only_targets(
        index: usize,
        datum: &Datum,
        length: usize,
        vocab: usize,
    ) -> Result<Self, Error> {
        let refuse = |input: &str, reason: &str| Error::Input {
            datum: index,
            input: input.to_owned(),
            reason: reason.to_owned(),
        };
        let target_tensor = datum
            .target_tokens()
            .ok_or_else(|| refuse(key::TARGET_TOKENS, "is missing"))?
            .clone()
            .into_dense(0);
        let shape = shape_of(&target_tensor);
        let candidates = if shape.len() == 2 { shape[1] } else { 1 };
        if shape.first() != Some(&length) || shape.len() > 2 || candidates == 0 {
            return Err(Error::InputShape {
                datum: index,
                input: key::TARGET_TOKENS.to_owned(),
                expected: vec![length],
                got: shape,
            });
        }
        let TensorValues::I64(targets) = target_tensor.values() else {
            return Err(refuse(key::TARGET_TOKENS, "does not hold integers"));
        };
        let targets = targets
            .iter()
            .enumerate()
            .map(|(cell, &token)| {
                let in_vocab = u32::try_from(token)
                    .ok()
                    .filter(|&id| (id as usize) < vocab);
                let position = cell / candidates;
                in_vocab.ok_or(Error::Token {
                    datum: index,
                    position,
                    token,
                    vocab,
                })
            })
            .collect::<Result<Vec<u32>, Error>>()?;
        Ok(Self {
            datum: index,
            targets,
            shape,
            tensors: Vec::new(),
        })
    }

    /// Returns the target tokens, row by row.
    #[must_use]
    pub fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// Returns the shape of the targets: `[N]`, or `[N, K]` with `K` candidates a position.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns how many targets each position has.
    #[must_use]
    pub fn candidates(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }

    /// Returns the tensors as a loss reads them.
    #[must_use]
    pub fn inputs(&self) -> LossInputs<'_> {
        let tensor = |name: &str| {
            let found = self.tensors.iter().find(|(known, _)| *known == name);
            found.map(|(_, values)| values.as_slice())
        };
        LossInputs {
            datum: self.datum,
            weights: tensor(key::WEIGHTS),
            logprobs: tensor(key::LOGPROBS),
            advantages: tensor(key::ADVANTAGES),
            clip_low_threshold: tensor(key::CLIP_LOW_THRESHOLD),
            clip_high_threshold: tensor(key::CLIP_HIGH_THRESHOLD),
            sequence_ratio_mask: tensor(key::SEQUENCE_RATIO_MASK),
        }
    }
}

fn shape_of(tensor: &TensorData) -> Vec<usize> {
    tensor
        .shape()
        .map_or_else(|| vec![tensor.values().len()], <[usize]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::RatioRange;
    use tinkrs_types::ModelInput;
    use tinkrs_types::tensor::CsrIndices;

    fn datum(inputs: Vec<(&str, TensorData)>) -> Datum {
        let inputs = inputs
            .into_iter()
            .map(|(name, tensor)| (name.to_owned(), tensor))
            .collect();
        Datum::new(ModelInput::from_tokens([1, 2]), inputs).unwrap()
    }

    fn read(inputs: Vec<(&str, TensorData)>, loss: Loss) -> Result<LossTensors, Error> {
        LossTensors::new(3, &datum(inputs), &loss, 2, 10)
    }

    fn targets(tokens: [i64; 2]) -> (&'static str, TensorData) {
        ("target_tokens", TensorData::from(tokens.to_vec()))
    }

    fn floats(len: usize) -> TensorData {
        TensorData::from(vec![1.0_f32; len])
    }

    #[test]
    fn sparse_candidates_become_dense_with_weightless_zeros() {
        let cells = |values: TensorValues| {
            let indices = CsrIndices {
                crow: vec![0, 1, 2],
                col: vec![1, 0],
            };
            TensorData::sparse(values, indices, [2, 2]).unwrap()
        };
        let inputs = vec![
            ("target_tokens", cells(vec![5_i64, 6].into())),
            ("weights", cells(vec![0.5_f32, 2.0].into())),
        ];
        let tensors = read(inputs, Loss::CrossEntropy).unwrap();
        assert_eq!(tensors.shape(), [2, 2]);
        assert_eq!(tensors.candidates(), 2);
        assert_eq!(tensors.targets(), [0, 5, 6, 0]);
        assert_eq!(tensors.inputs().weights, Some(&[0.0, 0.5, 2.0, 0.0][..]));
        assert_eq!(tensors.inputs().logprobs, None);
    }

    #[test]
    fn what_a_loss_cannot_use_is_named() {
        let (entropy, ppo) = (Loss::CrossEntropy, Loss::Ppo(RatioRange::PPO));
        let candidates = TensorData::from_rows(&[[1_i64, 2], [3, 4]]).unwrap();
        let cases = [
            (
                vec![("weights", floats(2))],
                entropy,
                "`target_tokens` is missing",
            ),
            (vec![targets([1, 10])], entropy, "position 1: token 10"),
            (vec![targets([-1, 1])], entropy, "position 0: token -1"),
            (
                vec![targets([1, 2]), ("mask", floats(2))],
                entropy,
                "`mask` is not known",
            ),
            (
                vec![targets([1, 2]), ("advantages", floats(2))],
                entropy,
                "`advantages` is not known",
            ),
            (
                vec![targets([1, 2]), ("sequence_ratio_mask", floats(2))],
                ppo,
                "`sequence_ratio_mask`",
            ),
            (
                vec![("target_tokens", candidates)],
                Loss::Gspo(RatioRange::PPO),
                "gspo",
            ),
        ];
        for (inputs, loss, message) in cases {
            let error = read(inputs, loss).unwrap_err().to_string();
            assert!(
                error.contains(message) && error.contains("datum 3"),
                "{message}: {error}"
            );
        }
    }

    #[test]
    fn lengths_are_compared_with_the_input() {
        let inputs = vec![targets([1, 2])];
        let error = LossTensors::new(0, &datum(inputs), &Loss::CrossEntropy, 5, 10).unwrap_err();
        assert_eq!(
            error.to_string(),
            "datum 0: `target_tokens` has shape [2], expected [5]"
        );
    }
}
