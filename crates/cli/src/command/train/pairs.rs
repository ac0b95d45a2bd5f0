//! Files of preferences, for the recipes that learn from them.

use tinkrs_recipes::Error;
use tinkrs_recipes::data::{DataSet, Source, Stored};
use tinkrs_recipes::run::{Adapter, Passes};

use super::options::{LengthArgs, RunArgs, announce};
use crate::human::counted;
use crate::local::PassSize;
use crate::output::note;

/// Reads pairs to train on and, from a file of its own, to evaluate with, and says how many there are.
pub(super) fn read<T: Stored>(
    args: &RunArgs,
    eval_file: Option<&[Source]>,
    length: &LengthArgs,
    passes: &Passes,
    read: impl Fn(&[Source]) -> Result<DataSet<T>, Error>,
) -> anyhow::Result<DataSet<T>> {
    let read = |sources: &[Source]| {
        let pairs = read(sources).map_err(super::in_our_words)?;
        super::not_empty(pairs.train.len(), pairs.skipped, sources)?;
        anyhow::Ok(pairs)
    };
    let sources = args.data()?;
    announce(&sources)?;
    let mut pairs = read(&sources)?;
    if let Some(file) = eval_file {
        pairs = pairs.evaluated_with(&read(file)?)?;
    }
    let steps = passes.steps(pairs.train.len())?;
    note(format_args!(
        "{} to learn from, {} to evaluate, {} longer than {} tokens: {}",
        counted(pairs.train.len() as u64, "pair"),
        pairs.eval.len(),
        pairs.skipped,
        length.max_tokens,
        counted(steps as u64, "step")
    ));
    Ok(pairs)
}

/// Returns how large a pass is: both answers of each pair.
pub(super) fn pass_size<T: Stored>(
    adapter: &Adapter,
    passes: &Passes,
    pairs: &DataSet<T>,
) -> PassSize {
    let sequences = passes.batch_size.saturating_mul(2);
    super::pass_size(adapter, sequences, pairs.longest())
}
