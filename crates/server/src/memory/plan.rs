//! How the budget is divided.

use super::{MemoryKind, Size};

/// Set aside for the program itself: code, stacks, the database's cache, records of what is in use.
const PROGRAM: u64 = 48 << 20;
/// The most that key-value caches of running samples and of shared prompt beginnings are given.
const SAMPLING: u64 = 2560 << 20;
/// One of so many parts of that is for grammars.
const GRAMMARS_OF_SAMPLING: u64 = 8;
/// The most that results in memory are given; all of them are in files too.
const RESULTS: u64 = 64 << 20;
/// The most that requests are given while they are read and decoded.
const UPLOADS: u64 = 1 << 30;
/// The most that requests are given while they wait for their turn; all of them are in the journal, too.
const WAITING: u64 = 256 << 20;

/// The most that uploaded losses are given.
const LOSSES: u64 = 64 << 20;

/// How the budget is divided. What no field names is for runs and passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The whole budget.
    pub(crate) limit: u64,
    /// The weights of all base models.
    pub(crate) weights: u64,
    /// The program itself.
    pub(crate) program: u64,
    /// Key-value caches of all base models together, the same for each.
    pub(crate) sampling: u64,
    /// Grammars that samples keep to, and the places of samples in them.
    pub(crate) grammars: u64,
    /// Adapters that samples are drawn with, of all base models together, the same for each.
    pub(crate) adapters: u64,
    /// How many base models there are.
    pub(crate) models: u64,
    /// Results that are in memory as well as in their files.
    pub(crate) results: u64,
    /// Requests while they are read and decoded.
    pub(crate) uploads: u64,
    /// Requests while they wait for their turn.
    pub(crate) waiting: u64,
    /// Losses that clients have uploaded.
    pub(crate) losses: u64,
}

/// A budget that is too small to start with.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the weights of the base models need {}, with {} for the program itself, and the memory budget is {}: \
     set a larger one with `--memory`, or serve smaller or fewer models",
    Size(*weights), Size(PROGRAM), Size(*limit)
)]
pub(crate) struct WeightsDoNotFit {
    weights: u64,
    limit: u64,
}

impl Plan {
    /// Divides a budget among the weights, which are in memory from the start, and all else.
    pub(crate) fn new(limit: u64, weights: u64, models: usize) -> Result<Self, WeightsDoNotFit> {
        let fixed = weights.saturating_add(PROGRAM);
        let Some(rest) = limit.checked_sub(fixed) else {
            return Err(WeightsDoNotFit { weights, limit });
        };
        let (sampling, results) = (SAMPLING.min(rest / 8), RESULTS.min(rest / 16));
        let (uploads, waiting) = (UPLOADS.min(rest / 8), WAITING.min(rest / 32));
        let losses = LOSSES.min(rest / 64);
        let training = rest - sampling - results - uploads - waiting - losses;
        let grammars = sampling / GRAMMARS_OF_SAMPLING;
        Ok(Self {
            limit,
            weights,
            program: PROGRAM,
            sampling: sampling - grammars,
            grammars,
            // To load an adapter takes four ninths of what a run and its copies take, so what can be trained
            // can be sampled from.
            adapters: training / 13 * 4,
            models: models as u64,
            results,
            uploads,
            waiting,
            losses,
        })
    }

    /// Returns the part for the key-value caches of one base model.
    pub(crate) fn caches_of_a_model(&self) -> u64 {
        self.sampling / self.models.max(1)
    }

    /// Returns the part for the adapters that samples of one base model are drawn with.
    pub(crate) fn adapters_of_a_model(&self) -> u64 {
        self.adapters / self.models.max(1)
    }

    /// Returns the parts that are taken from the start to the end, by name.
    pub(super) fn fixed(&self) -> [(&'static str, u64); 7] {
        [
            ("weights", self.weights),
            ("program", self.program),
            ("sampling", self.sampling),
            ("adapters", self.adapters),
            ("results", self.results),
            ("waiting", self.waiting),
            ("losses", self.losses),
        ]
    }

    /// Returns the part that a kind of memory comes from.
    pub(crate) fn part_of(&self, kind: MemoryKind) -> u64 {
        match kind {
            MemoryKind::Uploads => self.uploads,
            MemoryKind::Grammars => self.grammars,
            MemoryKind::Runs | MemoryKind::Passes => {
                let fixed: u64 = self.fixed().iter().map(|(_, bytes)| bytes).sum();
                self.limit
                    .saturating_sub(fixed + self.uploads + self.grammars)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole() {
        for limit in [PROGRAM, 100 << 20, 2 << 30, 64 << 30] {
            for weights in [0, 30 << 20] {
                let Ok(plan) = Plan::new(limit, weights, 2) else {
                    assert!(limit < weights + PROGRAM);
                    continue;
                };
                let fixed: u64 = plan.fixed().iter().map(|(_, bytes)| bytes).sum();
                let training = plan.part_of(MemoryKind::Runs);
                assert_eq!(fixed + plan.uploads + plan.grammars + training, limit);
                assert!(training >= (limit - weights - PROGRAM) / 100 * 44);
            }
        }
    }

    #[test]
    fn weights_that_do_not_fit_are_refused_with_the_numbers() {
        let error = Plan::new(2 << 30, 5 << 30, 1).unwrap_err().to_string();
        for part in ["5.00 GiB", "2.00 GiB", "`--memory`"] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}
