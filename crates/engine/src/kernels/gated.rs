//! The gated activations of feed-forward parts, on a row that holds gates `g` and then values `u`.
//!
//! ```text
//! SwiGLU:   σ = 1 / (1 + exp(−g))      a = g σ u
//!           du = da g σ                dg = da u σ (1 + g (1 − σ))
//! GeGLU:    t = tanh(√(2/π) (g + 0.044715 g³))      a = g (1 + t) / 2 · u
//!           du = da g (1 + t) / 2      dg = da u ((1 + t) / 2 + g (1 − t²) / 2 · √(2/π) (1 + 3 · 0.044715 g²))
//! clamped:  g' = min(g, 7)   u' = clamp(u, ±7)   σ = 1 / (1 + exp(−1.702 g'))      a = g' σ (u' + 1)
//!           du = da g' σ               dg = da (u' + 1) σ (1 + 1.702 g' (1 − σ)),  both zero where clamped
//! ```

use super::exp::{exp, tanh};
use super::isa::vectorised;
use crate::config::Activation;

/// Writes the activation of one row.
pub(crate) fn forward(activation: Activation, gate_up: &[f32], a: &mut [f32]) {
    match activation {
        Activation::SwiGlu => swiglu(gate_up, a),
        Activation::GeGlu => geglu(gate_up, a),
        Activation::ClampedSwiGlu => clamped(gate_up, a),
    }
}

/// Replaces gates and values by their gradients.
pub(crate) fn backward(activation: Activation, gate_up: &mut [f32], da: &[f32]) {
    match activation {
        Activation::SwiGlu => swiglu_backward(gate_up, da),
        Activation::GeGlu => geglu_backward(gate_up, da),
        Activation::ClampedSwiGlu => clamped_backward(gate_up, da),
    }
}

vectorised! {
    fn swiglu(gate_up: &[f32], a: &mut [f32]) {
        let (gate, up) = gate_up.split_at(a.len());
        for ((a, &g), &u) in a.iter_mut().zip(gate).zip(up) {
            *a = g / (1.0 + exp(-g)) * u;
        }
    }
}

vectorised! {
    fn swiglu_backward(gate_up: &mut [f32], da: &[f32]) {
        let (gate, up) = gate_up.split_at_mut(da.len());
        for ((g, u), &da) in gate.iter_mut().zip(up).zip(da) {
            let sigma = 1.0 / (1.0 + exp(-*g));
            let dg = da * *u * sigma * (*g).mul_add(1.0 - sigma, 1.0);
            *u = da * *g * sigma;
            *g = dg;
        }
    }
}

/// `√(2/π)`
const ROOT: f32 = 0.797_884_6;
const CUBE: f32 = 0.044_715;

vectorised! {
    fn geglu(gate_up: &[f32], a: &mut [f32]) {
        let (gate, up) = gate_up.split_at(a.len());
        for ((a, &g), &u) in a.iter_mut().zip(gate).zip(up) {
            let t = tanh(ROOT * (CUBE * g * g).mul_add(g, g));
            *a = 0.5 * g * (1.0 + t) * u;
        }
    }
}

vectorised! {
    fn geglu_backward(gate_up: &mut [f32], da: &[f32]) {
        let (gate, up) = gate_up.split_at_mut(da.len());
        for ((g, u), &da) in gate.iter_mut().zip(up).zip(da) {
            let t = tanh(ROOT * (CUBE * *g * *g).mul_add(*g, *g));
            let half = 0.5 * (1.0 + t);
            let inner = ROOT * (3.0 * CUBE * *g).mul_add(*g, 1.0);
            let slope = (0.5 * *g * t.mul_add(-t, 1.0)).mul_add(inner, half);
            let dg = da * *u * slope;
            *u = da * *g * half;
            *g = dg;
        }
    }
}

const LIMIT: f32 = 7.0;
const SHARPNESS: f32 = 1.702;

vectorised! {
    fn clamped(gate_up: &[f32], a: &mut [f32]) {
        let (gate, up) = gate_up.split_at(a.len());
        for ((a, &g), &u) in a.iter_mut().zip(gate).zip(up) {
            let (g, u) = (g.min(LIMIT), u.clamp(-LIMIT, LIMIT));
            *a = g / (1.0 + exp(-SHARPNESS * g)) * (u + 1.0);
        }
    }
}

vectorised! {
    fn clamped_backward(gate_up: &mut [f32], da: &[f32]) {
        let (gate, up) = gate_up.split_at_mut(da.len());
        for ((gate, up), &da) in gate.iter_mut().zip(up).zip(da) {
            let (g, u) = (gate.min(LIMIT), up.clamp(-LIMIT, LIMIT));
            let sigma = 1.0 / (1.0 + exp(-SHARPNESS * g));
            let dg = da * (u + 1.0) * sigma * (SHARPNESS * g).mul_add(1.0 - sigma, 1.0);
            *up = if up.abs() <= LIMIT { da * g * sigma } else { 0.0 };
            *gate = if *gate <= LIMIT { dg } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check;

    fn value(activation: Activation, g: f64, u: f64) -> f64 {
        match activation {
            Activation::SwiGlu => g / (1.0 + (-g).exp()) * u,
            Activation::GeGlu => {
                let root = (2.0 / std::f64::consts::PI).sqrt();
                0.5 * g * (1.0 + (root * (g + 0.044715 * g.powi(3))).tanh()) * u
            }
            Activation::ClampedSwiGlu => {
                let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
                g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
            }
        }
    }

    #[test]
    fn both_directions_match_double_precision() {
        for activation in [
            Activation::SwiGlu,
            Activation::GeGlu,
            Activation::ClampedSwiGlu,
        ] {
            for seed in 1..6 {
                let n = 19;
                let input: Vec<f32> = check::values(2 * n, seed).iter().map(|x| x * 9.0).collect();
                let da = check::values(n, seed + 50);
                let sum = |x: &[f64]| {
                    (0..n)
                        .map(|i| value(activation, x[i], x[n + i]) * f64::from(da[i]))
                        .sum::<f64>()
                };
                let mut a = vec![0.0; n];
                forward(activation, &input, &mut a);
                for (i, &a) in a.iter().enumerate() {
                    let exact = value(activation, input[i].into(), input[n + i].into());
                    let error = (f64::from(a) - exact).abs();
                    assert!(error < 1e-5, "{activation:?}: {a} instead of {exact}");
                }
                let mut gradient = input.clone();
                backward(activation, &mut gradient, &da);
                check::gradient(&gradient, &check::widen(&input), sum, "d(gate, up)");
            }
        }
    }
}
