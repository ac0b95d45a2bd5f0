//! The header: metadata and the table of tensors.

use std::collections::HashMap;
use std::io::Read;

use crate::Error;
use crate::array::Array;
use crate::cursor::Cursor;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any of the integer types.
    Integer(i128),
    /// Either of the floating-point types.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    Text(String),
    /// An array, whose elements stay in the file.
    Array(Array),
}

/// Where a tensor is and how it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Sizes, slowest first: the reverse of their order in the file.
    pub shape: Vec<usize>,
    /// Number of the storage format.
    pub format: u32,
    /// First byte, counted from the start of the data.
    pub offset: u64,
}

impl TensorInfo {
    /// Returns the tensor's bytes, or nothing if they do not lie within the file.
    ///
    /// The format stores `block_elements` numbers in `block_bytes` bytes, and rows are whole blocks.
    pub fn bytes<'a>(
        &self,
        (block_elements, block_bytes): (usize, usize),
        data_start: usize,
        file: &'a [u8],
    ) -> Option<&'a [u8]> {
        let row = *self.shape.last()?;
        if !row.is_multiple_of(block_elements) {
            return None;
        }
        let elements = self
            .shape
            .iter()
            .try_fold(1usize, |product, &size| product.checked_mul(size))?;
        let length = (elements / block_elements).checked_mul(block_bytes)?;
        let start = data_start.checked_add(usize::try_from(self.offset).ok()?)?;
        file.get(start..start.checked_add(length)?)
    }
}

/// The parsed header.
#[derive(Clone, Debug)]
pub struct Header {
    /// Values by key, such as `general.architecture`.
    pub metadata: HashMap<String, Value>,
    /// Tensors by name.
    pub tensors: HashMap<String, TensorInfo>,
    /// First byte of the tensors' data in the file.
    pub data_start: usize,
}

/// The most bytes that [`Header::read`] takes into memory. The largest vocabularies in use need a
/// few dozen megabytes.
const MOST_HEADER_BYTES: usize = 1 << 29;

impl Header {
    /// Parses a file of version 2 or 3, or any beginning of one that holds the whole header.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the header reaches past the end, [`Error::Malformed`] if it is not
    /// one.
    pub fn parse(file: &[u8]) -> Result<Self, Error> {
        let mut cursor = Cursor::new(file);
        if cursor.take(4)? != b"GGUF" {
            return Err(Error::malformed("it does not start with `GGUF`"));
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            let reason = format!("its version is {version}, expected 2 or 3");
            return Err(Error::Malformed(reason));
        }
        let tensor_count = cursor.u64()?;
        let metadata_count = cursor.u64()?;

        let mut metadata = HashMap::new();
        for _ in 0..metadata_count {
            let key = cursor.text()?;
            if metadata.insert(key.clone(), cursor.value()?).is_some() {
                return Err(Error::malformed(format!("key `{key}` appears twice")));
            }
        }

        let mut tensors = HashMap::new();
        for _ in 0..tensor_count {
            let name = cursor.text()?;
            let info = cursor.tensor_info(&name)?;
            if tensors.insert(name.clone(), info).is_some() {
                return Err(Error::malformed(format!("tensor `{name}` appears twice")));
            }
        }

        let wrong = |alignment: &dyn std::fmt::Debug| {
            Error::malformed(format!("its alignment is {alignment:?}"))
        };
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(Value::Integer(alignment)) => usize::try_from(*alignment)
                .ok()
                .filter(|alignment| alignment.is_power_of_two())
                .ok_or_else(|| wrong(alignment))?,
            Some(other) => return Err(wrong(other)),
        };
        let data_start = cursor
            .position
            .checked_next_multiple_of(alignment)
            .ok_or_else(|| wrong(&alignment))?;
        Ok(Self {
            metadata,
            tensors,
            data_start,
        })
    }

    /// Reads no more of a file than its header needs, and returns it with the bytes that were read.
    ///
    /// Models have gigabytes behind a header of a few megabytes. The bytes are those that
    /// [`Array`] asks for.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and if the file cannot be read.
    pub fn read(mut file: impl Read) -> Result<(Self, Vec<u8>), Error> {
        let mut bytes = Vec::new();
        let mut wanted = 1 << 20;
        loop {
            let missing = (wanted - bytes.len()) as u64;
            let read = file.by_ref().take(missing).read_to_end(&mut bytes)?;
            match Self::parse(&bytes) {
                Err(Error::Truncated { .. }) if read as u64 == missing => {}
                parsed => return Ok((parsed?, bytes)),
            }
            // Twice as much each time, so that parsing again costs as much as parsing once.
            wanted *= 2;
            if wanted > MOST_HEADER_BYTES {
                let reason = format!("its header is larger than {MOST_HEADER_BYTES} bytes");
                return Err(Error::Malformed(reason));
            }
        }
    }

    /// Returns the text of a key.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the array of a key.
    pub fn array(&self, key: &str) -> Option<&Array> {
        match self.metadata.get(key)? {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Elements and bytes of a block of the format F32.
    const F32: (usize, usize) = (1, 4);

    fn text(text: &str) -> Vec<u8> {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.bytes());
        bytes
    }

    /// A file with one value of each kind that matters and one tensor of four numbers.
    fn small_file() -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(3u64.to_le_bytes());
        bytes.extend(text("general.alignment"));
        bytes.extend([4u32.to_le_bytes(), 64u32.to_le_bytes()].concat());
        bytes.extend(text("name"));
        bytes.extend([8u32.to_le_bytes().to_vec(), text("tiny")].concat());
        bytes.extend(text("tokens"));
        bytes.extend([9u32.to_le_bytes(), 8u32.to_le_bytes()].concat());
        bytes.extend(2u64.to_le_bytes());
        bytes.extend([text("a"), text("bc")].concat());
        bytes.extend(text("t"));
        bytes.extend(2u32.to_le_bytes());
        bytes.extend([2u64.to_le_bytes(), 2u64.to_le_bytes()].concat());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        bytes.extend([0x3f; 16]);
        bytes
    }

    #[test]
    fn values_and_tensors_are_found() {
        let file = small_file();
        let header = Header::parse(&file).unwrap();
        assert_eq!(header.metadata["name"], Value::Text("tiny".to_owned()));
        let tokens = header.array("tokens").unwrap();
        assert_eq!(tokens.len(), 2);
        assert_eq!(tokens.texts(&file).unwrap(), ["a", "bc"]);
        assert_eq!((tokens.integers(&file), tokens.floats(&file)), (None, None));
        let tensor = &header.tensors["t"];
        assert_eq!(tensor.shape, [2, 2]);
        let bytes = tensor.bytes(F32, header.data_start, &file).unwrap();
        assert_eq!(bytes, [0x3f; 16]);
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        let file = small_file();
        for length in 0..file.len() {
            let cut = &file[..length];
            let complete = Header::parse(cut).is_ok_and(|header| {
                let tensor = &header.tensors["t"];
                tensor.bytes(F32, header.data_start, cut).is_some()
            });
            assert!(!complete, "{length} of {} bytes", file.len());
        }
    }

    #[test]
    fn names_that_appear_twice_are_refused() {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend([0u64.to_le_bytes(), 2u64.to_le_bytes()].concat());
        for _ in 0..2 {
            file.extend(text("flags"));
            file.extend([9u32.to_le_bytes(), 7u32.to_le_bytes()].concat());
            file.extend(2u64.to_le_bytes());
            file.extend([1, 0]);
        }
        let message = Header::parse(&file).unwrap_err().to_string();
        assert!(message.contains("key `flags` appears twice"), "{message}");
        // One alone is a list of truth values.
        file[16] = 1;
        let header = Header::parse(&file).unwrap();
        let flags = header.array("flags").unwrap();
        assert_eq!(flags.bools(&file), Some(vec![true, false]));
        assert_eq!(flags.integers(&file), None);
    }

    #[test]
    fn numbers_in_arrays_are_read_when_asked_for() {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend([0u64.to_le_bytes(), 2u64.to_le_bytes()].concat());
        file.extend(text("kinds"));
        file.extend([9u32.to_le_bytes(), 5u32.to_le_bytes()].concat());
        file.extend(2u64.to_le_bytes());
        file.extend([1i32.to_le_bytes(), (-3i32).to_le_bytes()].concat());
        file.extend(text("scores"));
        file.extend([9u32.to_le_bytes(), 6u32.to_le_bytes()].concat());
        file.extend(1u64.to_le_bytes());
        file.extend(0.5f32.to_le_bytes());
        let header = Header::parse(&file).unwrap();
        let kinds = header.array("kinds").unwrap();
        assert_eq!(kinds.integers(&file), Some(vec![1, -3]));
        assert_eq!((kinds.floats(&file), kinds.texts(&file)), (None, None));
        let scores = header.array("scores").unwrap();
        assert_eq!(scores.floats(&file), Some(vec![0.5]));
        assert_eq!(scores.floats(&file[..40]), None, "of another file");
    }

    #[test]
    fn a_header_of_any_size_is_read_without_the_data_behind_it() {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend([0u64.to_le_bytes(), 1u64.to_le_bytes()].concat());
        file.extend(text("long"));
        file.extend([8u32.to_le_bytes().to_vec(), text(&"x".repeat(3 << 20))].concat());
        let header_bytes = file.len();
        let endless = file.as_slice().chain(std::io::repeat(0));
        let (header, read) = Header::read(endless).unwrap();
        assert_eq!(header.text("long").unwrap().len(), 3 << 20);
        assert!(read.len() < 2 * header_bytes, "{}", read.len());
        let cut = &read[..header_bytes - 1];
        let error = Header::read(cut).unwrap_err();
        assert!(matches!(error, Error::Truncated { .. }), "{error}");
        assert!(Header::read(std::io::repeat(b'G')).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = Header::parse(&bytes);
            let mut file = b"GGUF\x03\0\0\0".to_vec();
            file.extend(bytes);
            let _ = Header::parse(&file);
        }

        #[test]
        fn a_changed_file_never_panics(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6)
        ) {
            let mut file = small_file();
            for (index, byte) in changes {
                let index = index.index(file.len());
                file[index] = byte;
            }
            if let Ok(header) = Header::parse(&file) {
                for tensor in header.tensors.values() {
                    let _ = tensor.bytes(F32, header.data_start, &file);
                    let _ = tensor.bytes((256, 144), header.data_start, &file);
                }
                for value in header.metadata.values() {
                    if let Value::Array(array) = value {
                        let _ = (array.texts(&file), array.integers(&file), array.floats(&file));
                    }
                }
            }
        }
    }
}
