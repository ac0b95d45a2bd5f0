//! Pieces of a soft-max over a row of scores `x`, with a scale `s`.
//!
//! ```text
//! m = max_j x_j      e_j = exp(s (x_j − m))      lse = s m + ln Σ_j e_j      p_j = e_j / Σ e
//! ```
//!
//! Sums go through 16 lanes by index and then through the lanes, so they depend on the row alone.

use super::exp::{exp, tanh};
use super::isa::vectorised;

const LANES: usize = 16;

vectorised! {
    /// Returns the largest element, or negative infinity for none; not-a-number elements are passed over.
    pub(crate) fn max(row: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (chunks, rest) = row.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = if x > *lane { x } else { *lane };
            }
        }
        rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |m, &x| m.max(x))
    }
}

vectorised! {
    /// Replaces `x_j` by `exp(scale · (x_j − shift))` and returns their sum.
    pub(crate) fn exp_in_place(row: &mut [f32], scale: f32, shift: f32) -> f32 {
        let mut lanes = [0.0f32; LANES];
        let (chunks, rest) = row.as_chunks_mut::<LANES>();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *x = exp(scale * (*x - shift));
                *lane += *x;
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *x = exp(scale * (*x - shift));
            *lane += *x;
        }
        lanes.iter().sum()
    }
}

vectorised! {
    /// Returns `Σ_j exp(x_j − shift)` without changing the row.
    pub(crate) fn exp_sum(row: &[f32], shift: f32) -> f32 {
        let mut lanes = [0.0f32; LANES];
        let (chunks, rest) = row.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane += exp(x - shift);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane += exp(x - shift);
        }
        lanes.iter().sum()
    }
}

/// Returns `ln Σ_j exp(x_j)`.
pub(crate) fn log_sum_exp(row: &[f32]) -> f32 {
    let shift = max(row);
    // The sum is at least one, so its logarithm loses nothing; f64 rounds it once.
    (f64::from(shift) + f64::from(exp_sum(row, shift)).ln()) as f32
}

vectorised! {
    /// Replaces `x_j` by `exp(scale · x_j − lse)`: the probabilities once more, from the kept log-sum-exp.
    pub(crate) fn probabilities(row: &mut [f32], scale: f32, lse: f32) {
        for x in row {
            *x = exp(scale.mul_add(*x, -lse));
        }
    }
}

vectorised! {
    /// Replaces `x_j` by `cap · tanh(scale · x_j / cap)`.
    pub(crate) fn cap(row: &mut [f32], scale: f32, cap: f32) {
        let inner = scale / cap;
        for x in row {
            *x = cap * tanh(inner * *x);
        }
    }
}

vectorised! {
    /// Turns bounded scores into probabilities, and gradients of those into gradients of the scores before
    /// the bound: `p_j = exp(x_j − lse)`, `ds_j = p_j (dp_j − mean) · scale · (1 − (x_j / cap)²)`.
    pub(crate) fn capped_backward(
        row: &mut [f32], dp: &mut [f32], mean: f32, scale: f32, cap: f32, lse: f32
    ) {
        for (x, dp) in row.iter_mut().zip(dp) {
            let t = *x / cap;
            let p = exp(*x - lse);
            *dp = p * (*dp - mean) * scale * t.mul_add(-t, 1.0);
            *x = p;
        }
    }
}

vectorised! {
    /// Replaces bounded scores `x_j` by `factor · exp(x_j − lse) · (1 − (x_j / cap)²)`.
    pub(crate) fn capped_score_gradient(row: &mut [f32], lse: f32, factor: f32, cap: f32) {
        for x in row {
            let t = *x / cap;
            *x = factor * exp(*x - lse) * t.mul_add(-t, 1.0);
        }
    }
}

vectorised! {
    /// Replaces `x_j` by `factor · exp(x_j − lse)`.
    pub(crate) fn score_gradient(row: &mut [f32], lse: f32, factor: f32) {
        for x in row {
            *x = factor * exp(*x - lse);
        }
    }
}

vectorised! {
    /// Turns probabilities into gradients of scores: `ds_j = p_j (dp_j − mean) · scale`, in place of `dp`.
    pub(crate) fn backward(p: &[f32], dp: &mut [f32], mean: f32, scale: f32) {
        for (dp, &p) in dp.iter_mut().zip(p) {
            *dp = p * (*dp - mean) * scale;
        }
    }
}

vectorised! {
    /// Returns `Σ_j a_j b_j`.
    pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
                *lane = a.mul_add(b, *lane);
            }
        }
        for ((lane, &a), &b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
            *lane = a.mul_add(b, *lane);
        }
        lanes.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_sum_exp_survives_large_scores_and_matches_double_precision() {
        let row: Vec<f32> = (0..1000)
            .map(|i| 500.0 + ((i * 37) % 101) as f32 * 0.1)
            .collect();
        let exact = row
            .iter()
            .map(|&x| f64::from(x - 500.0).exp())
            .sum::<f64>()
            .ln()
            + 500.0;
        assert!((f64::from(log_sum_exp(&row)) - exact).abs() < 1e-4);
    }

    #[test]
    fn probabilities_from_the_log_sum_exp_sum_to_one() {
        let row: Vec<f32> = (0..77)
            .map(|i| ((i * 29) % 31) as f32 * 0.2 - 3.0)
            .collect();
        let scale = 0.125;
        let mut e = row.clone();
        let shift = max(&row);
        let lse = scale * shift + exp_in_place(&mut e, scale, shift).ln();
        let mut p = row;
        probabilities(&mut p, scale, lse);
        assert!((p.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    }
}
