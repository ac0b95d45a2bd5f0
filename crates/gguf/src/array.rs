//! Arrays in the metadata, such as the vocabulary's tokens.

use std::ops::Range;

use crate::cursor::Cursor;
use crate::header::Value;

/// The type of a value that is not an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
    Bool,
    Text,
}

impl Element {
    /// Returns the type that has a number in files.
    pub(crate) fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Text,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Returns the bytes of one value, if all have the same.
    pub(crate) fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text => None,
        }
    }
}

/// An array in the metadata, of which the header only knows where it is.
///
/// A vocabulary has hundreds of thousands of elements that many readers have no use for. Those who
/// do ask for them with the same bytes that the header was parsed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    pub(crate) element: Element,
    pub(crate) length: usize,
    pub(crate) bytes: Range<usize>,
}

impl Array {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the elements if they are texts in UTF-8.
    pub fn texts<'a>(&self, file: &'a [u8]) -> Option<Vec<&'a str>> {
        if self.element != Element::Text {
            return None;
        }
        let mut cursor = Cursor::new(file.get(self.bytes.clone())?);
        (0..self.length).map(|_| cursor.str().ok()).collect()
    }

    /// Returns the elements if they are integers.
    pub fn integers(&self, file: &[u8]) -> Option<Vec<i128>> {
        self.numbers(file, |value| match value {
            Value::Integer(integer) => Some(integer),
            _ => None,
        })
    }

    /// Returns the elements if they are floating-point numbers.
    pub fn floats(&self, file: &[u8]) -> Option<Vec<f64>> {
        self.numbers(file, |value| match value {
            Value::Float(float) => Some(float),
            _ => None,
        })
    }

    /// Returns the elements if they are truth values.
    pub fn bools(&self, file: &[u8]) -> Option<Vec<bool>> {
        self.numbers(file, |value| match value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    fn numbers<T>(&self, file: &[u8], read: impl Fn(Value) -> Option<T>) -> Option<Vec<T>> {
        // Texts are refused before one of them is copied.
        self.element.size()?;
        let mut cursor = Cursor::new(file.get(self.bytes.clone())?);
        let mut next = || read(cursor.scalar(self.element).ok()?);
        (0..self.length).map(|_| next()).collect()
    }
}
