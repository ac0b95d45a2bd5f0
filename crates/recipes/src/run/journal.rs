//! What a run has done, written down as it happens.
//!
//! The journal is a file of JSON lines. Each is on the disk before the run continues, so after a
//! crash it says exactly which steps are in which checkpoint. A line that a crash cut short is
//! dropped when the journal is opened again.
//!
//! Weights live on the server and are lost with the process, except for checkpoints. So a run
//! resumes from its last checkpoint, and steps behind that one are done again, with the same
//! batches: in the weights that survive, every batch is there once.

use super::start::{ReferenceModel, Start};
use crate::Error;
use crate::data::{open_to_add, parse_jsonl};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tinkrs::TinkerPath;
use tinkrs::training::LossSource;
use tinkrs_chat::Example;

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Entry {
    /// The run began; `plan` says what decides its batches.
    Started {
        /// Must be the same when the run resumes.
        plan: Plan,
        /// Tells the server which of its runs are attempts of this one. Journals of earlier versions have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume_id: Option<String>,
    },
    /// A step was applied to the weights.
    Step {
        /// Its number, from 0.
        step: usize,
        /// The examples that it trained on, by index.
        examples: Vec<usize>,
    },
    /// The weights were saved.
    Checkpoint {
        /// How many steps they have seen.
        steps: usize,
        /// Where they are.
        path: TinkerPath,
        /// Whether the next one replaces it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        temporary: bool,
    },
    /// A checkpoint was deleted from the server, since newer ones are enough.
    Deleted {
        /// Where it was.
        path: TinkerPath,
    },
    /// A teacher was asked for the examples of the run.
    Asked {
        /// A hash of the questions: its answers are of no use to a run with others.
        data: u64,
    },
    /// The run went on from a checkpoint, or from the start. It also goes back to the best one to end with it.
    Resumed {
        /// How many steps the weights had seen.
        steps: usize,
    },
    /// The server does not report the loss as Tinker does: it was read from something else.
    LossFrom {
        /// From what.
        source: LossSource,
    },
    /// The run ended as planned.
    Finished {
        /// How many steps the weights have seen.
        steps: usize,
        /// The weights to sample from.
        sampler: TinkerPath,
        /// How many steps the run took, if it ended with the best weights and those were not the last ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        best_of: Option<usize>,
    },
}

/// A checkpoint that a run has saved, and that is still there as far as the run knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedCheckpoint {
    /// How many steps its weights have seen.
    pub(crate) steps: usize,
    /// Where it is.
    pub(crate) path: TinkerPath,
    /// Whether the next one replaces it.
    pub(crate) temporary: bool,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish<'j> {
    /// How many steps the weights have seen.
    pub steps: usize,
    /// The weights to sample from.
    pub sampler: &'j TinkerPath,
    /// How many steps the run took, if it ended with the best weights and those were not the last ones.
    pub best_of: Option<usize>,
}

/// What decides the course of a run: its batches, and the weights that it starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How many examples there are.
    pub examples: usize,
    /// How many go into a step.
    pub batch_size: usize,
    /// What they are shuffled with.
    pub seed: u64,
    /// A hash of the examples: a run must not be resumed with other data. 0 if it is not known.
    #[serde(default)]
    pub data: u64,
    /// A hash of what it is evaluated with; 0 if there is nothing. Evaluations with other data could not be
    /// compared.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub eval: u64,
    /// The checkpoint that it starts from, if it is not the base model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Start>,
    /// The weights that it is compared with, if they are neither those of the start nor the base model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<ReferenceModel>,
}

impl Plan {
    /// Describes batches of examples that are known by their number only.
    pub fn new(examples: usize, batch_size: usize, seed: u64) -> Self {
        Self {
            examples,
            batch_size,
            seed,
            data: 0,
            eval: 0,
            from: None,
            reference: None,
        }
    }

    /// Says what the run starts from.
    #[must_use]
    pub fn starting_from(mut self, from: Option<Start>) -> Self {
        self.from = from;
        self
    }

    /// Says how another plan differs from this one, if it does.
    pub(super) fn difference(&self, now: &Self) -> Option<String> {
        let numbers = [
            ("examples", self.examples as u64, now.examples as u64),
            ("batch size", self.batch_size as u64, now.batch_size as u64),
            ("seed", self.seed, now.seed),
        ];
        let changed = numbers.iter().filter(|(_, before, now)| before != now);
        let mut words: Vec<_> = changed
            .map(|(name, before, now)| format!("{name} {before}, now {now}"))
            .collect();
        if words.is_empty() && self.data != now.data && self.data != 0 {
            words.push("other examples, though as many".to_owned());
        }
        if self.eval != now.eval && self.eval != 0 && now.eval != 0 {
            words.push("other evaluation data".to_owned());
        }
        if self.reference != now.reference {
            let [before, now] = [self, now].map(|plan| match &plan.reference {
                Some(reference) => reference.to_string(),
                None => "what it starts from".to_owned(),
            });
            words.push(format!("the reference {before}, now {now}"));
        }
        if self.from != now.from {
            let [before, now] = [self, now].map(|plan| match &plan.from {
                Some(start) => start.to_string(),
                None => "the base model".to_owned(),
            });
            words.push(format!("{before}, now {now}"));
        }
        (!words.is_empty()).then(|| format!("it began with {}", words.join("; ")))
    }

    /// Adds a hash of the examples.
    #[must_use]
    pub fn of_examples<'e>(self, examples: impl IntoIterator<Item = &'e Example>) -> Self {
        self.of_words(words(examples))
    }

    /// Adds a hash of the data.
    #[must_use]
    pub(crate) fn of_hash(mut self, hash: u64) -> Self {
        self.data = hash;
        self
    }

    /// Adds a hash of whatever else the data are made of.
    #[must_use]
    pub(crate) fn of_words(mut self, words: impl IntoIterator<Item = u32>) -> Self {
        self.data = hash(words);
        self
    }

    /// Adds a hash of what the run is evaluated with.
    #[must_use]
    pub(crate) fn evaluated_with(mut self, words: impl IntoIterator<Item = u32>) -> Self {
        let mut words = words.into_iter().peekable();
        self.eval = match words.peek() {
            Some(_) => hash(words),
            None => 0,
        };
        self
    }
}

fn is_zero(hash: &u64) -> bool {
    *hash == 0
}

/// Returns the words of examples, for a [`hash`].
pub(crate) fn words<'e>(
    examples: impl IntoIterator<Item = &'e Example>,
) -> impl Iterator<Item = u32> {
    examples.into_iter().flat_map(|example| {
        let weights = example.weights.iter().map(|weight| weight.to_bits());
        counted(&example.tokens).chain(weights)
    })
}

/// Returns words behind their number, which keeps them apart from others in a [`hash`].
pub(crate) fn counted(words: &[u32]) -> impl Iterator<Item = u32> {
    std::iter::once(words.len() as u32).chain(words.iter().copied())
}

/// Hashes words: FNV-1a, the same on every machine and in every version.
pub(crate) fn hash(words: impl IntoIterator<Item = u32>) -> u64 {
    hash_more(hash_start(), words)
}

/// Returns the hash of nothing.
pub(crate) fn hash_start() -> u64 {
    0xcbf2_9ce4_8422_2325
}

/// Adds words to a hash.
pub(crate) fn hash_more(hash: u64, words: impl IntoIterator<Item = u32>) -> u64 {
    let add = |hash: u64, word| (hash ^ u64::from(word)).wrapping_mul(0x0000_0100_0000_01b3);
    words.into_iter().fold(hash, add)
}

/// A journal that is open for writing.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    entries: Vec<Entry>,
}

impl Journal {
    /// Opens a journal, or begins one.
    ///
    /// # Errors
    /// If the file cannot be used, or has a line that no journal has, other than a last one that
    /// was cut short.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let (file, text) = open_to_add(path)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            entries: parse_jsonl(&text, path)?,
        })
    }

    /// Adds an entry. When this returns, the entry is on the disk.
    ///
    /// # Errors
    /// If it could not be written. The journal is then as it was.
    pub fn write(&mut self, entry: Entry) -> Result<(), Error> {
        let failed = Error::file("write", &self.path);
        let mut line = serde_json::to_vec(&entry).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let failed = Error::file("write", &self.path);
        let before = self.file.seek(std::io::SeekFrom::End(0)).map_err(failed)?;
        let written = self
            .file
            .write_all(&line)
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // A torn line would be dropped on opening, but more may follow it before that.
            let _ = self.file.set_len(before);
            return Err(Error::file("write", &self.path)(error));
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Returns everything that was written.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the plan of the run, if it began.
    pub fn plan(&self) -> Option<&Plan> {
        self.entries.iter().find_map(|entry| match entry {
            Entry::Started { plan, .. } => Some(plan),
            _ => None,
        })
    }

    /// Returns what tells the server that a run is an attempt of this one, if it began.
    pub fn resume_id(&self) -> Option<&str> {
        self.entries.iter().find_map(|entry| match entry {
            Entry::Started { resume_id, .. } => resume_id.as_deref(),
            _ => None,
        })
    }

    /// Returns what a teacher was asked last, as a hash.
    pub(crate) fn asked(&self) -> Option<u64> {
        self.entries.iter().rev().find_map(|entry| match entry {
            Entry::Asked { data } => Some(*data),
            _ => None,
        })
    }

    /// Returns the last checkpoint: how many steps it has seen, and where it is.
    pub fn last_checkpoint(&self) -> Option<(usize, &TinkerPath)> {
        self.entries.iter().rev().find_map(|entry| match entry {
            Entry::Checkpoint { steps, path, .. } => Some((*steps, path)),
            _ => None,
        })
    }

    /// Returns the checkpoints that the run has saved and not deleted, oldest first.
    pub(crate) fn checkpoints(&self) -> Vec<SavedCheckpoint> {
        let mut saved: Vec<SavedCheckpoint> = Vec::new();
        for entry in &self.entries {
            match entry {
                Entry::Checkpoint {
                    steps,
                    path,
                    temporary,
                } => {
                    saved.retain(|saved| saved.path != *path);
                    saved.push(SavedCheckpoint {
                        steps: *steps,
                        path: path.clone(),
                        temporary: *temporary,
                    });
                }
                Entry::Deleted { path } => saved.retain(|saved| saved.path != *path),
                _ => {}
            }
        }
        saved
    }

    /// Returns the steps that were done after the last checkpoint. A run that goes on does them again.
    pub fn unsaved_steps(&self) -> Range<usize> {
        let saved = self.last_checkpoint().map_or(0, |(steps, _)| steps);
        let done = self.surviving_steps();
        let done = done.last().map_or(0, |(step, _)| step + 1);
        saved..done.max(saved)
    }

    /// Returns what the loss is read from, unless the server reports it as Tinker does.
    pub fn loss_source(&self) -> Option<LossSource> {
        self.entries.iter().rev().find_map(|entry| match entry {
            Entry::LossFrom { source } => Some(*source),
            _ => None,
        })
    }

    /// Returns how the run ended, if it did.
    pub fn finished(&self) -> Option<Finish<'_>> {
        // What is deleted after that changes nothing.
        let is_deletion = |entry: &&Entry| matches!(entry, Entry::Deleted { .. });
        match self
            .entries
            .iter()
            .rev()
            .find(|entry| !is_deletion(entry))?
        {
            Entry::Finished {
                steps,
                sampler,
                best_of,
            } => Some(Finish {
                steps: *steps,
                sampler,
                best_of: *best_of,
            }),
            _ => None,
        }
    }

    /// Returns the steps that are in the weights now, in order, with their examples.
    pub fn surviving_steps(&self) -> Vec<(usize, &[usize])> {
        let mut steps = Vec::new();
        for entry in &self.entries {
            match entry {
                Entry::Step { step, examples } => steps.push((*step, examples.as_slice())),
                Entry::Resumed { steps: kept } => steps.retain(|(step, _)| step < kept),
                Entry::Started { .. }
                | Entry::Asked { .. }
                | Entry::Checkpoint { .. }
                | Entry::Deleted { .. }
                | Entry::LossFrom { .. }
                | Entry::Finished { .. } => {}
            }
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: usize) -> Entry {
        Entry::Step {
            step,
            examples: vec![step * 2, step * 2 + 1],
        }
    }

    fn checkpoint(steps: usize) -> Entry {
        let path = format!("tinker://run:train:0/weights/step-{steps}");
        Entry::Checkpoint {
            steps,
            path: path.parse().unwrap(),
            temporary: false,
        }
    }

    #[test]
    fn what_was_written_is_there_after_reopening_without_a_torn_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let plan = Plan::new(4, 2, 1);
        let mut journal = Journal::open(&path).unwrap();
        journal
            .write(Entry::Started {
                plan: plan.clone(),
                resume_id: None,
            })
            .unwrap();
        journal.write(step(0)).unwrap();
        drop(journal);
        let whole = std::fs::read_to_string(&path).unwrap();
        for torn in [
            "{\"event\":\"ste",
            "{\"event\":\"step\",\"step\":1,\"examples\":[]}",
            "\u{e9}",
        ] {
            std::fs::write(&path, format!("{whole}{torn}")).unwrap();
            let mut journal = Journal::open(&path).unwrap();
            assert_eq!(journal.plan(), Some(&plan));
            assert_eq!(journal.entries().len(), 2, "{torn}");
            journal.write(step(1)).unwrap();
            assert_eq!(
                Journal::open(&path).unwrap().entries(),
                journal.entries(),
                "{torn}"
            );
        }
        std::fs::write(&path, format!("oops\n{whole}")).unwrap();
        let error = Journal::open(&path).unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
    }

    #[test]
    fn other_data_are_another_plan() {
        let plan = |tokens: &[u32], counted: &[u32]| {
            let example = Example::from_prompt_completion(tokens, counted);
            Plan::new(1, 1, 0).of_examples([&example])
        };
        assert_eq!(plan(&[1, 2], &[3]), plan(&[1, 2], &[3]));
        assert_ne!(plan(&[1, 2], &[3]), plan(&[1, 2], &[4]));
        assert_ne!(
            plan(&[1, 2], &[3]),
            plan(&[1], &[2, 3]),
            "the mask counts too"
        );
        let difference = plan(&[1, 2], &[3]).difference(&plan(&[1], &[2, 3]));
        let words = "it began with other examples, though as many";
        assert_eq!(difference.as_deref(), Some(words));
        let difference = Plan::new(8, 4, 0).difference(&Plan::new(8, 2, 1));
        let words = "it began with batch size 4, now 2; seed 0, now 1";
        assert_eq!(difference.as_deref(), Some(words));
        let path = "tinker://run:train:0/weights/last".parse().unwrap();
        let tuned = Plan::new(8, 4, 0).starting_from(Some(Start::new(path)));
        let difference = tuned.difference(&Plan::new(8, 4, 0));
        let words = "it began with tinker://run:train:0/weights/last, now the base model";
        assert_eq!(difference.as_deref(), Some(words));
        // A journal may be older than the hash.
        let unknown = Plan::new(1, 1, 0);
        assert_eq!(unknown.difference(&plan(&[1, 2], &[3])), None);
    }

    #[test]
    fn steps_behind_the_checkpoint_are_not_counted_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path().join("j")).unwrap();
        let entries = [
            step(0),
            step(1),
            checkpoint(2),
            step(2), // lost with the process
        ];
        for entry in entries {
            journal.write(entry).unwrap();
        }
        assert_eq!(journal.unsaved_steps(), 2..3);
        let entries = [Entry::Resumed { steps: 2 }, step(2), step(3), checkpoint(4)];
        for entry in entries {
            journal.write(entry).unwrap();
        }
        let steps: Vec<_> = journal
            .surviving_steps()
            .iter()
            .map(|(step, _)| *step)
            .collect();
        assert_eq!(steps, [0, 1, 2, 3]);
        assert_eq!(journal.last_checkpoint().unwrap().0, 4);
        assert_eq!(journal.unsaved_steps(), 4..4);
        assert_eq!(journal.finished(), None);
    }
}
