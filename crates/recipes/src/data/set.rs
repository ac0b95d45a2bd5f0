//! What a run learns from, and apart from it what it is evaluated with.

use super::jsonl::parse_row;
use super::mix::Mix;
use super::shuffle::{Batches, permutation};
use super::source::{Source, shares};
use super::store::{Store, Stored};
use crate::Error;
use crate::run::{self, Adapter, Plan};
use serde::de::DeserializeOwned;

/// Keeps the draw for evaluation apart from the shuffles of training.
const EVAL_SALT: u64 = 0x65_76_61_6c;

/// Examples, or pairs of them, to train on and, apart from them, to evaluate with.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSet<T: Stored> {
    /// To train on.
    pub train: Store<T>,
    /// Never trained on.
    pub eval: Vec<T>,
    /// How many records were left out for their length.
    pub skipped: usize,
    /// In which proportion those of several files are trained on, if some of them have weights.
    pub mix: Option<Mix>,
}

impl<T: Stored> DataSet<T> {
    /// Reads several files or folders row by row: what is in memory does not grow with them, but for some bytes of each
    /// row. What `render` makes nothing of is left out.
    pub(crate) fn gather<R: DeserializeOwned>(
        sources: &[Source],
        mut render: impl FnMut(R) -> Result<Option<T>, Error>,
    ) -> Result<Self, Error> {
        let shares = shares(sources)?;
        let mut all = Self::default();
        let mut counts = Vec::with_capacity(sources.len());
        for source in sources {
            let before = all.train.len();
            for row in source.rows()? {
                let (place, text) = row?;
                let rendered = render(parse_row(&text, &place)?);
                all.add(rendered.map_err(|error| error.at(&place))?)?;
            }
            counts.push(all.train.len() - before);
        }
        all.mix = shares.map(|shares| Mix::new(counts, shares));
        Ok(all)
    }

    /// Adds what was rendered, or counts what was left out.
    pub(super) fn add(&mut self, rendered: Option<T>) -> Result<(), Error> {
        self.skipped += usize::from(rendered.is_none());
        rendered.map_or(Ok(()), |item| self.train.push(item))
    }

    /// Sets `count` of them aside for evaluation. Which ones depends on the seed alone.
    ///
    /// # Errors
    /// If they cannot be read again from where they were put.
    pub fn split_eval(mut self, count: usize, seed: u64) -> Result<Self, Error> {
        let mut chosen = permutation(self.train.len(), seed ^ EVAL_SALT);
        chosen.truncate(count);
        chosen.sort_unstable();
        self.eval.extend(self.train.take(&chosen)?);
        if let Some(mix) = &mut self.mix {
            mix.take(&chosen);
        }
        Ok(self)
    }

    /// Evaluates with all of another file.
    ///
    /// # Errors
    /// If that cannot be read again from where it was put.
    pub fn evaluated_with(mut self, other: &Self) -> Result<Self, Error> {
        let all = other.train.iter().map(|item| Ok(item?.into_owned()));
        self.eval = all.collect::<Result<_, Error>>()?;
        self.skipped += other.skipped;
        Ok(self)
    }

    /// Returns how many tokens the longest sequence has.
    pub fn longest(&self) -> usize {
        let eval = self.eval.iter().map(T::longest).max();
        self.train.longest().max(eval.unwrap_or(0))
    }

    /// Returns the batches of a run.
    pub(crate) fn batches(&self, batch_size: usize, seed: u64) -> Result<Batches, Error> {
        Batches::new(self.train.len(), batch_size, seed)?.mixed(self.mix.clone())
    }

    /// Returns what decides the course of a run.
    pub(crate) fn plan(
        &self,
        batch_size: usize,
        seed: u64,
        adapter: &Adapter,
    ) -> Result<Plan, Error> {
        let mut hash = self.train.hash()?;
        if let Some(mix) = &self.mix {
            hash = run::hash_more(hash, mix.words());
        }
        Ok(Plan::new(self.train.len(), batch_size, seed)
            .of_hash(hash)
            .evaluated_with(self.eval.iter().flat_map(T::identity))
            .starting_from(adapter.from.clone()))
    }
}

impl<T: Stored> Default for DataSet<T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

/// All to train on.
impl<T: Stored> From<Vec<T>> for DataSet<T> {
    fn from(train: Vec<T>) -> Self {
        Self {
            train: train.into(),
            eval: Vec::new(),
            skipped: 0,
            mix: None,
        }
    }
}
