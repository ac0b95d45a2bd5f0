//! Joining the results of a batch that was sent in several chunks.
//!
//! A metric's name ends in the way it combines: `loss:sum`, `mfu:mean`. Chunks count by their
//! number of datums, so that a mean over chunks is the mean over the batch. Only metrics that
//! every chunk reports are kept, since a partial sum would be a wrong number under a right name.
//!
//! Names that do not end in a reduction (no colon, or several) cannot be combined, but the result
//! of a single chunk needs no combining: it keeps them.

use tinkrs_types::ForwardBackwardOutput;
use tinkrs_types::training::Metrics;

/// Joins the results of chunks, in the order of the chunks, without copying their outputs.
///
/// The reductions of chunk values `v` with weights `w`, the number of datums of each chunk:
///
/// | Suffix | Result |
/// | --- | --- |
/// | `mean` | `Σ w v / Σ w` |
/// | `sum`, `min`, `max` | what they say |
/// | `slack` | `max v − Σ w v / Σ w` |
/// | `hash2` | the sum of whole numbers modulo 2⁶⁴ |
/// | `unique` | the first value; later ones under the name with `_1`, `_2`, … added |
///
/// Metrics with another suffix are dropped. If no chunk has datums, all weigh the same.
pub(crate) fn combine(results: Vec<ForwardBackwardOutput>) -> ForwardBackwardOutput {
    let metrics = combine_metrics(&results);
    let mut results = results.into_iter();
    let Some(mut combined) = results.next() else {
        return ForwardBackwardOutput::default();
    };
    combined.metrics = metrics;
    combined
        .records
        .extend(results.flat_map(|result| result.records));
    combined
}

fn combine_metrics(results: &[ForwardBackwardOutput]) -> Metrics {
    let Some((first, others)) = results.split_first() else {
        return Metrics::new();
    };
    let weights = weights(results);
    let mut combined = Metrics::new();
    for (key, value) in &first.metrics {
        let Some(suffix) = suffix(key) else {
            if others.is_empty() {
                combined.insert(key.clone(), *value);
            }
            continue;
        };
        let values: Option<Vec<f64>> = results
            .iter()
            .map(|result| result.metrics.get(key).copied())
            .collect();
        let Some(values) = values else { continue };
        let reduced = match suffix {
            "mean" => mean(&values, &weights),
            "sum" => values.iter().sum(),
            "min" => extreme(&values, f64::min),
            "max" => extreme(&values, f64::max),
            "slack" => extreme(&values, f64::max) - mean(&values, &weights),
            "hash2" => hash2(&values),
            "unique" => {
                let later = values[1..].iter().zip(1..);
                combined.extend(later.map(|(value, n)| (format!("{key}_{n}"), *value)));
                *value
            }
            _ => continue,
        };
        combined.insert(key.clone(), reduced);
    }
    combined
}

/// Returns what stands behind the colon of a name with exactly one.
fn suffix(key: &str) -> Option<&str> {
    let (_, suffix) = key.split_once(':')?;
    (!suffix.contains(':')).then_some(suffix)
}

fn weights(results: &[ForwardBackwardOutput]) -> Vec<f64> {
    let datums = results.iter().map(ForwardBackwardOutput::datums);
    if datums.clone().all(|count| count == 0) {
        return vec![1.0; results.len()];
    }
    datums.map(|count| count as f64).collect()
}

fn mean(values: &[f64], weights: &[f64]) -> f64 {
    let weighted = values.iter().zip(weights).map(|(v, w)| v * w);
    weighted.sum::<f64>() / weights.iter().sum::<f64>()
}

/// Folds with `min` or `max`, except that not-a-number stays visible in the result.
fn extreme(values: &[f64], pick: fn(f64, f64) -> f64) -> f64 {
    let either_nan = |a: f64, b: f64| a.is_nan() || b.is_nan();
    let pick = |a, b| {
        if either_nan(a, b) {
            f64::NAN
        } else {
            pick(a, b)
        }
    };
    values.iter().copied().reduce(pick).unwrap_or(f64::NAN)
}

fn hash2(values: &[f64]) -> f64 {
    if values.iter().any(|value| !value.is_finite()) {
        return f64::NAN;
    }
    let sum = values
        .iter()
        .fold(0_u64, |sum, value| sum.wrapping_add(modulo_2_64(*value)));
    sum as f64
}

/// Takes the whole part of a number modulo 2⁶⁴, as two's complement does for negative ones.
fn modulo_2_64(value: f64) -> u64 {
    // A double this large has no bits below 2⁶⁴ left; smaller ones fit in 128 bits.
    const NO_LOW_BITS: f64 = (1_u128 << 117) as f64;
    if value.abs() >= NO_LOW_BITS {
        return 0;
    }
    value as i128 as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tinkrs_types::training::{BatchedTensor, OutputRecord};

    /// A result of `datums` datums with one token each.
    fn result(datums: usize, metrics: &[(&str, f64)]) -> ForwardBackwardOutput {
        let values: Vec<f32> = (0..datums).map(|datum| -(datum as f32)).collect();
        let logprobs = BatchedTensor::from_datums(values.chunks(1));
        let fields = BTreeMap::from([("logprobs".to_owned(), logprobs)]);
        let metrics = metrics.iter().map(|(key, v)| ((*key).to_owned(), *v));
        ForwardBackwardOutput::new(
            format!("of {datums}"),
            vec![OutputRecord::new(datums, fields).unwrap()],
            metrics.collect(),
        )
    }

    fn metrics_of(results: Vec<ForwardBackwardOutput>) -> Vec<(String, f64)> {
        combine(results).metrics.into_iter().collect()
    }

    #[test]
    fn each_suffix_reduces_in_its_way() {
        // (suffix, values of chunks with 1 and 3 datums, reduced value)
        let cases = [
            ("mean", [1.0, 5.0], 4.0),
            ("sum", [1.0, 5.0], 6.0),
            ("min", [5.0, 1.0], 1.0),
            ("max", [1.0, 5.0], 5.0),
            ("slack", [1.0, 5.0], 1.0),
            ("slack", [5.0, 1.0], 3.0), // 5 − (1·5 + 3·1) / 4
            ("hash2", [3.0, 4.0], 7.0),
            ("hash2", [3.9, 4.9], 7.0),
            ("hash2", [-1.0, 2.0], 1.0), // 2⁶⁴ − 1 + 2 wraps
            ("hash2", [-1.0, 0.0], u64::MAX as f64),
            ("hash2", [1e300, 5.0], 5.0),
        ];
        for (suffix, values, expected) in cases {
            let key = format!("x:{suffix}");
            let chunks = vec![
                result(1, &[(&key, values[0])]),
                result(3, &[(&key, values[1])]),
            ];
            let expected = vec![(key, expected)];
            assert_eq!(metrics_of(chunks), expected, "{suffix} of {values:?}");
        }
    }

    #[test]
    fn unique_values_are_kept_under_numbered_names() {
        let chunk = |value| result(1, &[("step:unique", value)]);
        let expected = [
            ("step:unique", 7.0),
            ("step:unique_1", 7.0),
            ("step:unique_2", 9.0),
        ];
        assert_eq!(
            metrics_of(vec![chunk(7.0), chunk(7.0), chunk(9.0)]),
            expected.map(|(key, value)| (key.to_owned(), value))
        );
    }

    #[test]
    fn metrics_that_a_chunk_lacks_or_nobody_can_reduce_are_dropped() {
        let first = result(
            1,
            &[
                ("loss:sum", 1.0),
                ("only_first:sum", 1.0),
                ("new:p99", 1.0),
                ("bare", 1.0),
                ("a:b:sum", 1.0),
            ],
        );
        let second = result(
            1,
            &[
                ("loss:sum", 2.0),
                ("only_second:sum", 1.0),
                ("new:p99", 1.0),
                ("bare", 1.0),
                ("a:b:sum", 1.0),
            ],
        );
        assert_eq!(
            metrics_of(vec![first, second]),
            [("loss:sum".to_owned(), 3.0)]
        );
    }

    #[test]
    fn a_single_chunk_keeps_names_without_a_reduction() {
        let only = result(
            2,
            &[
                ("bare", 1.5),
                ("a:b:mean", 2.5),
                ("loss:sum", 3.5),
                ("new:p99", 1.0),
            ],
        );
        assert_eq!(
            metrics_of(vec![only]),
            [
                ("a:b:mean".to_owned(), 2.5),
                ("bare".to_owned(), 1.5),
                ("loss:sum".to_owned(), 3.5)
            ]
        );
    }

    #[test]
    fn chunks_without_datums_weigh_the_same() {
        let chunk = |value| result(0, &[("x:mean", value), ("x:slack", value)]);
        assert_eq!(
            metrics_of(vec![chunk(1.0), chunk(4.0)]),
            [("x:mean".to_owned(), 2.5), ("x:slack".to_owned(), 1.5)]
        );
    }

    #[test]
    fn a_value_that_is_not_a_number_is_not_hidden() {
        for suffix in ["mean", "sum", "min", "max", "slack", "hash2"] {
            let key = format!("x:{suffix}");
            let chunk = |value| result(1, &[(&key, value)]);
            for values in [[f64::NAN, 1.0], [1.0, f64::NAN]] {
                let combined = combine(values.map(chunk).into());
                assert!(combined.metrics[&key].is_nan(), "{suffix} of {values:?}");
            }
        }
    }

    #[test]
    fn outputs_are_appended_without_being_copied() {
        let chunks = vec![result(2, &[]), result(3, &[])];
        let address = |output: &ForwardBackwardOutput, datum| {
            output.logprobs(datum).map(<[f32]>::as_ptr).unwrap()
        };
        let before = [address(&chunks[0], 0), address(&chunks[1], 0)];
        let combined = combine(chunks);
        assert_eq!(combined.output_type, "of 2");
        assert_eq!(combined.datums(), 5);
        assert_eq!([address(&combined, 0), address(&combined, 2)], before);
        assert_eq!(combine(Vec::new()), ForwardBackwardOutput::default());
    }

    /// What a server would report for these datums in one request.
    fn whole(datums: &[f64]) -> ForwardBackwardOutput {
        let sum: f64 = datums.iter().sum();
        let mean = sum / datums.len() as f64;
        let max = datums.iter().copied().fold(f64::MIN, f64::max);
        let min = datums.iter().copied().fold(f64::MAX, f64::min);
        let hash = hash2(datums);
        result(
            datums.len(),
            &[
                ("x:mean", mean),
                ("x:sum", sum),
                ("x:min", min),
                ("x:max", max),
                ("x:hash2", hash),
            ],
        )
    }

    #[test]
    fn combined_chunks_equal_the_whole_however_it_is_cut() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let count = rng.usize(1..40);
            let datums: Vec<f64> = (0..count).map(|_| f64::from(rng.i32(-9..9))).collect();
            let mut chunks = Vec::new();
            let mut rest = &datums[..];
            while !rest.is_empty() {
                let (chunk, behind) = rest.split_at(rng.usize(1..=rest.len()));
                chunks.push(whole(chunk));
                rest = behind;
            }
            let expected = whole(&datums);
            let combined = combine(chunks);
            assert_eq!(combined.datums(), count);
            for (key, value) in &expected.metrics {
                let got = combined.metrics[key];
                // A hash is rounded to a double once for each chunk; all else is exact here.
                let tolerance = if key == "x:hash2" { 1e5 } else { 1e-12 };
                let wrapped = (got - value)
                    .abs()
                    .min(2_f64.powi(64) - (got - value).abs());
                assert!(wrapped <= tolerance, "seed {seed}: {key} {got} for {value}");
            }
        }
    }
}
