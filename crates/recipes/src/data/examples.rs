//! Records to examples: rendering, length limits and the part kept for evaluation.

use super::mix::Mix;
use super::record::Record;
use super::set::DataSet;
use super::source::Source;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tinkrs_chat::{Example, Renderer, TrainOn};

/// What to do with an example that is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum TooLong {
    /// Stop and say which one it is.
    #[default]
    Refuse,
    /// Drop the tokens beyond the limit, and the example if nothing that counts is left.
    Truncate,
    /// Leave it out.
    Skip,
}

impl TooLong {
    /// Returns what is left of an example under a limit.
    ///
    /// # Errors
    /// If it is too long and that is refused.
    pub(crate) fn apply(
        self,
        example: Example,
        max_tokens: usize,
    ) -> Result<Option<Example>, Error> {
        let length = example.tokens.len();
        match self {
            _ if length <= max_tokens => Ok(Some(example)),
            Self::Refuse => Err(Error::Conversation {
                problem: format!("has {length} tokens, at most {max_tokens} are allowed"),
            }),
            Self::Truncate => Ok(example.truncated(max_tokens)),
            Self::Skip => Ok(None),
        }
    }
}

/// Examples to train on and, apart from them, to evaluate with.
pub type Examples = DataSet<Example>;

impl Examples {
    /// Reads and renders the records of a file.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is no record, cannot be rendered, or is too long and
    /// that is refused; the error names the line.
    pub fn read(
        path: impl AsRef<Path>,
        renderer: &Renderer,
        train_on: TrainOn,
        max_tokens: usize,
        too_long: TooLong,
    ) -> Result<Self, Error> {
        let source = Source::new(path.as_ref());
        Self::read_all(&[source], renderer, train_on, max_tokens, too_long)
    }

    /// Reads and renders the records of several files or folders, row by row: what is in memory does not grow with
    /// them, but for some bytes of each example.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if the weights leave nothing for a file, or one with a weight has no examples.
    pub fn read_all(
        sources: &[Source],
        renderer: &Renderer,
        train_on: TrainOn,
        max_tokens: usize,
        too_long: TooLong,
    ) -> Result<Self, Error> {
        Self::gather(sources, |record: Record| {
            let example = record.example(renderer, train_on)?;
            too_long.apply(example, max_tokens)
        })
    }

    /// Renders records.
    ///
    /// # Errors
    /// If one cannot be rendered, or is too long and that is refused; the error counts records
    /// from 1.
    pub fn new(
        records: &[Record],
        renderer: &Renderer,
        train_on: TrainOn,
        max_tokens: usize,
        too_long: TooLong,
    ) -> Result<Self, Error> {
        let mut examples = Self::default();
        for (index, record) in records.iter().enumerate() {
            let example = record.example(renderer, train_on);
            let kept = example.and_then(|example| too_long.apply(example, max_tokens));
            let kept = kept.map_err(|error| Error::Conversation {
                problem: format!(
                    "of record {} cannot be used: {}",
                    index + 1,
                    error.with_cause()
                ),
            })?;
            examples.add(kept)?;
        }
        Ok(examples)
    }

    /// Joins training examples into sequences of at most `max_tokens`.
    ///
    /// Fewer, fuller sequences cost less where a server computes in padded batches; the local engine
    /// packs by itself and gains nothing. The joined examples see each other, like paragraphs of a
    /// document, which hardly matters for short independent ones and does for chats. The first token
    /// of each example has no weight: nothing before it predicts it.
    ///
    /// # Errors
    /// If examples cannot be read again from where they were put.
    pub fn packed(mut self, max_tokens: usize) -> Result<Self, Error> {
        let whole = vec![self.train.len()];
        let parts = self.mix.as_ref().map_or(&whole, Mix::counts);
        let (mut packed, mut counts, mut next) = (self.train.like(), Vec::new(), 0);
        for part in parts {
            let (before, end) = (packed.len(), next + part);
            while next < end {
                let window = next..end.min(next + PACKED_AT_ONCE);
                next = window.end;
                let examples = window.map(|index| Ok(self.train.get(index)?.into_owned()));
                let examples = examples.collect::<Result<_, Error>>()?;
                for sequence in super::packing::pack(examples, max_tokens) {
                    packed.push(sequence)?;
                }
            }
            counts.push(packed.len() - before);
        }
        if let Some(mix) = &mut self.mix {
            mix.set_counts(counts);
        }
        self.train = packed;
        Ok(self)
    }
}

/// How many examples are in memory together to be packed.
const PACKED_AT_ONCE: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::ExampleStore;
    use crate::testing;

    fn records() -> Vec<Record> {
        let pair = |n: usize| Record::Pair {
            prompt: "a".to_owned(),
            completion: "b ".repeat(n),
        };
        (1..=10).map(pair).collect()
    }

    #[test]
    fn long_examples_are_refused_cut_or_left_out() {
        let renderer = testing::renderer();
        let make = |limit, too_long| {
            Examples::new(&records(), &renderer, TrainOn::default(), limit, too_long)
        };
        let error = make(8, TooLong::Refuse).unwrap_err().to_string();
        assert!(
            error.contains("record 6 cannot be used") && error.contains("at most 8"),
            "{error}"
        );
        let cut = make(8, TooLong::Truncate).unwrap();
        assert_eq!(cut.train.len(), 10);
        assert!((0..10).all(|index| cut.train.tokens(index) <= 8));
        let skipped = make(8, TooLong::Skip).unwrap();
        assert_eq!(skipped.train.len() + skipped.skipped, 10);
        assert!(skipped.skipped > 0);
    }

    #[test]
    fn what_is_wrong_with_a_line_names_the_line() {
        let renderer = testing::renderer();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.jsonl");
        let good = r#"{"prompt": "a", "completion": "b"}"#;
        let cases = [
            (r#"{"prompt": "a"}"#, "no `completion`"),
            (
                r#"{"messages": [{"role": "user", "content": "a"}]}"#,
                "nothing to train on",
            ),
            (
                r#"{"prompt": "a", "completion": "b b b b b b b b b"}"#,
                "at most 9",
            ),
        ];
        for (line, problem) in cases {
            std::fs::write(&path, format!("{good}\n\n{line}\n")).unwrap();
            let read = Examples::read(&path, &renderer, TrainOn::default(), 9, TooLong::Refuse);
            let error = read.unwrap_err().to_string();
            assert!(
                error.contains("chats.jsonl, line 3: ") && error.contains(problem),
                "{error}"
            );
        }
    }

    #[test]
    fn the_eval_split_takes_each_example_once_and_depends_on_the_seed() {
        let renderer = testing::renderer();
        let all = Examples::new(
            &records(),
            &renderer,
            TrainOn::default(),
            99,
            TooLong::Refuse,
        )
        .unwrap();
        let draw = |seed| all.clone().split_eval(3, seed).unwrap();
        let split = draw(7);
        assert_eq!((split.train.len(), split.eval.len()), (7, 3));
        let train = split
            .train
            .iter()
            .map(|example| example.unwrap().into_owned());
        let mut joined: Vec<_> = train.chain(split.eval.clone()).collect();
        joined.sort_by_key(|example| example.tokens.len());
        assert_eq!(ExampleStore::from(joined), all.train);
        assert_eq!(split, draw(7));
        assert!((0..20).any(|seed| draw(seed) != split));
    }
}
