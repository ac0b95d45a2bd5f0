//! Learning rates, and how they change over a run.

use crate::Error;
use serde::{Deserialize, Serialize};

/// How the learning rate changes after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Decay {
    /// It stays at its peak.
    Constant,
    /// It falls in a straight line.
    #[default]
    Linear,
    /// It falls along half a cosine: slowly, fast, slowly.
    Cosine,
}

/// A learning rate over the steps of a run.
///
/// ```
/// use tinkrs_recipes::{Decay, Schedule};
///
/// let schedule = Schedule { warmup_steps: 2, decay: Decay::Linear, ..Schedule::new(1.0) };
/// let rates: Vec<f64> = (0..6).map(|step| schedule.rate(step, 6)).collect();
/// assert_eq!(rates, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Schedule {
    /// Peak learning rate.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "learning_rate.peak",
            long = "learning-rate",
            value_name = "RATE",
            help_heading = "Optimizer"
        )
    )]
    pub peak: f64,
    /// Steps over which the learning rate rises to its peak.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "learning_rate.warmup_steps",
            long = "warmup-steps",
            value_name = "N",
            help_heading = "Optimizer"
        )
    )]
    pub warmup_steps: usize,
    /// How the learning rate changes after warm-up.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "learning_rate.decay",
            long = "decay",
            value_name = "NAME",
            value_enum,
            help_heading = "Optimizer"
        )
    )]
    pub decay: Decay,
    /// Fraction of the peak that the learning rate decays to, from 0 to 1.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "learning_rate.floor",
            long = "decay-floor",
            value_name = "FRACTION",
            help_heading = "Optimizer"
        )
    )]
    pub floor: f64,
}

impl Schedule {
    /// Makes a linear decay from this rate to zero.
    pub fn new(peak: f64) -> Self {
        Self {
            peak,
            ..Self::default()
        }
    }

    /// Returns the rate of a step, counted from 0, in a run of `steps`.
    ///
    /// The last step is one short of the floor, so that no step is wasted on a rate of zero.
    pub fn rate(&self, step: usize, steps: usize) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let length = steps.saturating_sub(self.warmup_steps).max(1);
        let done = ((step - self.warmup_steps) as f64 / length as f64).min(1.0);
        let left = match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear => 1.0 - done,
            Decay::Cosine => (1.0 + (std::f64::consts::PI * done).cos()) / 2.0,
        };
        self.peak * (self.floor + (1.0 - self.floor) * left)
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If the peak is not a positive number or the floor not a part of it.
    pub fn check(&self) -> Result<(), Error> {
        if !(self.peak > 0.0 && self.peak.is_finite()) {
            let problem = format!("{}, expected a positive number", self.peak);
            return Err(Error::setting("learning_rate.peak", problem));
        }
        if !(0.0..=1.0).contains(&self.floor) {
            let problem = format!("{}, expected a number from 0 to 1", self.floor);
            return Err(Error::setting("learning_rate.floor", problem));
        }
        Ok(())
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            peak: 1e-4,
            warmup_steps: 0,
            decay: Decay::default(),
            floor: 0.0,
        }
    }
}

/// Returns a good peak rate for training a LoRA adapter on examples, where one is known.
///
/// ```text
/// rate = 5e-4 · (2000 / hidden)^p        p = 0.781 for Llama, 0.0775 for Qwen
/// ```
///
/// The hosted service's cookbook fitted this to its own sweeps: ten times the rate of full fine-tuning whatever the
/// rank, and less for wide models. For other families nothing was fitted. It is where a sweep starts, not
/// where it ends.
pub fn lora_learning_rate(model: &str, hidden: usize) -> Option<f64> {
    let name = model.to_ascii_lowercase();
    let exponent = if name.contains("llama") {
        0.781
    } else if name.contains("qwen") {
        0.0775
    } else {
        return None;
    };
    (hidden > 0).then(|| 5e-4 * (2000.0 / hidden as f64).powf(exponent))
}

/// Returns the width of a model that the hosted service offers, where the learning rate depends on it.
pub fn known_hidden_size(model: &str) -> Option<usize> {
    const SIZES: [(&str, usize); 11] = [
        ("Llama-3.2-1B", 2048),
        ("Llama-3.2-3B", 3072),
        ("Llama-3.1-8B", 4096),
        ("-70B", 8192),
        ("235B-A22B", 4096),
        ("397B-A17B", 4096),
        ("30B-A3B", 2048),
        ("35B-A3B", 2048),
        ("-32B", 5120),
        ("-27B", 5120),
        ("-4B", 2560),
    ];
    let is_hosted = model.starts_with("meta-llama/Llama-3") || model.starts_with("Qwen/Qwen3");
    let eight = model.contains("-8B") || model.contains("-9B");
    if !is_hosted {
        return None;
    }
    if eight {
        return Some(4096);
    }
    let size = SIZES.iter().find(|(part, _)| model.contains(part));
    size.map(|(_, size)| *size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_models_of_a_family_get_lower_rates() {
        let rate = |model: &str| {
            let hidden = known_hidden_size(model).unwrap();
            lora_learning_rate(model, hidden).unwrap()
        };
        // What `get_lr` of tinker-cookbook 0.5.8 returns.
        for (model, expected) in [
            ("Qwen/Qwen3-8B", 4.729_790_8e-4),
            ("Qwen/Qwen3.5-35B-A3B-Base", 4.990_818_3e-4),
            ("meta-llama/Llama-3.1-8B-Instruct", 2.856_415_0e-4),
            ("meta-llama/Llama-3.3-70B-Instruct", 1.662_328_6e-4),
        ] {
            let found = rate(model);
            assert!((found / expected - 1.0).abs() < 1e-7, "{model}: {found}");
        }
        assert_eq!(lora_learning_rate("openai/gpt-oss-20b", 2880), None);
        assert_eq!(known_hidden_size("other/model-8B"), None);
        assert_eq!(known_hidden_size("Qwen/Qwen3-0.6B"), None);
    }

    #[test]
    fn every_decay_starts_at_the_peak_and_ends_above_the_floor() {
        for decay in [Decay::Constant, Decay::Linear, Decay::Cosine] {
            let schedule = Schedule {
                warmup_steps: 3,
                decay,
                floor: 0.1,
                ..Schedule::new(2.0)
            };
            let rates: Vec<f64> = (0..13).map(|step| schedule.rate(step, 13)).collect();
            assert_eq!(rates[3], 2.0, "{decay:?}");
            assert!(
                rates[..3].is_sorted() && rates[0] > 0.0,
                "{decay:?} warms up"
            );
            assert!(rates[3..].iter().rev().is_sorted(), "{decay:?} falls");
            assert!(rates[12] >= 0.2, "{decay:?}");
            assert_eq!(
                schedule.rate(99, 13),
                if decay == Decay::Constant { 2.0 } else { 0.2 }
            );
        }
        let cosine = Schedule {
            decay: Decay::Cosine,
            ..Schedule::new(1.0)
        };
        assert!((cosine.rate(5, 10) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn warming_up_for_longer_than_the_run_is_no_fault() {
        let schedule = Schedule {
            warmup_steps: 10,
            ..Schedule::new(1.0)
        };
        assert_eq!(schedule.rate(4, 5), 0.5);
    }
}
