//! What goes wrong in a run without an error: nothing to learn from, or a loss that is no number.

use tinkrs_recipes::run::Numbers;

/// For how many steps in a row all groups have to agree before it is worth a word.
const STEPS_WITHOUT_SIGNAL: usize = 3;

/// Looks at the numbers of each step.
#[derive(Debug, Default)]
pub(crate) struct TrainingWatch {
    /// Whether the run learns from rewards. With a teacher, groups may agree.
    by_reward: bool,
    /// For how many steps in a row all groups have agreed.
    without_signal: usize,
    told_signal: bool,
    told_loss: bool,
}

impl TrainingWatch {
    pub(crate) fn new(by_reward: bool) -> Self {
        Self {
            by_reward,
            ..Self::default()
        }
    }

    /// Returns what the user should know after a step, once for each thing. `step` is counted from 1.
    pub(crate) fn step(&mut self, step: usize, numbers: &Numbers) -> Option<String> {
        let loss = numbers.get("loss");
        if loss.is_some_and(|loss| !loss.is_finite()) && !self.told_loss {
            self.told_loss = true;
            return Some(format!(
                "warning: the loss of step {step} is not a number, and the weights are of no use from here on. \
                 Stop with Ctrl-C, and start anew in another `--run-dir` with a lower `--learning-rate`, with \
                 `--warmup-steps 20` or with `--grad-clip-norm 1`; `--from` takes a checkpoint from before"
            ));
        }
        let number = |name: &str| numbers.get(name).copied();
        let (silent, groups) = (number("groups_without_signal")?, number("groups")?);
        if silent < groups || !self.by_reward {
            self.without_signal = 0;
            return None;
        }
        self.without_signal += 1;
        if self.without_signal < STEPS_WITHOUT_SIGNAL || self.told_signal {
            return None;
        }
        self.told_signal = true;
        let reward = number("reward").unwrap_or(0.0);
        Some(format!(
            "warning: for {STEPS_WITHOUT_SIGNAL} steps all answers to a question earned the same (mean reward {reward}), so there \
             is nothing to learn from. If none is good, try easier questions, a reward with steps in between, or \
             start from a model that knows the form (`--from`); if all are good, harder questions. More answers to \
             each question (`--group-size`) help in both cases"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(pairs: &[(&str, f64)]) -> Numbers {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    }

    #[test]
    fn groups_that_agree_for_a_while_are_worth_one_word() {
        let mut watch = TrainingWatch::new(true);
        let agreed = numbers(&[
            ("groups", 2.0),
            ("groups_without_signal", 2.0),
            ("reward", 0.0),
        ]);
        let lively = numbers(&[
            ("groups", 2.0),
            ("groups_without_signal", 1.0),
            ("reward", 0.5),
        ]);
        let said: Vec<bool> = [
            &agreed, &agreed, &lively, &agreed, &agreed, &agreed, &agreed,
        ]
        .into_iter()
        .enumerate()
        .map(|(step, numbers)| watch.step(step + 1, numbers).is_some())
        .collect();
        assert_eq!(said, [false, false, false, false, false, true, false]);
        let mut watch = TrainingWatch::new(false);
        assert!((1..9).all(|step| watch.step(step, &agreed).is_none()));
    }

    #[test]
    fn a_loss_that_is_no_number_is_told_once_with_what_to_try() {
        let mut watch = TrainingWatch::default();
        assert_eq!(watch.step(1, &numbers(&[("loss", 1.0)])), None);
        for (loss, told) in [(f64::NAN, true), (f64::INFINITY, false)] {
            let text = watch.step(2, &numbers(&[("loss", loss)]));
            assert_eq!(
                text.is_some_and(|text| text.contains("--learning-rate")),
                told
            );
        }
    }
}
