//! The gated activation of the MLP, on a row that holds gates `g` and then values `u`.
//!
//! ```text
//! σ = 1 / (1 + exp(−g))      a = g σ u
//! du = da g σ                dg = da u σ (1 + g (1 − σ))
//! ```

use super::exp::exp;
use super::isa::vectorised;

vectorised! {
    /// Writes the activation of one row.
    pub(crate) fn forward(gate_up: &[f32], a: &mut [f32]) {
        let (gate, up) = gate_up.split_at(a.len());
        for ((a, &g), &u) in a.iter_mut().zip(gate).zip(up) {
            *a = g / (1.0 + exp(-g)) * u;
        }
    }
}

vectorised! {
    /// Replaces gates and values by their gradients.
    pub(crate) fn backward(gate_up: &mut [f32], da: &[f32]) {
        let (gate, up) = gate_up.split_at_mut(da.len());
        for ((g, u), &da) in gate.iter_mut().zip(up).zip(da) {
            let sigma = 1.0 / (1.0 + exp(-*g));
            let dg = da * *u * sigma * (*g).mul_add(1.0 - sigma, 1.0);
            *u = da * *g * sigma;
            *g = dg;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check;

    #[test]
    fn backward_matches_finite_differences() {
        for seed in 1..6 {
            let n = 19;
            let input: Vec<f32> = check::values(2 * n, seed).iter().map(|x| x * 6.0).collect();
            let da = check::values(n, seed + 50);
            let value = |x: &[f64]| {
                (0..n)
                    .map(|i| x[i] / (1.0 + (-x[i]).exp()) * x[n + i] * f64::from(da[i]))
                    .sum::<f64>()
            };
            let mut gradient = input.clone();
            backward(&mut gradient, &da);
            check::gradient(&gradient, &check::widen(&input), value, "d(gate, up)");
        }
    }
}
