//! The loss of a pass, from servers that report it in different ways.
//!
//! Tinker reports `loss:sum`. Other servers of the API report `total_loss:sum`, or a mean, or nothing but the
//! log-probabilities of the targets, from which the loss can be computed since the caller knows the weights.

use super::ForwardBackwardOutput;
use serde::{Deserialize, Serialize};
use std::fmt;

const LOSS_SUM: &str = "loss:sum";
const TOTAL_LOSS_SUM: &str = "total_loss:sum";
const LOSS_MEAN: &str = "loss:mean";

/// What a loss was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LossSource {
    /// The metric `loss:sum`, as Tinker reports it.
    LossSum,
    /// The metric `total_loss:sum`.
    TotalLossSum,
    /// The metric `loss:mean`, times the weight of all targets.
    LossMean,
    /// The log-probabilities of the targets, with their weights: `−Σ w · logprob`.
    Logprobs,
}

impl fmt::Display for LossSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LossSum => "`loss:sum`",
            Self::TotalLossSum => "`total_loss:sum`",
            Self::LossMean => "`loss:mean` times the weight of the targets",
            Self::Logprobs => "the log-probabilities of the targets",
        })
    }
}

/// The summed loss of a pass, and what it was read from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SummedLoss {
    /// The loss, summed over all targets.
    pub value: f64,
    /// What it was read from.
    pub source: LossSource,
}

impl ForwardBackwardOutput {
    /// Returns the summed loss that the server reports: `loss:sum`, else `total_loss:sum`.
    ///
    /// Not every server reports one; [`loss_with_weights`](Self::loss_with_weights) then computes it.
    pub fn loss(&self) -> Option<f64> {
        self.reported_sum().map(|loss| loss.value)
    }

    /// Returns the summed loss of a cross-entropy pass over datums with these weights, and what it was read
    /// from: `loss:sum`, `total_loss:sum`, `loss:mean` times the weight, or the log-probabilities that came
    /// back, whichever is there first.
    ///
    /// `None` if nothing of that is there, or the log-probabilities are not as many as the weights.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use tinkrs_types::training::{BatchedTensor, ForwardBackwardOutput, LossSource, OutputRecord};
    ///
    /// let logprobs = BatchedTensor::from_datums([&[-1.0][..], &[-2.0, -3.0]]);
    /// let record = OutputRecord::new(2, BTreeMap::from([("logprobs".to_owned(), logprobs)]))?;
    /// let output = ForwardBackwardOutput::new("", vec![record], BTreeMap::new());
    /// let loss = output.loss_with_weights(&[&[1.0][..], &[0.0, 1.0]]).unwrap();
    /// assert_eq!((loss.value, loss.source), (4.0, LossSource::Logprobs));
    /// # Ok::<(), tinkrs_types::InvalidInput>(())
    /// ```
    pub fn loss_with_weights(&self, weights: &[impl AsRef<[f32]>]) -> Option<SummedLoss> {
        let from_mean = || {
            let all = weights.iter().flat_map(AsRef::as_ref);
            let weight: f64 = all.map(|weight| f64::from(*weight)).sum();
            let mean = self.metrics.get(LOSS_MEAN)?;
            Some(SummedLoss {
                value: mean * weight,
                source: LossSource::LossMean,
            })
        };
        let from_logprobs = || {
            Some(SummedLoss {
                value: self.weighted_nll(weights)?,
                source: LossSource::Logprobs,
            })
        };
        self.reported_sum()
            .or_else(from_mean)
            .or_else(from_logprobs)
    }

    fn reported_sum(&self) -> Option<SummedLoss> {
        let sums = [
            (LOSS_SUM, LossSource::LossSum),
            (TOTAL_LOSS_SUM, LossSource::TotalLossSum),
        ];
        sums.into_iter().find_map(|(name, source)| {
            let value = *self.metrics.get(name)?;
            Some(SummedLoss { value, source })
        })
    }

    /// Computes `−Σ w · logprob`. Targets without weight do not count, whatever their log-probability.
    fn weighted_nll(&self, weights: &[impl AsRef<[f32]>]) -> Option<f64> {
        if self.datums() != weights.len() {
            return None;
        }
        let mut sum = 0.0;
        for (index, weights) in weights.iter().enumerate() {
            let (weights, logprobs) = (weights.as_ref(), self.logprobs(index)?);
            if weights.len() != logprobs.len() {
                return None;
            }
            let counted = weights.iter().zip(logprobs).filter(|(w, _)| **w != 0.0);
            sum -= counted
                .map(|(w, logprob)| f64::from(*w) * f64::from(*logprob))
                .sum::<f64>();
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::{BatchedTensor, OutputRecord};
    use std::collections::BTreeMap;

    fn output(logprobs: &[&[f32]], metrics: &[(&str, f64)]) -> ForwardBackwardOutput {
        let field = BatchedTensor::from_datums(logprobs.iter().copied());
        let fields = BTreeMap::from([("logprobs".to_owned(), field)]);
        let record = OutputRecord::new(logprobs.len(), fields).unwrap();
        let metrics = metrics.iter().map(|(name, v)| ((*name).to_owned(), *v));
        ForwardBackwardOutput::new("", vec![record], metrics.collect())
    }

    #[test]
    fn a_loss_is_read_from_what_is_there_and_says_from_what() {
        let logprobs: [&[f32]; 2] = [&[-1.0, f32::NEG_INFINITY], &[-2.0]];
        let weights: [&[f32]; 2] = [&[0.5, 0.0], &[3.0]];
        let all = [
            ("loss:mean", 2.0),
            ("loss:sum", 9.0),
            ("total_loss:sum", 8.0),
        ];
        let cases = [
            (&all[..], 9.0, LossSource::LossSum),
            (&[all[0], all[2]], 8.0, LossSource::TotalLossSum),
            (&[all[0]], 7.0, LossSource::LossMean),
            (&[("pg_loss:sum", 1.0)], 6.5, LossSource::Logprobs),
        ];
        for (metrics, value, source) in cases {
            let output = output(&logprobs, metrics);
            let loss = output.loss_with_weights(&weights).unwrap();
            assert_eq!((loss.value, loss.source), (value, source), "{metrics:?}");
            let reported = matches!(source, LossSource::LossSum | LossSource::TotalLossSum);
            assert_eq!(output.loss(), reported.then_some(value), "{metrics:?}");
        }
    }

    #[test]
    fn log_probabilities_that_do_not_fit_the_weights_are_no_loss() {
        let output = output(&[&[-1.0, -2.0], &[-3.0]], &[]);
        let fits = |weights: &[&[f32]]| output.loss_with_weights(weights).is_some();
        assert!(fits(&[&[1.0, 1.0], &[1.0]]));
        assert!(!fits(&[&[1.0], &[1.0]]));
        assert!(!fits(&[&[1.0, 1.0]]));
        assert!(!fits(&[&[1.0, 1.0], &[1.0], &[]]));
        let empty = ForwardBackwardOutput::default();
        assert_eq!(empty.loss_with_weights(&[&[1.0_f32][..]]), None);
    }
}
