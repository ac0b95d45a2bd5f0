//! Reading little-endian numbers and texts one after the other.

use crate::Error;
use crate::array::{Array, Element};
use crate::header::{TensorInfo, Value};

/// A place in a file, behind which the next value starts.
pub(crate) struct Cursor<'a> {
    file: &'a [u8],
    pub(crate) position: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(file: &'a [u8]) -> Self {
        Self { file, position: 0 }
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let rest = &self.file[self.position..];
        let taken = rest.get(..length).ok_or(Error::Truncated {
            length: self.file.len(),
        })?;
        self.position += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("N bytes were taken"))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn length(&mut self) -> Result<usize, Error> {
        let length = self.u64()?;
        usize::try_from(length)
            .map_err(|_| Error::malformed(format!("it holds a length of {length}")))
    }

    /// Reads a text without copying it.
    pub(crate) fn str(&mut self) -> Result<&'a str, Error> {
        let length = self.length()?;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|_| Error::malformed("it holds text that is not UTF-8"))
    }

    pub(crate) fn text(&mut self) -> Result<String, Error> {
        self.str().map(str::to_owned)
    }

    /// Reads a value that is not an array.
    pub(crate) fn scalar(&mut self, element: Element) -> Result<Value, Error> {
        Ok(match element {
            Element::U8 => Value::Integer(u8::from_le_bytes(self.array()?).into()),
            Element::I8 => Value::Integer(i8::from_le_bytes(self.array()?).into()),
            Element::U16 => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            Element::I16 => Value::Integer(i16::from_le_bytes(self.array()?).into()),
            Element::U32 => Value::Integer(u32::from_le_bytes(self.array()?).into()),
            Element::I32 => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            Element::U64 => Value::Integer(u64::from_le_bytes(self.array()?).into()),
            Element::I64 => Value::Integer(i64::from_le_bytes(self.array()?).into()),
            Element::F32 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            Element::F64 => Value::Float(f64::from_le_bytes(self.array()?)),
            Element::Bool => Value::Bool(self.take(1)?[0] != 0),
            Element::Text => Value::Text(self.text()?),
        })
    }

    /// Reads a value of any kind; of an array, only where it is.
    pub(crate) fn value(&mut self) -> Result<Value, Error> {
        const ARRAY: u32 = 9;
        let kind = self.u32()?;
        if kind == ARRAY {
            return self.skip_array().map(Value::Array);
        }
        let element = Element::from_id(kind)
            .ok_or_else(|| Error::malformed(format!("it holds a value of unknown type {kind}")))?;
        self.scalar(element)
    }

    fn skip_array(&mut self) -> Result<Array, Error> {
        let kind = self.u32()?;
        let element = Element::from_id(kind).ok_or_else(|| {
            Error::malformed(format!("it holds an array of elements of type {kind}"))
        })?;
        let length = self.length()?;
        let start = self.position;
        match element.size() {
            Some(size) => {
                let bytes = length.checked_mul(size).ok_or_else(|| {
                    Error::malformed(format!("it holds an array of {length} elements"))
                })?;
                self.take(bytes)?;
            }
            None => {
                for _ in 0..length {
                    let length = self.length()?;
                    self.take(length)?;
                }
            }
        }
        Ok(Array {
            element,
            length,
            bytes: start..self.position,
        })
    }

    pub(crate) fn tensor_info(&mut self, name: &str) -> Result<TensorInfo, Error> {
        let dimensions = self.u32()?;
        if dimensions > 4 {
            let reason = format!("tensor `{name}` has {dimensions} dimensions");
            return Err(Error::malformed(reason));
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
