//! How far a mean may well be off by chance.

use serde::Serialize;

/// A range that covers the true mean with a probability of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// `wilson` for scores that are 0 or 1, `bootstrap` for others.
    pub method: &'static str,
}

/// The quantile of the normal distribution that leaves 2.5 % above it.
const Z: f64 = 1.959_963_984_540_054;
const RESAMPLES: usize = 10_000;

impl Interval {
    /// Returns the interval of the mean of scores; `None` without scores.
    pub fn of_mean(scores: &[f64]) -> Option<Self> {
        let count = scores.len() as f64;
        if scores.is_empty() {
            return None;
        }
        if !scores.iter().all(|score| *score == 0.0 || *score == 1.0) {
            return Self::bootstrap(scores);
        }
        // Wilson's: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)
        let mean = scores.iter().sum::<f64>() / count;
        let below = 1.0 + Z * Z / count;
        let middle = (mean + Z * Z / (2.0 * count)) / below;
        let spread = mean * (1.0 - mean) / count + Z * Z / (4.0 * count * count);
        let half = Z * spread.sqrt() / below;
        Some(Self {
            low: (middle - half).max(0.0),
            high: (middle + half).min(1.0),
            method: "wilson",
        })
    }

    /// Returns the interval of the mean of numbers, from means of draws from them. The same numbers have the same
    /// interval.
    pub fn bootstrap(numbers: &[f64]) -> Option<Self> {
        if numbers.is_empty() {
            return None;
        }
        let mut random = fastrand::Rng::with_seed(0);
        let count = numbers.len();
        let mut mean = || {
            let draws = (0..count).map(|_| numbers[random.usize(..count)]);
            draws.sum::<f64>() / count as f64
        };
        // Fewer draws for many numbers: their means differ less.
        let resamples = (50_000_000 / count).clamp(200, RESAMPLES);
        let mut means: Vec<f64> = (0..resamples).map(|_| mean()).collect();
        means.sort_by(f64::total_cmp);
        let at = |part: f64| means[((resamples - 1) as f64 * part).round() as usize];
        Some(Self {
            low: at(0.025),
            high: at(0.975),
            method: "bootstrap",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_is_as_published() {
        // 8 of 10: Wilson (1927), as `statsmodels` has it too.
        let scores: Vec<f64> = (0..10).map(|n| f64::from(u8::from(n < 8))).collect();
        let interval = Interval::of_mean(&scores).unwrap();
        assert!((interval.low - 0.490_162).abs() < 1e-5, "{interval:?}");
        assert!((interval.high - 0.943_318).abs() < 1e-5, "{interval:?}");
        let none = Interval::of_mean(&[0.0; 10]).unwrap();
        assert!(
            none.low == 0.0 && (none.high - 0.277_533).abs() < 1e-5,
            "{none:?}"
        );
        assert_eq!(Interval::of_mean(&[]), None);
    }

    #[test]
    fn other_scores_have_a_bootstrap_that_repeats() {
        let scores = [0.1, 0.4, 0.5, 0.9, 0.3, 0.7];
        let interval = Interval::of_mean(&scores).unwrap();
        assert_eq!(Some(interval), Interval::of_mean(&scores));
        assert_eq!(interval.method, "bootstrap");
        let mean = scores.iter().sum::<f64>() / 6.0;
        assert!(interval.low < mean && mean < interval.high);
        let same = Interval::bootstrap(&[0.5; 4]).unwrap();
        assert_eq!((same.low, same.high), (0.5, 0.5));
    }
}
