//! Examples in memory or, when there are many, in a temporary file.
//!
//! A run trains on examples in a shuffled order, so each must be at hand at any time. What does not fit in a
//! bounded part of the memory is written to a file without a name, which the system removes when the run ends; of each
//! example, only its place stays in memory.

use crate::Error;
use crate::run::{hash_more, hash_start, words};
use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tinkrs_chat::Example;

/// Bytes of examples that stay in memory.
const IN_MEMORY: usize = 64 << 20;
/// Bytes that are written at a time.
const BUFFER: usize = 1 << 20;

/// Examples that can be had by their index.
#[derive(Clone, Default)]
pub struct ExampleStore {
    memory: Vec<Example>,
    spilled: Vec<Spilled>,
    file: Option<Arc<Mutex<Spill>>>,
    bytes: usize,
    limit: Option<usize>,
    hash: OnceLock<u64>,
}

/// Where an example is in the file.
#[derive(Clone, Copy)]
struct Spilled {
    offset: u64,
    tokens: u32,
    /// Runs of tokens with the same weight.
    runs: u32,
}

/// A temporary file, and what is not written to it yet.
struct Spill {
    file: File,
    written: u64,
    buffer: Vec<u8>,
}

impl ExampleStore {
    /// Makes an empty store that keeps at most so many bytes of examples in memory.
    #[must_use]
    pub fn with_limit(bytes: usize) -> Self {
        Self {
            limit: Some(bytes),
            ..Self::default()
        }
    }

    /// Returns how many examples there are.
    pub fn len(&self) -> usize {
        self.memory.len() + self.spilled.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many tokens an example has.
    ///
    /// # Panics
    /// If there is no such example.
    pub fn tokens(&self, index: usize) -> usize {
        match self.file {
            None => self.memory[index].tokens.len(),
            Some(_) => self.spilled[index].tokens as usize,
        }
    }

    /// Returns an example.
    ///
    /// # Errors
    /// If the temporary file cannot be read.
    ///
    /// # Panics
    /// If there is no such example.
    pub fn get(&self, index: usize) -> Result<Cow<'_, Example>, Error> {
        let Some(file) = &self.file else {
            return Ok(Cow::Borrowed(&self.memory[index]));
        };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        let example = file.read(self.spilled[index]).map_err(failed)?;
        Ok(Cow::Owned(example))
    }

    /// Returns all examples, in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Cow<'_, Example>, Error>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Adds an example.
    ///
    /// # Errors
    /// If the temporary file cannot be written.
    pub fn push(&mut self, example: Example) -> Result<(), Error> {
        self.hash = OnceLock::new();
        self.bytes += size(&example);
        if self.file.is_none() && self.bytes > self.limit.unwrap_or(IN_MEMORY) {
            let spill = Spill::new().map_err(failed)?;
            self.file = Some(Arc::new(Mutex::new(spill)));
            for example in std::mem::take(&mut self.memory) {
                self.spill(&example)?;
            }
        }
        if self.file.is_some() {
            return self.spill(&example);
        }
        self.memory.push(example);
        Ok(())
    }

    fn spill(&mut self, example: &Example) -> Result<(), Error> {
        if let Some(file) = &self.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            self.spilled.push(file.write(example).map_err(failed)?);
        }
        Ok(())
    }

    /// Takes out the examples of some indices, which are sorted.
    pub(super) fn take(&mut self, sorted: &[usize]) -> Result<Vec<Example>, Error> {
        self.hash = OnceLock::new();
        let taken = sorted
            .iter()
            .map(|index| Ok(self.get(*index)?.into_owned()));
        let taken = taken.collect::<Result<_, Error>>()?;
        let stays = |index: &mut usize| {
            let stays = sorted.binary_search(index).is_err();
            *index += 1;
            stays
        };
        let (mut index, mut place) = (0, 0);
        self.memory.retain(|_| stays(&mut index));
        self.spilled.retain(|_| stays(&mut place));
        Ok(taken)
    }

    /// Drops all but the first examples.
    pub fn truncate(&mut self, count: usize) {
        self.hash = OnceLock::new();
        self.memory.truncate(count);
        self.spilled.truncate(count);
    }

    /// Returns a store as this one, without examples.
    pub(super) fn like(&self) -> Self {
        Self {
            limit: self.limit,
            ..Self::default()
        }
    }

    /// Returns a hash of all examples.
    pub(crate) fn hash(&self) -> Result<u64, Error> {
        if let Some(hash) = self.hash.get() {
            return Ok(*hash);
        }
        let mut hash = hash_start();
        for example in self.iter() {
            hash = hash_more(hash, words([&*example?]));
        }
        Ok(*self.hash.get_or_init(|| hash))
    }
}

fn size(example: &Example) -> usize {
    size_of::<Example>() + example.tokens.len() * 8
}

fn failed(source: std::io::Error) -> Error {
    Error::File {
        action: "use a temporary file for examples in",
        path: std::env::temp_dir(),
        source,
    }
}

impl Spill {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile()?,
            written: 0,
            buffer: Vec::with_capacity(BUFFER),
        })
    }

    fn write(&mut self, example: &Example) -> std::io::Result<Spilled> {
        let offset = self.written + self.buffer.len() as u64;
        let runs = example
            .weights
            .chunk_by(|one, other| one.to_bits() == other.to_bits());
        let runs: Vec<_> = runs.map(|run| (run.len() as u32, run[0])).collect();
        let words = example.tokens.iter().copied();
        let words = words.chain(
            runs.iter()
                .flat_map(|(length, weight)| [*length, weight.to_bits()]),
        );
        self.buffer.extend(words.flat_map(u32::to_le_bytes));
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(Spilled {
            offset,
            tokens: example.tokens.len() as u32,
            runs: runs.len() as u32,
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.seek(SeekFrom::Start(self.written))?;
        self.file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn read(&mut self, place: Spilled) -> std::io::Result<Example> {
        if !self.buffer.is_empty() {
            self.flush()?;
        }
        let tokens = place.tokens as usize;
        let mut bytes = vec![0; (tokens + 2 * place.runs as usize) * 4];
        self.file.seek(SeekFrom::Start(place.offset))?;
        self.file.read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let mut example = Example {
            tokens: words.by_ref().take(tokens).collect(),
            weights: Vec::with_capacity(tokens),
        };
        while let (Some(length), Some(weight)) = (words.next(), words.next()) {
            let end = example.weights.len() + length as usize;
            example.weights.resize(end, f32::from_bits(weight));
        }
        Ok(example)
    }
}

impl fmt::Debug for ExampleStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExampleStore")
            .field("len", &self.len())
            .field("in_memory", &self.file.is_none())
            .finish()
    }
}

impl PartialEq for ExampleStore {
    fn eq(&self, other: &Self) -> bool {
        let pairs = || self.iter().zip(other.iter());
        self.len() == other.len()
            && pairs().all(|pair| matches!(pair, (Ok(one), Ok(other)) if one == other))
    }
}

impl From<Vec<Example>> for ExampleStore {
    fn from(memory: Vec<Example>) -> Self {
        Self {
            bytes: memory.iter().map(size).sum(),
            memory,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(n: usize) -> Example {
        Example {
            tokens: (0..n as u32).collect(),
            weights: (0..n)
                .map(|at| if at % 7 < 3 { 0.0 } else { 0.5 })
                .collect(),
        }
    }

    #[test]
    fn examples_on_disk_are_those_in_memory() {
        let mut memory = ExampleStore::default();
        let mut disk = ExampleStore::with_limit(2000);
        for n in 0..60 {
            memory.push(example(n)).unwrap();
            disk.push(example(n)).unwrap();
        }
        assert!(memory.file.is_none() && disk.file.is_some());
        assert!(disk.memory.is_empty());
        assert_eq!(memory, disk);
        assert_eq!(memory.hash().unwrap(), disk.hash().unwrap());
        assert_eq!(disk.get(31).unwrap().into_owned(), example(31));
        assert_eq!(disk.tokens(31), 31);
        let before = disk.hash().unwrap();
        let taken = disk.take(&[3, 31]).unwrap();
        assert_eq!(taken, memory.take(&[3, 31]).unwrap());
        assert_eq!(memory, disk);
        assert_ne!(disk.hash().unwrap(), before);
    }
}
