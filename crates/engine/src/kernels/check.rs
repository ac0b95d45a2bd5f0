//! What the tests of the kernels share: numbers, and gradients by central differences in `f64`.

use crate::rng::SplitMix64;

/// Pseudo-random numbers in `[-1, 1)`.
pub(crate) fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = SplitMix64::new(seed);
    (0..len).map(|_| rng.symmetric()).collect()
}

pub(crate) fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// Compares a gradient with central differences of `value` around `at`.
pub(crate) fn gradient(got: &[f32], at: &[f64], value: impl Fn(&[f64]) -> f64, what: &str) {
    assert_eq!(got.len(), at.len(), "{what}");
    let mut at = at.to_vec();
    let step = 1e-5;
    for i in 0..at.len() {
        let original = at[i];
        at[i] = original + step;
        let above = value(&at);
        at[i] = original - step;
        let below = value(&at);
        at[i] = original;
        let expected = (above - below) / (2.0 * step);
        let got = f64::from(got[i]);
        let tolerance = 2e-5 + 2e-5 * expected.abs();
        assert!(
            (got - expected).abs() < tolerance,
            "{what}[{i}]: {got} instead of {expected}"
        );
    }
}

/// Runs something in a pool of its own.
pub(crate) fn in_pool<R: Send>(threads: usize, run: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
        .install(run)
}
