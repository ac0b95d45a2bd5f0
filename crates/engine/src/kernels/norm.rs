//! Root-mean-square normalisation of a row `x` of `n` elements with weights `w`.
//!
//! ```text
//! v = 1 / √(mean(x²) + ε)          y_i = x_i v w_i
//! dx_i = v w_i dy_i − x_i v³ / n · Σ_j dy_j w_j x_j          dw_i = Σ_rows dy_i x_i v
//! ```

use super::isa::vectorised;
use super::softmax::dot;

/// Returns `v`, from which both directions are computed; the backward pass recomputes it.
pub(crate) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// Writes the normalised row.
pub(crate) fn forward(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    scale(x, w, inverse_rms(x, eps), y);
}

vectorised! {
    fn scale(x: &[f32], w: &[f32], v: f32, y: &mut [f32]) {
        for ((y, &x), &w) in y.iter_mut().zip(x).zip(w) {
            *y = x * v * w;
        }
    }
}

/// Normalises in place, for the heads of queries and keys.
pub(crate) fn forward_in_place(x: &mut [f32], w: &[f32], eps: f32) {
    let v = inverse_rms(x, eps);
    for (x, &w) in x.iter_mut().zip(w) {
        *x = *x * v * w;
    }
}

vectorised! {
    /// Adds the gradient of the input to `dx`.
    pub(crate) fn backward(x: &[f32], w: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) {
        let v = inverse_rms(x, eps);
        let mut lanes = [0.0f32; 8];
        let ((xs, x_rest), (ws, w_rest), (dys, dy_rest)) =
            (x.as_chunks::<8>(), w.as_chunks::<8>(), dy.as_chunks::<8>());
        for ((x, w), dy) in xs.iter().zip(ws).zip(dys) {
            for (i, lane) in lanes.iter_mut().enumerate() {
                *lane = (dy[i] * w[i]).mul_add(x[i], *lane);
            }
        }
        for i in 0..x_rest.len() {
            lanes[i] = (dy_rest[i] * w_rest[i]).mul_add(x_rest[i], lanes[i]);
        }
        let shared = lanes.iter().sum::<f32>() * v * v * v / x.len() as f32;
        for (((dx, &x), &w), &dy) in dx.iter_mut().zip(x).zip(w).zip(dy) {
            *dx += (v * w).mul_add(dy, -x * shared);
        }
    }
}

vectorised! {
    /// Adds one row's share to the gradient of the weights.
    pub(crate) fn backward_weight(x: &[f32], eps: f32, dy: &[f32], dw: &mut [f32]) {
        let v = inverse_rms(x, eps);
        for ((dw, &x), &dy) in dw.iter_mut().zip(x).zip(dy) {
            *dw = dy.mul_add(x * v, *dw);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check;

    #[test]
    fn backward_matches_finite_differences_in_double_precision() {
        for seed in 1..6 {
            for n in [8, 21, 64] {
                let (x, w, dy) = (
                    check::values(n, seed),
                    check::values(n, seed + 10),
                    check::values(n, seed + 20),
                );
                let eps = 1e-5;
                let value = |x: &[f64], w: &[f64]| {
                    let v = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / n as f64 + eps).sqrt();
                    (0..n)
                        .map(|i| x[i] * v * w[i] * f64::from(dy[i]))
                        .sum::<f64>()
                };
                let mut dx = vec![0.0; n];
                backward(&x, &w, eps as f32, &dy, &mut dx);
                let mut dw = vec![0.0; n];
                backward_weight(&x, eps as f32, &dy, &mut dw);
                let (x64, w64) = (check::widen(&x), check::widen(&w));
                check::gradient(&dx, &x64, |x| value(x, &w64), "dx");
                check::gradient(&dw, &w64, |w| value(&x64, w), "dw");
            }
        }
    }
}
