//! Rotary position embedding: which numbers of a head turn, and how fast.

use std::f64::consts::TAU;

use crate::Error;

/// How rotary frequencies are stretched for contexts longer than the first training.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Frequencies are used as they are.
    None,
    /// All frequencies are divided by one factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1's rule: long wavelengths are divided by `factor`, short ones kept, and those in
    /// between blended.
    Llama3 {
        /// Divisor of the frequencies whose wavelength exceeds `original_context / low_freq_factor`.
        factor: f64,
        /// Bound of the long wavelengths.
        low_freq_factor: f64,
        /// Frequencies whose wavelength is below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the first training.
        original_context: usize,
    },
    /// YaRN: pairs that turn often within the first context are kept, slow ones divided by `factor`, and
    /// those in between blended; rotated numbers are multiplied by `attention_factor`.
    Yarn {
        /// Divisor of the slow pairs.
        factor: f64,
        /// Pairs that turn more often than this in the first context are kept.
        beta_fast: f64,
        /// Pairs that turn less often than this are divided.
        beta_slow: f64,
        /// Context length of the first training.
        original_context: usize,
        /// Factor of rotated queries and of rotated keys.
        attention_factor: f64,
        /// Whether the bounds between the pairs are rounded to whole pairs.
        truncate: bool,
    },
    /// Phi's rule within the first context: a divisor for each pair.
    Divided {
        /// The divisors, one for each pair.
        divisors: Vec<f64>,
        /// Factor of rotated queries and of rotated keys.
        attention_factor: f64,
    },
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies: `theta^(-2i / d)` for `d` numbers that turn.
    pub theta: f64,
    /// Adjustment of the frequencies.
    pub scaling: RopeScaling,
    /// How many numbers of a head turn, the first ones; `None` for all.
    pub dimensions: Option<usize>,
}

impl Rope {
    /// Returns a rotation of whole heads with plain frequencies.
    #[must_use]
    pub fn plain(theta: f64) -> Self {
        Self {
            theta,
            scaling: RopeScaling::None,
            dimensions: None,
        }
    }

    /// Returns the angle per position of each of the `d / 2` rotating pairs.
    ///
    /// ```text
    /// f_i = theta^(-2i / d)
    /// Llama3, with wavelength w = 2π / f_i and original context c:
    ///   w < c / high            f_i
    ///   w > c / low             f_i / factor
    ///   otherwise               (1 - s) f_i / factor + s f_i,  s = (c / w - low) / (high - low)
    /// Yarn, with the pair p(b) = d ln(c / 2π b) / (2 ln theta) that turns b times in the context c:
    ///   (1 - s) f_i + s f_i / factor,  s = (i - p(fast)) / (p(slow) - p(fast)) within 0..=1
    /// ```
    #[must_use]
    pub fn frequencies(&self, head_dim: usize) -> Vec<f64> {
        let d = self.dimensions.unwrap_or(head_dim);
        let plain = (0..d / 2).map(|pair| self.theta.powf(-2.0 * pair as f64 / d as f64));
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            RopeScaling::Divided { divisors, .. } => plain
                .zip(divisors)
                .map(|(frequency, divisor)| frequency / divisor)
                .collect(),
            &RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_context,
                truncate,
                ..
            } => {
                let turning = |times: f64| {
                    let context = original_context as f64;
                    d as f64 * (context / (times * TAU)).ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (turning(beta_fast), turning(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(d as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                plain
                    .enumerate()
                    .map(|(pair, frequency)| {
                        let divided = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        frequency / factor * divided + frequency * (1.0 - divided)
                    })
                    .collect()
            }
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let context = original_context as f64;
                plain
                    .map(|frequency| {
                        let wavelength = TAU / frequency;
                        if wavelength < context / high_freq_factor {
                            frequency
                        } else if wavelength > context / low_freq_factor {
                            frequency / factor
                        } else {
                            let kept = (context / wavelength - low_freq_factor)
                                / (high_freq_factor - low_freq_factor);
                            (1.0 - kept) * frequency / factor + kept * frequency
                        }
                    })
                    .collect()
            }
        }
    }

    /// Returns what rotated queries and rotated keys are multiplied by.
    #[must_use]
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn {
                attention_factor, ..
            }
            | RopeScaling::Divided {
                attention_factor, ..
            } => attention_factor,
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
        }
    }

    pub(super) fn validate(&self, head_dim: usize) -> Result<(), Error> {
        if !(self.theta.is_finite() && self.theta > 1.0) {
            return Err(Error::invalid(
                "rope_theta",
                format!("{} is not above 1", self.theta),
            ));
        }
        let turning = self.dimensions.unwrap_or(head_dim);
        if turning == 0 || turning > head_dim || !turning.is_multiple_of(2) {
            return Err(Error::invalid(
                "partial_rotary_factor",
                format!("{turning} numbers of a head of {head_dim} would turn, and it takes pairs"),
            ));
        }
        let above = |least: f64, number: f64| number.is_finite() && number >= least;
        let usable = match &self.scaling {
            RopeScaling::None => true,
            RopeScaling::Linear { factor } => above(1e-3, *factor),
            RopeScaling::Divided {
                divisors,
                attention_factor,
            } => {
                let mut all = divisors.iter().chain([attention_factor]);
                divisors.len() == turning / 2 && all.all(|&number| above(1e-3, number))
            }
            &RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_context,
                attention_factor,
                truncate: _,
            } => {
                above(1.0, factor)
                    && above(1e-3, beta_slow)
                    && above(beta_slow, beta_fast)
                    && above(1e-3, attention_factor)
                    && original_context > 0
            }
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                above(1.0, factor)
                    && low_freq_factor > 0.0
                    && high_freq_factor.is_finite()
                    && high_freq_factor > low_freq_factor
                    && original_context > 0
            }
        };
        if usable {
            Ok(())
        } else {
            Err(Error::invalid(
                "rope_scaling",
                format!("{:?} is not usable", self.scaling),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(scaling: RopeScaling) -> Rope {
        Rope {
            scaling,
            ..Rope::plain(500_000.0)
        }
    }

    #[test]
    fn llama3_scaling_keeps_short_wavelengths_and_divides_long_ones() {
        let plain = Rope::plain(500_000.0).frequencies(128);
        let scaled = scaled(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        })
        .frequencies(128);
        assert_eq!(plain[0], scaled[0]);
        assert_eq!(plain[63] / 8.0, scaled[63]);
        assert!(
            scaled.is_sorted_by(|a, b| a > b),
            "frequencies must fall: {scaled:?}"
        );
    }

    #[test]
    fn yarn_keeps_pairs_that_turn_often_and_divides_slow_ones() {
        let plain = Rope::plain(500_000.0).frequencies(128);
        let scaled = scaled(RopeScaling::Yarn {
            factor: 32.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 4096,
            attention_factor: 1.0,
            truncate: false,
        })
        .frequencies(128);
        assert_eq!(plain[0], scaled[0]);
        assert_eq!(plain[63] / 32.0, scaled[63]);
        assert!(scaled.is_sorted_by(|a, b| a > b), "{scaled:?}");
    }

    #[test]
    fn unusable_scaling_is_refused() {
        let divided = |divisors: Vec<f64>| {
            scaled(RopeScaling::Divided {
                divisors,
                attention_factor: 1.0,
            })
        };
        assert!(divided(vec![1.0; 4]).validate(8).is_ok());
        for rope in [
            divided(vec![1.0; 3]),
            divided(vec![f64::NAN; 4]),
            scaled(RopeScaling::Linear { factor: 0.0 }),
            Rope {
                dimensions: Some(10),
                ..Rope::plain(1e4)
            },
            Rope {
                dimensions: Some(3),
                ..Rope::plain(1e4)
            },
        ] {
            assert!(rope.validate(8).is_err(), "{rope:?}");
        }
    }
}
