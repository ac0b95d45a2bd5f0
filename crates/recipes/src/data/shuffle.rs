//! Which examples each step trains on.
//!
//! The batch of a step is a pure function of the settings and the step's number. A run that
//! resumes therefore needs to remember one number, and cannot repeat or skip a batch.

use super::mix::Mix;
use crate::Error;
use std::sync::{Arc, Mutex, PoisonError};

/// The batches of a run: every epoch is a new shuffle of all examples, or of as many in the proportions of a
/// [`Mix`].
#[derive(Clone, Debug)]
pub struct Batches {
    examples: usize,
    batch_size: usize,
    seed: u64,
    mix: Option<Mix>,
    /// The order of the epoch that was asked for last: a large one takes a while to make.
    order: Arc<Mutex<Option<Epoch>>>,
}

/// The number of an epoch, and the examples of it in order.
type Epoch = (usize, Arc<[usize]>);

impl PartialEq for Batches {
    fn eq(&self, other: &Self) -> bool {
        let settings = |batches: &Self| (batches.examples, batches.batch_size, batches.seed);
        settings(self) == settings(other) && self.mix == other.mix
    }
}

impl Batches {
    /// Describes the batches of `examples` examples.
    ///
    /// # Errors
    /// If there are no examples, or batches of nothing.
    pub fn new(examples: usize, batch_size: usize, seed: u64) -> Result<Self, Error> {
        if examples == 0 {
            return Err(Error::setting("data", "there is no example to train on"));
        }
        if batch_size == 0 {
            return Err(Error::setting("batch_size", "0, expected 1 or more"));
        }
        Ok(Self {
            examples,
            batch_size,
            seed,
            mix: None,
            order: Arc::default(),
        })
    }

    /// Takes the examples in these proportions, if there are any.
    ///
    /// # Errors
    /// If the mix is of another number of examples, or a part of it would never have its turn.
    pub fn mixed(mut self, mix: Option<Mix>) -> Result<Self, Error> {
        if let Some(mix) = &mix {
            mix.check(self.examples)?;
        }
        self.mix = mix;
        self.order = Arc::default();
        Ok(self)
    }

    /// Returns how many steps one pass over the data takes. The last may have a smaller batch.
    pub fn steps_per_epoch(&self) -> usize {
        self.examples.div_ceil(self.batch_size)
    }

    /// Returns how many steps so many passes take, if there is no limit to them or a higher one.
    pub fn steps(&self, epochs: usize, max_steps: Option<usize>) -> usize {
        let steps = self.steps_per_epoch().saturating_mul(epochs);
        max_steps.map_or(steps, |most| steps.min(most))
    }

    /// Returns the order of an epoch, counted from 0.
    pub fn epoch(&self, epoch: usize) -> Vec<usize> {
        self.order(epoch).to_vec()
    }

    fn order(&self, epoch: usize) -> Arc<[usize]> {
        let mut kept = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, order)) = kept.as_ref().filter(|(kept, _)| *kept == epoch) {
            return Arc::clone(order);
        }
        let seed = self.seed.wrapping_add(epoch as u64);
        let order: Arc<[usize]> = match &self.mix {
            None => permutation(self.examples, seed).into(),
            Some(mix) => mix.epoch(epoch, self.seed).into(),
        };
        *kept = Some((epoch, Arc::clone(&order)));
        order
    }

    /// Returns the examples of a step, by index.
    pub fn batch(&self, step: usize) -> Vec<usize> {
        let (epoch, place) = (step / self.steps_per_epoch(), step % self.steps_per_epoch());
        let start = place * self.batch_size;
        let end = self.examples.min(start + self.batch_size);
        self.order(epoch)[start..end].to_vec()
    }
}

/// Returns the numbers below `count` in an order that depends on the seed alone.
pub(crate) fn permutation(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_every_example_once_in_an_order_of_its_own() {
        let batches = Batches::new(10, 4, 3).unwrap();
        assert_eq!(batches.steps_per_epoch(), 3);
        assert_eq!(batches.steps(2, None), 6);
        assert_eq!(
            (batches.steps(2, Some(5)), batches.steps(2, Some(7))),
            (5, 6)
        );
        let epoch = |number: usize| -> Vec<usize> {
            (number * 3..number * 3 + 3)
                .flat_map(|step| batches.batch(step))
                .collect()
        };
        let (first, second) = (epoch(0), epoch(1));
        assert_ne!(first, second);
        for mut order in [first, second] {
            order.sort_unstable();
            assert_eq!(order, Vec::from_iter(0..10));
        }
        assert_eq!(batches.batch(2).len(), 2, "the last batch has what is left");
    }

    #[test]
    fn the_order_does_not_change_between_versions() {
        // A run that resumes after an update must go on in the same order.
        let order = permutation(8, 42);
        assert_eq!(order, permutation(8, 42));
        assert_eq!(order, [4, 2, 1, 6, 0, 3, 5, 7]);
    }

    #[test]
    fn batches_of_nothing_are_refused() {
        assert!(Batches::new(0, 1, 0).is_err());
        assert!(Batches::new(1, 0, 0).is_err());
    }
}
