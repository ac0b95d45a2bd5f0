//! The header of a GGUF file: metadata and where the tensors are.
//!
//! Files come from anywhere, so nothing in one is believed: every length is checked against what is
//! left before it is used, and nothing is allocated on the word of a count. Values the engine has no
//! use for (the vocabulary, mostly) are stepped over.

use std::collections::HashMap;

use super::quants::Format;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// Any of the integer types.
    Integer(i128),
    /// Either of the floating-point types.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    Text(String),
    /// An array, of which only the length is kept.
    Array(u64),
}

/// Where a tensor is and how it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorInfo {
    /// Sizes, slowest first: the reverse of their order in the file.
    pub(super) shape: Vec<usize>,
    /// Number of the storage format.
    pub(super) format: u32,
    /// First byte, counted from the start of the data.
    pub(super) offset: u64,
}

impl TensorInfo {
    /// Returns the tensor's bytes, or nothing if they do not lie within the file.
    pub(super) fn bytes<'a>(
        &self,
        format: Format,
        data_start: usize,
        file: &'a [u8],
    ) -> Option<&'a [u8]> {
        let row = *self.shape.last()?;
        let (block, block_bytes) = format.block();
        if !row.is_multiple_of(block) {
            return None;
        }
        let elements = self
            .shape
            .iter()
            .try_fold(1usize, |product, &size| product.checked_mul(size))?;
        let length = (elements / block).checked_mul(block_bytes)?;
        let start = data_start.checked_add(usize::try_from(self.offset).ok()?)?;
        file.get(start..start.checked_add(length)?)
    }
}

/// The parsed header.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) metadata: HashMap<String, Value>,
    pub(super) tensors: HashMap<String, TensorInfo>,
    pub(super) data_start: usize,
}

impl Header {
    /// Parses the header of versions 2 and 3; the error says what is wrong.
    pub(super) fn parse(file: &[u8]) -> Result<Self, String> {
        let mut cursor = Cursor { file, position: 0 };
        if cursor.take(4)? != b"GGUF" {
            return Err("it does not start with `GGUF`".to_owned());
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            return Err(format!("its version is {version}, expected 2 or 3"));
        }
        let tensor_count = cursor.u64()?;
        let metadata_count = cursor.u64()?;

        let mut metadata = HashMap::new();
        for _ in 0..metadata_count {
            let key = cursor.text()?;
            let kind = cursor.u32()?;
            let value = cursor.value(kind)?;
            metadata.insert(key, value);
        }

        let mut tensors = HashMap::new();
        for _ in 0..tensor_count {
            let name = cursor.text()?;
            let info = cursor.tensor_info(&name)?;
            if tensors.insert(name.clone(), info).is_some() {
                return Err(format!("tensor `{name}` appears twice"));
            }
        }

        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(Value::Integer(alignment)) => usize::try_from(*alignment)
                .ok()
                .filter(|alignment| alignment.is_power_of_two())
                .ok_or_else(|| format!("its alignment is {alignment}"))?,
            Some(other) => return Err(format!("its alignment is {other:?}")),
        };
        let data_start = cursor
            .position
            .checked_next_multiple_of(alignment)
            .ok_or_else(|| format!("its alignment is {alignment}"))?;
        Ok(Self {
            metadata,
            tensors,
            data_start,
        })
    }
}

struct Cursor<'a> {
    file: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let rest = &self.file[self.position..];
        let taken = rest
            .get(..length)
            .ok_or_else(|| format!("it ends at byte {} within the header", self.file.len()))?;
        self.position += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("N bytes were taken"))
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Result<usize, String> {
        let length = self.u64()?;
        usize::try_from(length).map_err(|_| format!("it holds a length of {length}"))
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.length()?;
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| "it holds text that is not UTF-8".to_owned())
    }

    fn value(&mut self, kind: u32) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::Integer(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Integer(u32::from_le_bytes(self.array()?).into()),
            5 => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.take(1)?[0] != 0),
            8 => Value::Text(self.text()?),
            9 => {
                let kind = self.u32()?;
                let length = self.length()?;
                self.skip_array(kind, length)?;
                Value::Array(length as u64)
            }
            10 => Value::Integer(u64::from_le_bytes(self.array()?).into()),
            11 => Value::Integer(i64::from_le_bytes(self.array()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("it holds a value of unknown type {other}")),
        })
    }

    fn skip_array(&mut self, kind: u32, length: usize) -> Result<(), String> {
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => {
                for _ in 0..length {
                    let length = self.length()?;
                    self.take(length)?;
                }
                return Ok(());
            }
            other => return Err(format!("it holds an array of elements of type {other}")),
        };
        let bytes = length.checked_mul(size);
        self.take(bytes.ok_or_else(|| format!("it holds an array of {length} elements"))?)?;
        Ok(())
    }

    fn tensor_info(&mut self, name: &str) -> Result<TensorInfo, String> {
        let dimensions = self.u32()?;
        if dimensions > 4 {
            return Err(format!("tensor `{name}` has {dimensions} dimensions"));
        }
        let mut shape = (0..dimensions)
            .map(|_| self.length())
            .collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        Ok(TensorInfo {
            shape,
            format: self.u32()?,
            offset: self.u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        assert_eq!(header.metadata["tokens"], Value::Array(2));
        let tensor = &header.tensors["t"];
        assert_eq!(tensor.shape, [2, 2]);
        let format = Format::from_id(tensor.format, "t").unwrap();
        let bytes = tensor.bytes(format, header.data_start, &file).unwrap();
        assert_eq!(bytes, [0x3f; 16]);
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        let file = small_file();
        for length in 0..file.len() {
            let cut = &file[..length];
            let complete = Header::parse(cut).is_ok_and(|header| {
                let tensor = &header.tensors["t"];
                let format = Format::from_id(tensor.format, "t").unwrap();
                tensor.bytes(format, header.data_start, cut).is_some()
            });
            assert!(!complete, "{length} of {} bytes", file.len());
        }
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
                    if let Ok(format) = Format::from_id(tensor.format, "t") {
                        let _ = tensor.bytes(format, header.data_start, &file);
                    }
                }
            }
        }
    }
}
