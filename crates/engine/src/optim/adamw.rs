//! AdamW on named, flat tensors.
//!
//! With gradient `g` (clipped, see below), step number `t` counted from one, and the parameters of this
//! very step, which may change from step to step:
//!
//! ```text
//! p ← p · (1 − lr · weight_decay)
//! m ← m + (1 − beta1) · (g − m)
//! v ← beta2 · v + (1 − beta2) · g²
//! p ← p − lr / (1 − beta1^t) · m / (√v / √(1 − beta2^t) + eps)
//! ```
//!
//! This is `torch.optim.AdamW`, operation for operation, in f32 with its factors computed in f64.
//!
//! Clipping comes first and is `torch.nn.utils.clip_grad_norm_`: with `n` the norm of all gradients
//! together, every gradient is multiplied by `grad_clip_norm / (n + 1e-6)` if that is below one.
//!
//! Invariants: a step that fails changes nothing; and the bits do not depend on the number of threads,
//! because norms are sums over blocks of a fixed size, added up in order.

use std::collections::BTreeMap;

use rayon::prelude::*;
use tinkrs_types::{AdamParams, InvalidInput};

use super::{StepNorms, Trained};
use crate::Error;

/// Elements a task works on: large enough to be worth a task, small enough to stay in a core's cache.
const BLOCK: usize = 16 * 1024;

/// Running averages of a tensor's gradient and of its square.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    /// Average gradient, `m`.
    pub first: Vec<f32>,
    /// Average squared gradient, `v`.
    pub second: Vec<f32>,
}

/// The optimizer's state: a step count, and moments by tensor name.
///
/// The fields are public because a checkpoint stores exactly them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdamW {
    /// Steps taken so far.
    pub steps: u64,
    /// Moments of each tensor seen so far; those of a new tensor start at zero.
    pub moments: BTreeMap<String, Moments>,
}

/// What the names of moments begin with in a saved state.
const FIRST: &str = "moments.first.";
const SECOND: &str = "moments.second.";

impl AdamW {
    /// Lists the moments as a saved state names them.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (String, &[f32])> {
        self.moments.iter().flat_map(|(name, moments)| {
            [
                (format!("{FIRST}{name}"), moments.first.as_slice()),
                (format!("{SECOND}{name}"), moments.second.as_slice()),
            ]
        })
    }

    /// Finds where a tensor of a saved state belongs; `None` if it is not of this optimizer.
    pub(super) fn tensor_mut(&mut self, saved_name: &str) -> Option<&mut Vec<f32>> {
        let (name, is_first) = match saved_name.strip_prefix(FIRST) {
            Some(name) => (name, true),
            None => (saved_name.strip_prefix(SECOND)?, false),
        };
        let moments = self.moments.entry(name.to_owned()).or_default();
        Some(if is_first {
            &mut moments.first
        } else {
            &mut moments.second
        })
    }

    /// Whether what is kept for a tensor, if anything, is of its length.
    pub(super) fn fits(&self, name: &str, elements: usize) -> bool {
        self.moments.get(name).is_none_or(|moments| {
            [&moments.first, &moments.second]
                .iter()
                .all(|moment| moment.len() == elements)
        })
    }

    /// Takes one step on `tensors`.
    ///
    /// Gradients are read and left as they are; the caller clears them.
    ///
    /// # Errors
    ///
    /// A setting out of range, a gradient or a moment of another length than its tensor, or a number
    /// that is not finite in a gradient or in the outcome. Nothing is changed then.
    pub fn step(
        &mut self,
        params: &AdamParams,
        tensors: &mut [Trained<'_>],
    ) -> Result<StepNorms, Error> {
        check(params)?;
        for tensor in tensors.iter() {
            self.check_lengths(tensor)?;
        }
        let gradient = gradient_norm(tensors)?;
        let clip = match params.grad_clip_norm {
            0.0 => 1.0,
            limit => (limit / (gradient + 1e-6)).min(1.0),
        };
        let rule = Rule::new(params, self.steps + 1, clip as f32);

        // The moments of a new tensor are inserted before the outcome is known, which changes nothing:
        // a tensor without moments and one with zero moments are the same.
        for tensor in tensors.iter() {
            let zeros = || Moments {
                first: vec![0.0; tensor.values.len()],
                second: vec![0.0; tensor.values.len()],
            };
            self.moments
                .entry(tensor.name.to_owned())
                .or_insert_with(zeros);
        }
        let mut squared = 0.0;
        for tensor in tensors.iter() {
            squared += rule.rehearse(tensor, &self.moments[tensor.name])?;
        }
        for tensor in tensors.iter_mut() {
            let moments = self.moments.get_mut(tensor.name).expect("inserted above");
            rule.apply(tensor, moments);
        }
        self.steps += 1;
        Ok(StepNorms {
            gradient,
            clipped_gradient: gradient * clip,
            update: squared.sqrt(),
        })
    }

    fn check_lengths(&self, tensor: &Trained<'_>) -> Result<(), Error> {
        let expected = tensor.values.len();
        let moments = self.moments.get(tensor.name);
        let lengths = [
            ("gradient", Some(tensor.gradient.len())),
            ("first moment", moments.map(|moments| moments.first.len())),
            ("second moment", moments.map(|moments| moments.second.len())),
        ];
        for (what, got) in lengths {
            if let Some(got) = got.filter(|&got| got != expected) {
                let tensor = format!("{what} of {}", tensor.name);
                return Err(Error::Shape {
                    tensor,
                    expected: vec![expected],
                    got: vec![got],
                });
            }
        }
        Ok(())
    }
}

fn check(params: &AdamParams) -> Result<(), InvalidInput> {
    params.check()?;
    // Steps are taken in f32: there, an eps that rounds to zero would divide zero by zero.
    if params.eps as f32 == 0.0 {
        let allowed = "a number above 1e-45, the least that f32 can tell from 0";
        return Err(InvalidInput::new("adam_params.eps", params.eps, allowed));
    }
    Ok(())
}

/// The numbers of one step, as every element needs them.
struct Rule {
    clip: f32,
    keep: f32,
    first_rate: f32,
    second_decay: f32,
    second_rate: f32,
    step_size: f32,
    root_correction: f32,
    eps: f32,
}

impl Rule {
    fn new(params: &AdamParams, step: u64, clip: f32) -> Self {
        let exponent = i32::try_from(step).unwrap_or(i32::MAX);
        let first_correction = 1.0 - params.beta1.powi(exponent);
        let second_correction = 1.0 - params.beta2.powi(exponent);
        Self {
            clip,
            keep: (1.0 - params.learning_rate * params.weight_decay) as f32,
            first_rate: (1.0 - params.beta1) as f32,
            second_decay: params.beta2 as f32,
            second_rate: (1.0 - params.beta2) as f32,
            step_size: (params.learning_rate / first_correction) as f32,
            root_correction: second_correction.sqrt() as f32,
            eps: params.eps as f32,
        }
    }

    /// Returns the new value and moments of one element.
    #[inline]
    fn element(&self, p: f32, m: f32, v: f32, g: f32) -> (f32, f32, f32) {
        let g = g * self.clip;
        let m = m + self.first_rate * (g - m);
        let v = self.second_decay * v + self.second_rate * g * g;
        let denominator = v.sqrt() / self.root_correction + self.eps;
        (p * self.keep - self.step_size * (m / denominator), m, v)
    }

    /// Computes a tensor's step without taking it, and returns the squared norm of the change.
    fn rehearse(&self, tensor: &Trained<'_>, moments: &Moments) -> Result<f64, Error> {
        let blocks: Vec<(f64, bool)> = tensor
            .values
            .par_chunks(BLOCK)
            .zip(tensor.gradient.par_chunks(BLOCK))
            .zip(
                moments
                    .first
                    .par_chunks(BLOCK)
                    .zip(moments.second.par_chunks(BLOCK)),
            )
            .map(|((values, gradient), (first, second))| {
                let mut squared = 0.0;
                let mut finite = true;
                for i in 0..values.len() {
                    let (p, m, v) = self.element(values[i], first[i], second[i], gradient[i]);
                    let change = f64::from(p) - f64::from(values[i]);
                    squared += change * change;
                    finite &= p.is_finite() && m.is_finite() && v.is_finite();
                }
                (squared, finite)
            })
            .collect();
        if blocks.iter().all(|&(_, finite)| finite) {
            return Ok(blocks.iter().map(|&(squared, _)| squared).sum());
        }
        let outcome = |i: usize| {
            self.element(
                tensor.values[i],
                moments.first[i],
                moments.second[i],
                tensor.gradient[i],
            )
        };
        let (index, value) = (0..tensor.values.len())
            .flat_map(|i| {
                let (p, m, v) = outcome(i);
                [(i, p), (i, m), (i, v)]
            })
            .find(|(_, value)| !value.is_finite())
            .expect("a block reported one");
        let tensor = format!("updated {}", tensor.name);
        Err(Error::NonFiniteTensor {
            operation: "optim_step",
            tensor,
            index,
            value,
        })
    }

    fn apply(&self, tensor: &mut Trained<'_>, moments: &mut Moments) {
        tensor
            .values
            .par_chunks_mut(BLOCK)
            .zip(tensor.gradient.par_chunks(BLOCK))
            .zip(
                moments
                    .first
                    .par_chunks_mut(BLOCK)
                    .zip(moments.second.par_chunks_mut(BLOCK)),
            )
            .for_each(|((values, gradient), (first, second))| {
                for i in 0..values.len() {
                    (values[i], first[i], second[i]) =
                        self.element(values[i], first[i], second[i], gradient[i]);
                }
            });
    }
}

/// Returns the norm of all gradients together.
fn gradient_norm(tensors: &[Trained<'_>]) -> Result<f64, Error> {
    let mut squared = 0.0;
    for tensor in tensors {
        let blocks: Vec<f64> = tensor
            .gradient
            .par_chunks(BLOCK)
            .map(sum_of_squares)
            .collect();
        let sum: f64 = blocks.iter().sum();
        // Squares of finite f32 numbers do not overflow an f64 sum, so this finds every bad element.
        if !sum.is_finite() {
            let mut elements = tensor.gradient.iter().copied().enumerate();
            let (index, value) = elements
                .find(|(_, value)| !value.is_finite())
                .expect("the sum is not finite");
            let tensor = format!("gradient of {}", tensor.name);
            return Err(Error::NonFiniteTensor {
                operation: "optim_step",
                tensor,
                index,
                value,
            });
        }
        squared += sum;
    }
    Ok(squared.sqrt())
}

/// Sums squares in four interleaved lanes, which the compiler can keep in one register.
fn sum_of_squares(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 4];
    let chunks = values.chunks_exact(4);
    let rest: f64 = chunks
        .remainder()
        .iter()
        .map(|&value| f64::from(value).powi(2))
        .sum();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(value) * f64::from(value);
        }
    }
    lanes.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests;
