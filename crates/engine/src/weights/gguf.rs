//! Models in GGUF files, whose tensors are read as they are stored or dequantised.
//!
//! A GGUF file carries its configuration as metadata and its tensors under names of its own, with
//! the sizes of a shape in reverse order. What differs is put right here: names become those of
//! Hugging Face; in Llama files the rows of the query and key projections, which are stored in
//! interleaved rotary order, are put back in half-and-half order; experts, which share a tensor, are
//! told apart; and norms that multiply by `1 + w`, stored with the one added, lose it.

mod metadata;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use tinkrs_gguf::{Header, TensorInfo};

use super::mxfp4::{self, Order};
use super::safetensors::{self, map_file};
use super::{Dtype, Format, StoredTensor, TensorView, WeightSource};
use crate::model::feed_forward::FeedForward;
use crate::model::tensor_table::TensorTable;
use crate::{Error, ModelConfig};

/// The weights of a GGUF file, mapped into memory.
///
/// A loaded model keeps tensors as they are stored: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K
/// or Q6_K; MXFP4 becomes Q5_0, which holds it exactly. As a [`TensorView`], a quantised one becomes f32, which holds its
/// values exactly, too.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    map: Mmap,
    header: Header,
    config: ModelConfig,
    table: TensorTable,
    precision: Dtype,
}

/// A tensor of a file.
struct Found<'a> {
    shape: &'a [usize],
    /// What it is known as.
    format: Format,
    bytes: &'a [u8],
    /// Whether the bytes are MXFP4, and not of the format.
    is_mxfp4: bool,
}

impl GgufFile {
    /// Opens a file and checks that it holds a whole model.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is malformed, the model or a tensor's format is not
    /// supported, or a tensor is missing or has the wrong shape.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let map = map_file(&path)?;
        let header = Header::parse(&map)
            .map_err(|error| Error::malformed(path.display().to_string(), error.to_string()))?;
        let config = metadata::config(&header, &map)?;
        let mut model = Self {
            path,
            map,
            header,
            table: TensorTable::new(&config),
            config,
            precision: Dtype::F32,
        };
        for tensor in model.table.tensors() {
            model.stored_bytes(&tensor.names.hugging_face)?;
        }
        let probe = FeedForward::precision_probe(&model.config);
        model.precision = model
            .stored_bytes(&probe.hugging_face)?
            .format
            .as_dtype()
            .unwrap_or(Dtype::F32);
        Ok(model)
    }

    /// Finds a tensor by its Hugging Face name.
    fn stored_bytes(&self, name: &str) -> Result<Found<'_>, Error> {
        let missing = || Error::MissingTensor {
            tensor: name.to_owned(),
            origin: self.path.display().to_string(),
        };
        let tensor = self.table.tensor(name).ok_or_else(missing)?;
        let info: &TensorInfo =
            (self.header.tensors.get(&tensor.names.gguf)).ok_or_else(missing)?;
        let count = tensor.part.map(|part| part.count);
        let expected: Vec<usize> = count.into_iter().chain(tensor.shape.clone()).collect();
        if info.shape != expected {
            return Err(Error::Shape {
                tensor: name.to_owned(),
                expected,
                got: info.shape.clone(),
            });
        }
        let is_mxfp4 = info.format == mxfp4::GGUF_ID;
        let (format, block) = match is_mxfp4 {
            true => (Format::Q5_0, mxfp4::BLOCK),
            false => {
                let format = Format::from_id(info.format, name)?;
                (format, format.block())
            }
        };
        let bytes = info
            .bytes(block, self.header.data_start, &self.map)
            .ok_or_else(|| {
                let reason = format!("tensor `{name}` reaches past its end");
                Error::malformed(self.path.display().to_string(), reason)
            })?;
        let bytes = match tensor.part {
            None => bytes,
            Some(part) => {
                let length = bytes.len() / part.count;
                &bytes[part.index * length..][..length]
            }
        };
        Ok(Found {
            shape: &tensor.shape,
            format,
            bytes,
            is_mxfp4,
        })
    }

    /// The blocks of a tensor in the format that it is known as.
    fn blocks<'a>(&self, name: &str, found: &Found<'a>) -> Result<Cow<'a, [u8]>, Error> {
        if !found.is_mxfp4 {
            return Ok(Cow::Borrowed(found.bytes));
        }
        let blocks = found.bytes.chunks_exact(mxfp4::BLOCK.1);
        let blocks = blocks.map(|block| (block[0], &block[1..]));
        Ok(Cow::Owned(mxfp4::to_q5_0(name, blocks, Order::Halves)?))
    }

    /// Returns the number of heads whose rows a tensor holds in interleaved order.
    fn interleaved_heads(&self, name: &str) -> Option<usize> {
        let family = self.config.architecture.family();
        let rotary_heads = self.table.tensor(name)?.rotary_heads;
        rotary_heads.filter(|_| family.gguf_interleaves_heads)
    }
}

impl WeightSource for GgufFile {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let found = self.stored_bytes(name)?;
        let (shape, format) = (found.shape, found.format);
        let bytes = self.blocks(name, &found)?;
        let (dtype, bytes) = match format.as_dtype() {
            Some(dtype) => (dtype, bytes),
            None => (Dtype::F32, Cow::Owned(format.dequantise_to_bytes(&bytes))),
        };
        let bytes = match self.interleaved_heads(name) {
            Some(heads) => Cow::Owned(deinterleave(&bytes, heads, self.config.head_dim)),
            None => bytes,
        };
        let tensor = TensorView::new(name, dtype, shape.to_vec(), bytes)?;
        if !(self.config.features.norms_add_one && name.ends_with("norm.weight")) {
            return Ok(tensor);
        }
        let mut values = tensor.to_f32();
        values.iter_mut().for_each(|value| *value -= 1.0);
        TensorView::from_f32(name, Dtype::F32, shape.to_vec(), &values)
    }

    fn precision(&self) -> Dtype {
        self.precision
    }

    fn stored(&self, name: &str) -> Result<StoredTensor<'_>, Error> {
        let found = self.stored_bytes(name)?;
        let (shape, format) = (found.shape, found.format);
        let bytes = self.blocks(name, &found)?;
        let heads = self.interleaved_heads(name);
        let interleaved = heads.map(|_| self.config.head_dim);
        let tensor = StoredTensor::new(name, format, shape.to_vec(), bytes)?;
        Ok(tensor.interleaved(interleaved))
    }

    fn format(&self, name: &str) -> Result<Format, Error> {
        Ok(self.stored_bytes(name)?.format)
    }

    fn release(&self, name: &str) {
        if let Ok(found) = self.stored_bytes(name) {
            safetensors::forget(&self.map, found.bytes);
        }
    }
}

/// Moves row `j · head_dim / 2 + i` of each head to row `2i + j`: from Hugging Face's order to the one that
/// Llama's GGUF files have.
#[must_use]
pub fn interleave<T: Copy>(rows: &[T], heads: usize, head_dim: usize) -> Vec<T> {
    let row = rows.len() / (heads * head_dim);
    let mut interleaved = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(head_dim * row) {
        for pair in 0..head_dim / 2 {
            for half in 0..2 {
                let start = (half * head_dim / 2 + pair) * row;
                interleaved.extend_from_slice(&head[start..start + row]);
            }
        }
    }
    interleaved
}

/// Moves row `2i + j` of each head to row `j · head_dim / 2 + i`.
///
/// GGUF keeps the two numbers that rotate together side by side; Hugging Face keeps the first of
/// every pair in a head's first half and the second in its second half.
fn deinterleave(bytes: &[u8], heads: usize, head_dim: usize) -> Vec<u8> {
    let row = bytes.len() / (heads * head_dim);
    let mut rows = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(head_dim * row) {
        for half in 0..2 {
            for pair in 0..head_dim / 2 {
                let start = (2 * pair + half) * row;
                rows.extend_from_slice(&head[start..start + row]);
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_each_head_are_separated_into_halves() {
        // Two heads of four rows, one byte a row; rows are named by their Hugging Face order.
        let interleaved = [0, 2, 1, 3, 4, 6, 5, 7];
        let in_order = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(deinterleave(&interleaved, 2, 4), in_order);
        assert_eq!(interleave(&in_order, 2, 4), interleaved);
    }
}
