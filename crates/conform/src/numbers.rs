//! Numbers that cases send, and how they compare what comes back.

use crate::case::{Stop, mismatch};
use tinkrs_types::Datum;

/// Tokens that any model has: neither the first ones, which may be control tokens, nor large ones.
pub(crate) const TEXT: [u32; 12] = [65, 120, 77, 101, 88, 143, 99, 71, 156, 110, 82, 134];
/// Other tokens.
pub(crate) const OTHER: [u32; 12] = [90, 111, 144, 70, 102, 83, 127, 95, 66, 138, 118, 74];

/// Log-probabilities that differ by less are the same: kernels and batch shapes round differently in half precision.
pub(crate) const SAME: f32 = 0.03;
/// What a change of weights has to move a log-probability by to count.
pub(crate) const CHANGED: f32 = 0.05;

/// The datum that predicts each token of a text from those before it, all with one weight.
pub(crate) fn datum(text: &[u32], weight: f32) -> Datum {
    datum_with(text, &vec![weight; text.len() - 1])
}

pub(crate) fn datum_with(text: &[u32], weights: &[f32]) -> Datum {
    let targets: Vec<i64> = text[1..].iter().map(|token| i64::from(*token)).collect();
    Datum::supervised(text[..text.len() - 1].to_vec(), targets, weights)
        .expect("there is a weight for each target")
}

/// The datum of a reinforcement loss.
pub(crate) fn rewarded(text: &[u32], logprobs: &[f32], advantages: &[f32]) -> Datum {
    let targets: Vec<i64> = text[1..].iter().map(|token| i64::from(*token)).collect();
    Datum::reinforcement(
        text[..text.len() - 1].to_vec(),
        targets,
        logprobs,
        advantages,
    )
    .expect("there are numbers for each target")
}

/// Returns the largest difference between two lists of the same length.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> Result<f32, Stop> {
    if a.len() != b.len() {
        return Err(mismatch(
            format_args!("{} log-probabilities", a.len()),
            b.len(),
        ));
    }
    let largest = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    Ok(largest.fold(0.0, |most, next| {
        if next > most || next.is_nan() {
            next
        } else {
            most
        }
    }))
}

/// Expects two lists to be the same.
pub(crate) fn same(what: &str, a: &[f32], b: &[f32]) -> Result<f32, Stop> {
    let distance = distance(a, b)?;
    // A NaN is not the same as anything.
    if distance <= SAME {
        return Ok(distance);
    }
    let expected = format!("{what} within {SAME}");
    Err(mismatch(
        expected,
        format_args!("a difference of {distance:.4}"),
    ))
}

/// Expects two lists to differ.
pub(crate) fn differ(what: &str, a: &[f32], b: &[f32]) -> Result<f32, Stop> {
    let distance = distance(a, b)?;
    if distance >= CHANGED && distance.is_finite() {
        return Ok(distance);
    }
    let expected = format!("{what} by {CHANGED} or more");
    Err(mismatch(
        expected,
        format_args!("a difference of {distance:.5}"),
    ))
}

/// Expects a number to be close to another, relative to their size.
pub(crate) fn close(what: &str, expected: f64, seen: f64) -> Result<(), Stop> {
    let tolerance = 0.01 * expected.abs().max(1.0);
    if (expected - seen).abs() <= tolerance {
        return Ok(());
    }
    Err(mismatch(
        format_args!("{what} {expected:.5}"),
        format_args!("{seen:.5}"),
    ))
}

/// How far two lists are apart as vectors.
pub(crate) fn length(from: &[f32], to: &[f32]) -> f64 {
    let squares = from.iter().zip(to).map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum::<f64>().sqrt()
}
