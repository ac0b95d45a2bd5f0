//! One forward or forward-and-backward call over a checked batch, in slices.
//!
//! The sums of gradients continue from example to example, so the bits do not depend on the slices.

use std::collections::BTreeMap;
use std::ops::Range;

use tinkrs_types::ForwardBackwardOutput;
use tinkrs_types::training::{BatchedTensor, OutputRecord};

use super::batch::{Batch, CheckedLoss, Example};
use super::slots::Slots;
use crate::adapter::Adapter;
use crate::loss::{LossOutput, MetricTotals};
use crate::model::attention::Past;
use crate::model::backward::Gradients;
use crate::model::head::{Head, Targets};
use crate::model::rows::Rows;
use crate::{Error, Model};

/// A sum of gradients for each tensor that is trained.
type GradientSums = Vec<Vec<f32>>;

/// A pass under way: the examples before `next` are done.
pub(crate) struct Pass {
    batch: Batch,
    next: usize,
    output: Output,
    /// The sums of gradients of the run, continued by those of the examples; `None` in a pass that goes
    /// forward only. They become the run's own when the pass has ended well.
    sums: Option<GradientSums>,
}

impl Pass {
    pub(super) fn new(batch: Batch, sums: Option<GradientSums>) -> Self {
        Self {
            batch,
            next: 0,
            output: Output::default(),
            sums,
        }
    }

    /// Computes the next examples, of `max_tokens` tokens or one. Returns whether those were the last.
    ///
    /// After an error the pass cannot be continued.
    pub(super) fn advance(
        &mut self,
        model: &Model,
        adapter: Option<&Adapter>,
        slots: &Slots,
        max_tokens: usize,
    ) -> Result<bool, Error> {
        let group = self.batch.group(model, self.next, max_tokens);
        self.next = group.end;
        if !group.is_empty() {
            let examples = &self.batch.examples[group];
            match &mut self.sums {
                None => forward(model, adapter, &self.batch, examples, &mut self.output)?,
                Some(sums) => {
                    let mut gradients = Gradients {
                        slots,
                        values: sums,
                    };
                    let (batch, output) = (&self.batch, &mut self.output);
                    forward_backward(model, adapter, batch, examples, &mut gradients, output)?;
                }
            }
        }
        Ok(self.next == self.batch.examples.len())
    }

    /// Returns the result, and the sums of gradients that the run has from now on.
    pub(super) fn finish(
        self,
        slots: &Slots,
    ) -> Result<(ForwardBackwardOutput, Option<GradientSums>), Error> {
        if let Some(sums) = &self.sums {
            check_finite(slots, sums)?;
        }
        Ok((self.output.finish()?, self.sums))
    }
}

/// Computes losses and log-probabilities of some examples.
fn forward(
    model: &Model,
    adapter: Option<&Adapter>,
    batch: &Batch,
    examples: &[Example],
    output: &mut Output,
) -> Result<(), Error> {
    let packed = Packed::new(examples, adapter);
    let logprobs = model.workspaces.with(|workspace| {
        model.forward_once(&packed.tokens, &packed.rows, workspace, Past::Rows);
        Head::new(
            model,
            adapter,
            &packed.targets,
            &workspace.last,
            &mut workspace.logits,
        )
        .forward()
    });
    for (example, range) in examples.iter().zip(packed.target_ranges()) {
        let logprobs = &logprobs[range];
        output.add(example, logprobs, &batch.evaluate(example, logprobs)?);
    }
    Ok(())
}

/// Computes losses and log-probabilities of some examples and continues the sums of gradients.
///
/// On an error the sums are left half done.
fn forward_backward(
    model: &Model,
    adapter: Option<&Adapter>,
    batch: &Batch,
    examples: &[Example],
    gradients: &mut Gradients<'_>,
    output: &mut Output,
) -> Result<(), Error> {
    let packed = Packed::new(examples, adapter);
    model.workspaces.with(|workspace| {
        model.forward_keeping(&packed.tokens, &packed.rows, workspace);
        let last = std::mem::take(&mut workspace.last);
        let mut head = Head::new(
            model,
            adapter,
            &packed.targets,
            &last,
            &mut workspace.logits,
        );
        let ranges = || examples.iter().zip(packed.target_ranges());
        let evaluate = |logprobs: &[f32]| -> Result<Vec<LossOutput>, Error> {
            ranges()
                .map(|(example, range)| batch.evaluate(example, &logprobs[range]))
                .collect()
        };
        let (logprobs, losses, d_last) = match slopes_in_advance(&batch.loss, examples) {
            Some(slopes) => {
                let mut logprobs = Vec::new();
                let d_last = head.backward(&slopes, gradients, Some(&mut logprobs));
                (logprobs.clone(), evaluate(&logprobs)?, d_last)
            }
            None => {
                let logprobs = head.forward();
                let losses = evaluate(&logprobs)?;
                let slopes: Vec<f32> = losses
                    .iter()
                    .flat_map(|loss| &loss.gradient)
                    .copied()
                    .collect();
                let d_last = head.backward(&slopes, gradients, None);
                (logprobs, losses, d_last)
            }
        };
        for ((example, range), loss) in ranges().zip(&losses) {
            output.add(example, &logprobs[range], loss);
        }
        workspace.last = last;
        model.backward(
            &packed.tokens,
            &packed.rows,
            adapter,
            workspace,
            d_last,
            gradients,
        );
        Ok(())
    })
}

/// The derivatives of the loss, if it knows them without the log-probabilities.
fn slopes_in_advance(loss: &CheckedLoss, examples: &[Example]) -> Option<Vec<f32>> {
    let CheckedLoss::BuiltIn(loss) = loss else {
        return None;
    };
    let slopes = examples.iter().map(|example| {
        let (inputs, targets) = (example.tensors.inputs(), example.tensors.targets().len());
        loss.slopes_without_logprobs(&inputs, targets)
    });
    Some(slopes.collect::<Option<Vec<_>>>()?.concat())
}

fn check_finite(slots: &Slots, sums: &[Vec<f32>]) -> Result<(), Error> {
    for (number, sum) in sums.iter().enumerate() {
        if let Some(index) = sum.iter().position(|value| !value.is_finite()) {
            return Err(Error::NonFiniteTensor {
                operation: "forward_backward",
                tensor: format!("gradient of {}", slots.gradient_name(number)),
                index,
                value: sum[index],
            });
        }
    }
    Ok(())
}

/// Examples one after the other, without padding.
struct Packed<'a> {
    tokens: Vec<u32>,
    rows: Rows<'a>,
    targets: Targets,
}

impl<'a> Packed<'a> {
    fn new(examples: &[Example], adapter: Option<&'a Adapter>) -> Self {
        let mut rows = Rows::default();
        let (mut tokens, mut targets, mut starts) = (Vec::new(), Vec::new(), vec![0]);
        for example in examples {
            rows.push(example.tokens.len(), 0, adapter);
            tokens.extend_from_slice(&example.tokens);
            targets.extend_from_slice(example.tensors.targets());
            for _ in &example.tokens {
                starts.push(starts.last().copied().unwrap_or(0) + example.tensors.candidates());
            }
        }
        Self {
            tokens,
            rows,
            targets: Targets {
                tokens: targets,
                starts,
            },
        }
    }

    /// Where each example's targets lie.
    fn target_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.rows
            .spans()
            .iter()
            .map(|span| self.targets.starts[span.rows.start]..self.targets.starts[span.rows.end])
    }
}

/// Results so far, in the order of datums.
#[derive(Default)]
struct Output {
    totals: MetricTotals,
    /// Runs of neighbouring datums with the same number of candidates.
    runs: Vec<(Vec<usize>, Vec<f32>, Vec<usize>)>,
}

impl Output {
    fn add(&mut self, example: &Example, logprobs: &[f32], loss: &LossOutput) {
        self.totals.add(&loss.metrics);
        let trailing = &example.tensors.shape()[1..];
        if self.runs.last().is_none_or(|(shape, ..)| shape != trailing) {
            self.runs.push((trailing.to_vec(), Vec::new(), vec![0]));
        }
        if let Some((_, values, offsets)) = self.runs.last_mut() {
            values.extend_from_slice(logprobs);
            offsets.push(values.len());
        }
    }

    fn finish(self) -> Result<ForwardBackwardOutput, Error> {
        let mut records = Vec::new();
        for (trailing, values, offsets) in self.runs {
            let datums = offsets.len() - 1;
            let logprobs = BatchedTensor::new(values, offsets, trailing)?;
            records.push(OutputRecord::new(
                datums,
                BTreeMap::from([("logprobs".to_owned(), logprobs)]),
            )?);
        }
        Ok(ForwardBackwardOutput::new(
            "scalar".to_owned(),
            records,
            self.totals.finish(),
        ))
    }
}
