//! Examples of several files in fixed proportions.
//!
//! A pass has as many examples as all files together, and each file its share of them. A file goes through its own
//! examples in shuffled order, again and again: a small one with a large share is seen several times in a pass, a
//! large one with a small share goes on in the next pass where it stopped. All of this follows from the number of the
//! pass and the seed, so that a run that resumes needs nothing else.

use super::shuffle::permutation;
use crate::Error;

/// In which proportions examples of several files are trained on.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// How many examples each file has; they stand one file after the other.
    counts: Vec<usize>,
    /// The part of each in a pass. They add up to 1.
    shares: Vec<f64>,
}

/// Keeps the shuffles of the files apart from each other and from the order in which files have their turns.
const FILE_SALT: u64 = 0x9e37_79b9_7f4a_7c15;

impl Mix {
    pub(super) fn new(counts: Vec<usize>, shares: Vec<f64>) -> Self {
        Self { counts, shares }
    }

    pub(super) fn counts(&self) -> &Vec<usize> {
        &self.counts
    }

    pub(super) fn set_counts(&mut self, counts: Vec<usize>) {
        self.counts = counts;
    }

    /// Counts without examples that were taken out, by their index.
    pub(super) fn take(&mut self, sorted: &[usize]) {
        let mut end = 0;
        for count in &mut self.counts {
            let start = end;
            end += *count;
            let taken = sorted.iter().filter(|index| (start..end).contains(index));
            *count -= taken.count();
        }
    }

    /// Returns what tells it from another one.
    pub(crate) fn words(&self) -> impl Iterator<Item = u32> {
        let shares = self.shares.iter().map(|share| share.to_bits());
        let counts = self.counts.iter().map(|count| *count as u64);
        let words = counts.chain(shares);
        words.flat_map(|word| [word as u32, (word >> 32) as u32])
    }

    pub(super) fn check(&self, examples: usize) -> Result<(), Error> {
        let empty = self.counts.iter().position(|count| *count == 0);
        if let Some(file) = empty {
            let problem = format!("file {} has a weight, but no example to train on", file + 1);
            return Err(Error::setting("data", problem));
        }
        let never = self.quotas().iter().position(|quota| *quota == 0);
        if let Some(file) = never {
            let problem = format!(
                "file {} has {} of 1 as its weight, which is not one of {examples} examples",
                file + 1,
                self.shares[file]
            );
            return Err(Error::setting("data", problem));
        }
        Ok(())
    }

    /// Returns how many examples of each file a pass has: the shares, with the largest remainders rounded up.
    fn quotas(&self) -> Vec<usize> {
        let all: usize = self.counts.iter().sum();
        let exact: Vec<f64> = self.shares.iter().map(|share| share * all as f64).collect();
        let mut quotas: Vec<usize> = exact.iter().map(|exact| exact.floor() as usize).collect();
        let mut order: Vec<usize> = (0..exact.len()).collect();
        order.sort_by(|one, other| exact[*other].fract().total_cmp(&exact[*one].fract()));
        let missing = all.saturating_sub(quotas.iter().sum());
        for file in order.into_iter().cycle().take(missing) {
            quotas[file] += 1;
        }
        quotas
    }

    /// Returns the examples of a pass, by index.
    pub(super) fn epoch(&self, epoch: usize, seed: u64) -> Vec<usize> {
        let quotas = self.quotas();
        let mut drawn = Vec::with_capacity(quotas.iter().sum());
        let mut first = 0;
        for (file, (count, quota)) in self.counts.iter().zip(&quotas).enumerate() {
            let salt = seed.wrapping_add(FILE_SALT.wrapping_mul(file as u64 + 1));
            let mut next = epoch * quota;
            let end = next + quota;
            while next < end {
                let (pass, place) = (next / count, next % count);
                let order = permutation(*count, salt.wrapping_add(pass as u64));
                let taken = (end - next).min(count - place);
                drawn.extend(
                    order[place..place + taken]
                        .iter()
                        .map(|index| first + index),
                );
                next += taken;
            }
            first += count;
        }
        let order = permutation(drawn.len(), seed.wrapping_add(epoch as u64));
        order.into_iter().map(|index| drawn[index]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Batches;

    fn mix() -> Mix {
        Mix::new(vec![3, 97], vec![0.3, 0.7])
    }

    #[test]
    fn each_file_has_its_share_of_every_pass_and_none_of_its_examples_is_left_out() {
        let (mix, mut seen) = (mix(), [0; 100]);
        for epoch in 0..10 {
            let order = mix.epoch(epoch, 5);
            assert_eq!(order.len(), 100);
            assert_eq!(order.iter().filter(|index| **index < 3).count(), 30);
            order.into_iter().for_each(|index| seen[index] += 1);
        }
        assert_eq!(seen[..3], [100; 3], "a small file is repeated evenly");
        // 700 draws of 97 examples: each has come 7 times, some once more.
        assert!(
            seen[3..].iter().all(|seen| [7, 8].contains(seen)),
            "{seen:?}"
        );
    }

    #[test]
    fn a_batch_follows_from_its_number_alone() {
        let batches = || Batches::new(100, 7, 1).unwrap().mixed(Some(mix())).unwrap();
        let forwards = batches();
        let forwards: Vec<_> = (0..40).map(|step| forwards.batch(step)).collect();
        let resumed = batches();
        for step in (0..40).rev() {
            assert_eq!(resumed.batch(step), forwards[step], "step {step}");
        }
        let other = Mix::new(vec![3, 97], vec![0.31, 0.69]);
        assert_ne!(Vec::from_iter(mix().words()), Vec::from_iter(other.words()));
    }

    #[test]
    fn a_file_that_would_never_have_its_turn_is_refused() {
        let refused = |mix: Mix| {
            let batches = Batches::new(10, 1, 0).unwrap().mixed(Some(mix));
            batches.unwrap_err().to_string()
        };
        let error = refused(Mix::new(vec![0, 10], vec![0.5, 0.5]));
        assert!(
            error.contains("file 1 has a weight, but no example"),
            "{error}"
        );
        let error = refused(Mix::new(vec![5, 5], vec![1.0 - 1e-9, 1e-9]));
        assert!(error.contains("file 2 has 0.000000001 of 1"), "{error}");
    }
}
