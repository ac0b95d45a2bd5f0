//! Writing files: the header at once, the tensors one after the other.

use std::io::{self, Write};

/// Tensors start at multiples of this many bytes, which is what readers assume.
const ALIGNMENT: u64 = 32;

/// What a file will hold: its metadata and the table of its tensors.
///
/// The header is known before the first tensor is written, so that a model never has to be in memory as a
/// whole: [`start`](Self::start) writes the header, and [`TensorWriter`] takes the tensors.
///
/// ```
/// use tinkrs_gguf::{Contents, Header};
///
/// let mut contents = Contents::default();
/// contents.text("general.architecture", "llama");
/// contents.tensor("t", &[1, 2], 0, 8);
/// let mut file = Vec::new();
/// let mut tensors = contents.start(&mut file)?;
/// tensors.write(&[0; 8])?;
/// tensors.finish()?;
/// assert_eq!(file.len() as u64, contents.size());
/// assert_eq!(Header::parse(&file).unwrap().tensors["t"].shape, [1, 2]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Contents {
    values: Vec<u8>,
    value_count: u64,
    tensors: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    /// Slowest first.
    shape: Vec<usize>,
    format: u32,
    bytes: u64,
}

impl Contents {
    /// Adds a text.
    pub fn text(&mut self, key: &str, value: &str) {
        self.begin(key, 8);
        put_text(&mut self.values, value);
    }

    /// Adds an unsigned integer.
    pub fn u32(&mut self, key: &str, value: u32) {
        self.begin(key, 4);
        self.values.extend(value.to_le_bytes());
    }

    /// Adds a number of single precision.
    pub fn f32(&mut self, key: &str, value: f32) {
        self.begin(key, 6);
        self.values.extend(value.to_le_bytes());
    }

    /// Adds a truth value.
    pub fn bool(&mut self, key: &str, value: bool) {
        self.begin(key, 7);
        self.values.push(value.into());
    }

    /// Adds an array of texts.
    pub fn texts<T: AsRef<str>>(&mut self, key: &str, values: &[T]) {
        self.begin_array(key, 8, values.len());
        for value in values {
            put_text(&mut self.values, value.as_ref());
        }
    }

    /// Adds an array of signed integers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        self.begin_array(key, 5, values.len());
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.values.extend(bytes);
    }

    /// Adds an array of numbers of single precision.
    pub fn f32s(&mut self, key: &str, values: &[f32]) {
        self.begin_array(key, 6, values.len());
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.values.extend(bytes);
    }

    /// Adds a tensor of so many bytes. Sizes are given slowest first, and turned around in the file.
    pub fn tensor(&mut self, name: &str, shape: &[usize], format: u32, bytes: u64) {
        self.tensors.push(Entry {
            name: name.to_owned(),
            shape: shape.to_vec(),
            format,
            bytes,
        });
    }

    /// Returns the bytes of the whole file.
    pub fn size(&self) -> u64 {
        let data = self.tensors.iter().map(|tensor| padded(tensor.bytes));
        padded(self.header().len() as u64) + data.sum::<u64>()
    }

    /// Writes the header, and returns what takes the tensors in the order in which they were added.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn start<W: Write>(&self, mut to: W) -> io::Result<TensorWriter<'_, W>> {
        let header = self.header();
        to.write_all(&header)?;
        pad(&mut to, header.len() as u64)?;
        Ok(TensorWriter {
            to,
            tensors: self.tensors.iter(),
            written: 0,
        })
    }

    fn header(&self) -> Vec<u8> {
        let mut header = b"GGUF\x03\0\0\0".to_vec();
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend(self.value_count.to_le_bytes());
        header.extend(&self.values);
        let mut offset = 0;
        for tensor in &self.tensors {
            put_text(&mut header, &tensor.name);
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            let sizes = tensor.shape.iter().rev();
            header.extend(sizes.flat_map(|&size| (size as u64).to_le_bytes()));
            header.extend(tensor.format.to_le_bytes());
            header.extend(u64::to_le_bytes(offset));
            offset += padded(tensor.bytes);
        }
        header
    }

    fn begin(&mut self, key: &str, kind: u32) {
        put_text(&mut self.values, key);
        self.values.extend(kind.to_le_bytes());
        self.value_count += 1;
    }

    fn begin_array(&mut self, key: &str, kind: u32, length: usize) {
        self.begin(key, 9);
        self.values.extend(kind.to_le_bytes());
        self.values.extend((length as u64).to_le_bytes());
    }
}

/// Takes the tensors of a file whose header is written.
#[derive(Debug)]
#[must_use = "a file is whole only when it is finished"]
pub struct TensorWriter<'c, W> {
    to: W,
    /// The first is the one that is being written.
    tensors: std::slice::Iter<'c, Entry>,
    /// Bytes of the first that are written.
    written: u64,
}

impl<W: Write> TensorWriter<'_, W> {
    /// Writes the next tensor, or the next part of it.
    ///
    /// # Errors
    /// If it is longer than what the header leaves for this tensor, there are no more, or the file cannot be
    /// written.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let tensor = self.tensors.as_slice().first();
        let tensor = tensor.ok_or_else(|| wrong("the header has no more tensors".to_owned()))?;
        let written = self.written + bytes.len() as u64;
        if written > tensor.bytes {
            return Err(wrong(format!(
                "tensor `{}` would have {written} bytes, the header says {}",
                tensor.name, tensor.bytes
            )));
        }
        self.to.write_all(bytes)?;
        self.written = written;
        if written == tensor.bytes {
            pad(&mut self.to, written)?;
            self.tensors.next();
            self.written = 0;
        }
        Ok(())
    }

    /// Ends the file, and returns what it was written to.
    ///
    /// # Errors
    /// If a tensor or a part of one is missing, or the file cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some(missing) = self.tensors.next() {
            return Err(wrong(format!(
                "of tensor `{}` {} of {} bytes were written",
                missing.name, self.written, missing.bytes
            )));
        }
        self.to.flush()?;
        Ok(self.to)
    }
}

fn wrong(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

fn pad(to: &mut impl Write, written: u64) -> io::Result<()> {
    let missing = (padded(written) - written) as usize;
    to.write_all(&[0; ALIGNMENT as usize][..missing])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Value};

    fn contents() -> Contents {
        let mut contents = Contents::default();
        contents.text("name", "tiny ▁");
        contents.u32("count", 7);
        contents.f32("eps", 0.5);
        contents.bool("flag", true);
        contents.texts("tokens", &["a", "bc"]);
        contents.i32s("kinds", &[1, -3]);
        contents.f32s("scores", &[0.25]);
        contents.tensor("one", &[3], 0, 12);
        contents.tensor("two", &[2, 4], 1, 16);
        contents
    }

    #[test]
    fn what_is_written_is_read() {
        let contents = contents();
        let mut file = Vec::new();
        let mut tensors = contents.start(&mut file).unwrap();
        tensors.write(&[1; 12]).unwrap();
        // In parts.
        tensors.write(&[2; 6]).unwrap();
        tensors.write(&[2; 10]).unwrap();
        tensors.finish().unwrap();
        assert_eq!(file.len() as u64, contents.size());
        let header = Header::parse(&file).unwrap();
        assert_eq!(header.text("name"), Some("tiny ▁"));
        assert_eq!(header.metadata["count"], Value::Integer(7));
        assert_eq!(header.metadata["eps"], Value::Float(0.5));
        assert_eq!(header.metadata["flag"], Value::Bool(true));
        let array = |key| header.array(key).unwrap();
        assert_eq!(array("tokens").texts(&file).unwrap(), ["a", "bc"]);
        assert_eq!(array("kinds").integers(&file).unwrap(), [1, -3]);
        assert_eq!(array("scores").floats(&file).unwrap(), [0.25]);
        for (name, shape, block, bytes) in [
            ("one", vec![3], (1, 4), vec![1; 12]),
            ("two", vec![2, 4], (1, 2), vec![2; 16]),
        ] {
            let tensor = &header.tensors[name];
            assert_eq!(tensor.shape, shape);
            let found = tensor.bytes(block, header.data_start, &file);
            assert_eq!(found, Some(bytes.as_slice()), "{name}");
        }
    }

    #[test]
    fn tensors_must_be_those_of_the_header() {
        let contents = contents();
        let mut tensors = contents.start(io::sink()).unwrap();
        assert!(tensors.write(&[0; 13]).is_err(), "too long");
        tensors.write(&[0; 12]).unwrap();
        tensors.write(&[0; 15]).unwrap();
        let missing = tensors.finish().unwrap_err().to_string();
        assert_eq!(missing, "of tensor `two` 15 of 16 bytes were written");
        let mut tensors = contents.start(io::sink()).unwrap();
        tensors.write(&[0; 12]).unwrap();
        tensors.write(&[0; 16]).unwrap();
        assert!(tensors.write(&[]).is_err(), "one too many");
    }
}
