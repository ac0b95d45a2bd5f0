//! Examples, or pairs of them, in memory or, when there are many, in a temporary file.
//!
//! A run trains on them in a shuffled order, so each must be at hand at any time. What does not fit in a
//! bounded part of the memory is written to a file without a name, which the system removes when the run ends; of each,
//! only its place stays in memory.

use crate::Error;
use crate::run::{counted, hash_more, hash_start, words};
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

/// What a run learns from, one at a time: it can be kept in a file, as words.
pub trait Stored: Clone + PartialEq {
    /// Returns how many tokens it has, those of all its sequences together.
    fn tokens(&self) -> usize;

    /// Returns how many tokens its longest sequence has.
    fn longest(&self) -> usize;

    /// Returns how many bytes it takes in memory.
    fn bytes(&self) -> usize {
        // A token and its weight.
        size_of::<Self>() + self.tokens() * 8
    }

    /// Adds the words to read it from again.
    fn write(&self, words: &mut Vec<u32>);

    /// Reads what [`write`](Self::write) wrote, if that is what the words are.
    fn read(words: &mut impl Iterator<Item = u32>) -> Option<Self>;

    /// Returns the words that tell it from others in a hash.
    fn identity(&self) -> impl Iterator<Item = u32>;
}

/// Examples that can be had by their index.
pub type ExampleStore = Store<Example>;

/// What a run learns from, by its index.
#[derive(Clone)]
pub struct Store<T> {
    memory: Vec<T>,
    spilled: Vec<Spilled>,
    file: Option<Arc<Mutex<Spill>>>,
    bytes: usize,
    longest: usize,
    limit: Option<usize>,
    hash: OnceLock<u64>,
}

/// Where one of them is in the file.
#[derive(Clone, Copy)]
struct Spilled {
    offset: u64,
    words: u32,
    tokens: u32,
}

/// A temporary file, and what is not written to it yet.
struct Spill {
    file: File,
    written: u64,
    buffer: Vec<u8>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            memory: Vec::new(),
            spilled: Vec::new(),
            file: None,
            bytes: 0,
            longest: 0,
            limit: None,
            hash: OnceLock::new(),
        }
    }
}

impl<T> Store<T> {
    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.memory.len() + self.spilled.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many tokens the longest sequence has of all that were ever added.
    pub fn longest(&self) -> usize {
        self.longest
    }
}

impl<T: Stored> Store<T> {
    /// Makes an empty store that keeps at most so many bytes in memory.
    #[must_use]
    pub fn with_limit(bytes: usize) -> Self {
        Self {
            limit: Some(bytes),
            ..Self::default()
        }
    }

    /// Returns how many tokens one of them has.
    ///
    /// # Panics
    /// If there is none of this index.
    pub fn tokens(&self, index: usize) -> usize {
        match self.file {
            None => self.memory[index].tokens(),
            Some(_) => self.spilled[index].tokens as usize,
        }
    }

    /// Returns one of them.
    ///
    /// # Errors
    /// If the temporary file cannot be read.
    ///
    /// # Panics
    /// If there is none of this index.
    pub fn get(&self, index: usize) -> Result<Cow<'_, T>, Error> {
        let Some(file) = &self.file else {
            return Ok(Cow::Borrowed(&self.memory[index]));
        };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        let words = file.read(self.spilled[index]).map_err(failed)?;
        let read = T::read(&mut words.into_iter());
        let read = read.ok_or_else(|| failed(std::io::ErrorKind::InvalidData.into()))?;
        Ok(Cow::Owned(read))
    }

    /// Returns those of a batch.
    pub(crate) fn batch(&self, batch: &[usize]) -> Result<Vec<Cow<'_, T>>, Error> {
        batch.iter().map(|index| self.get(*index)).collect()
    }

    /// Returns all of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Cow<'_, T>, Error>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Adds one.
    ///
    /// # Errors
    /// If the temporary file cannot be written.
    pub fn push(&mut self, item: T) -> Result<(), Error> {
        self.hash = OnceLock::new();
        self.bytes += item.bytes();
        self.longest = self.longest.max(item.longest());
        if self.file.is_none() && self.bytes > self.limit.unwrap_or(IN_MEMORY) {
            let spill = Spill::new().map_err(failed)?;
            self.file = Some(Arc::new(Mutex::new(spill)));
            for item in std::mem::take(&mut self.memory) {
                self.spill(&item)?;
            }
        }
        if self.file.is_some() {
            return self.spill(&item);
        }
        self.memory.push(item);
        Ok(())
    }

    fn spill(&mut self, item: &T) -> Result<(), Error> {
        if let Some(file) = &self.file {
            let mut words = Vec::new();
            item.write(&mut words);
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            let offset = file.write(&words).map_err(failed)?;
            self.spilled.push(Spilled {
                offset,
                words: words.len() as u32,
                tokens: item.tokens() as u32,
            });
        }
        Ok(())
    }

    /// Takes out those of some indices, which are sorted.
    pub(super) fn take(&mut self, sorted: &[usize]) -> Result<Vec<T>, Error> {
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

    /// Drops all but the first ones.
    pub fn truncate(&mut self, count: usize) {
        self.hash = OnceLock::new();
        self.memory.truncate(count);
        self.spilled.truncate(count);
    }

    /// Returns a store as this one, with nothing in it.
    pub(super) fn like(&self) -> Self {
        Self {
            limit: self.limit,
            ..Self::default()
        }
    }

    /// Returns a hash of all of them.
    pub(crate) fn hash(&self) -> Result<u64, Error> {
        if let Some(hash) = self.hash.get() {
            return Ok(*hash);
        }
        let mut hash = hash_start();
        for item in self.iter() {
            hash = hash_more(hash, item?.identity());
        }
        Ok(*self.hash.get_or_init(|| hash))
    }
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

    /// Returns where the words begin.
    fn write(&mut self, words: &[u32]) -> std::io::Result<u64> {
        let offset = self.written + self.buffer.len() as u64;
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        self.buffer.extend(bytes);
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(offset)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.seek(SeekFrom::Start(self.written))?;
        self.file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn read(&mut self, place: Spilled) -> std::io::Result<Vec<u32>> {
        if !self.buffer.is_empty() {
            self.flush()?;
        }
        let mut bytes = vec![0; place.words as usize * 4];
        self.file.seek(SeekFrom::Start(place.offset))?;
        self.file.read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }
}

/// Its tokens behind their number, then runs of the same weight: how long, and which. In most examples the weights are
/// few runs of 0 and 1.
impl Stored for Example {
    fn tokens(&self) -> usize {
        self.tokens.len()
    }

    fn longest(&self) -> usize {
        self.tokens.len()
    }

    fn write(&self, words: &mut Vec<u32>) {
        words.extend(counted(&self.tokens));
        let runs = self
            .weights
            .chunk_by(|one, other| one.to_bits() == other.to_bits());
        words.extend(runs.flat_map(|run| [run.len() as u32, run[0].to_bits()]));
    }

    fn read(words: &mut impl Iterator<Item = u32>) -> Option<Self> {
        let length = words.next()? as usize;
        let tokens: Vec<u32> = words.by_ref().take(length).collect();
        let mut weights = Vec::with_capacity(tokens.len());
        while weights.len() < length {
            let (run, weight) = (words.next()? as usize, words.next()?);
            if run == 0 || run > length - weights.len() {
                return None;
            }
            weights.resize(weights.len() + run, f32::from_bits(weight));
        }
        (tokens.len() == length).then_some(Self { tokens, weights })
    }

    fn identity(&self) -> impl Iterator<Item = u32> {
        words([self])
    }
}

impl<T> fmt::Debug for Store<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("len", &self.len())
            .field("in_memory", &self.file.is_none())
            .finish()
    }
}

impl<T: Stored> PartialEq for Store<T> {
    fn eq(&self, other: &Self) -> bool {
        let pairs = || self.iter().zip(other.iter());
        self.len() == other.len()
            && pairs().all(|pair| matches!(pair, (Ok(one), Ok(other)) if one == other))
    }
}

impl<T: Stored> From<Vec<T>> for Store<T> {
    fn from(memory: Vec<T>) -> Self {
        Self {
            bytes: memory.iter().map(T::bytes).sum(),
            longest: memory.iter().map(T::longest).max().unwrap_or(0),
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

    #[test]
    fn words_that_are_no_example_are_none() {
        let mut words = Vec::new();
        example(9).write(&mut words);
        assert_eq!(Example::read(&mut words.iter().copied()), Some(example(9)));
        for cut in 0..words.len() {
            let read = Example::read(&mut words[..cut].iter().copied());
            assert_eq!(read, None, "{cut} of {}", words.len());
        }
        // A run of weights that goes on behind the last token.
        let last = words.len() - 2;
        words[last] += 1;
        assert_eq!(Example::read(&mut words.into_iter()), None);
    }
}
