//! The learning rate of a run where none was given.

use tinkrs_recipes::{Schedule, lora_learning_rate};

use super::Training;
use crate::output::note;

/// What a run learns from, as far as its learning rate depends on that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LearnsFrom {
    /// Examples or rewards, for which a rate is recommended by model. The hosted service's cookbook fitted it to
    /// examples, and has reinforcement begin with the same.
    Samples,
    /// Preferences with a reference, which want much less than examples.
    Preferences,
}

impl Training<'_> {
    /// Returns the learning rate that was given, else the one that is recommended for the model, and says which one
    /// it is and why.
    pub(super) fn learning_rate(&self, settings: Schedule, from: LearnsFrom) -> Schedule {
        if self.rate_is_given {
            return settings;
        }
        let hidden = self.backend.hidden_size();
        let recommended = hidden.and_then(|hidden| lora_learning_rate(&self.backend.model, hidden));
        let (peak, why) = choose(settings.peak, recommended, from);
        note(format_args!("learning rate {peak:.3e}, {why}"));
        Schedule { peak, ..settings }
    }
}

fn choose(default: f64, recommended: Option<f64>, from: LearnsFrom) -> (f64, &'static str) {
    match (from, recommended) {
        (LearnsFrom::Samples, Some(rate)) => (rate, "recommended for this model"),
        (LearnsFrom::Samples, None) => (default, "the default; none is recommended for this model"),
        (LearnsFrom::Preferences, _) => (
            default,
            "the default; preferences want less than what is recommended for examples",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recommended_rate_is_for_samples_alone() {
        let (samples, preferences) = (LearnsFrom::Samples, LearnsFrom::Preferences);
        let cases = [
            (samples, Some(4e-4), 4e-4, "recommended"),
            (samples, None, 1e-4, "none is recommended"),
            (preferences, Some(4e-4), 1e-4, "preferences want less"),
            (preferences, None, 1e-4, "preferences want less"),
        ];
        for (from, recommended, rate, reason) in cases {
            let (chosen, why) = choose(1e-4, recommended, from);
            assert_eq!(chosen, rate, "{from:?}, {recommended:?}");
            assert!(why.contains(reason), "{from:?}, {recommended:?}: {why}");
        }
    }
}
