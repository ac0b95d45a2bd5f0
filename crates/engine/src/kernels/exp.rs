//! The exponential function, in a form the compiler vectorises.
//!
//! `exp(x) = 2ⁿ · e^r` with `n = round(x / ln 2)` and `r = x − n ln 2` in two parts, where `e^r` is its
//! Taylor polynomial of degree 7 on `|r| ≤ ln 2 / 2` (relative error below 1e-7).

/// Returns `exp(x)` for `x` clamped to `[-87.33, 88.37]`, where the result is a normal number.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding it moves the integer part of a number into the low bits of the mantissa.
    const SHIFT: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.33, 88.37);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut sum = 1.0 / 5040.0;
    for coefficient in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = r.mul_add(sum, coefficient);
    }
    sum * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

/// Returns `tanh(x)`: a polynomial near zero, where the exponential would cancel.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let square = x * x;
    let mut near: f32 = 62.0 / 2835.0;
    for coefficient in [-17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0] {
        near = square.mul_add(near, coefficient);
    }
    let far = 1.0 - 2.0 / (1.0 + exp(2.0 * x));
    if square < 0.0625 { x * near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_double_precision_to_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for i in 0..200_000 {
            let x = -87.0
                + f32::from(u16::try_from(i % 65_536).unwrap()) * 175.0 / 65_536.0
                + i as f32 * 1e-6;
            let exact = f64::from(x).exp();
            worst = worst.max(((f64::from(exp(x)) - exact) / exact).abs());
        }
        assert!(worst < 2.4e-7, "largest relative error {worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e30) < 2e-38);
    }

    #[test]
    fn tanh_agrees_with_double_precision_near_zero_and_far_from_it() {
        for i in -20_000..20_000 {
            let x = i as f32 * 1e-3 + 1e-5;
            let exact = f64::from(x).tanh();
            let error = ((f64::from(tanh(x)) - exact) / exact).abs();
            assert!(error < 6e-7, "tanh({x}) is off by {error:e}");
        }
    }
}
