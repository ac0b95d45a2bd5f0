//! Models in GGUF files, whose tensors are read as they are stored or dequantised.
//!
//! A GGUF file carries its configuration as metadata and its tensors under names of its own, with
//! the sizes of a shape in reverse order. What differs is put right here: names become those of
//! Hugging Face; in Llama files the rows of the query and key projections, which are stored in
//! interleaved rotary order, are put back in half-and-half order; experts, which share a tensor, are
//! told apart; norms that multiply by `1 + w`, stored with the one added, lose it; and heads of the gated
//! delta rule, which llama.cpp sorts otherwise, are put back, those of the outputs' columns by the model.

mod metadata;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use tinkrs_gguf::{Header, TensorInfo};

use super::mxfp4;
use super::order::{Order, Tiled};
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
        model.check_tensors()?;
        let probe = FeedForward::precision_probe(&model.config);
        model.precision = model
            .stored_bytes(&probe.hugging_face)?
            .format
            .as_dtype()
            .unwrap_or(Dtype::F32);
        Ok(model)
    }

    /// Checks that every tensor is there, and that no two are the same bytes.
    fn check_tensors(&self) -> Result<(), Error> {
        let mut ranges = Vec::with_capacity(self.table.tensors().len());
        for tensor in self.table.tensors() {
            let bytes = self.stored_bytes(&tensor.names.hugging_face)?.bytes;
            ranges.push((bytes.as_ptr_range(), &tensor.names.gguf));
        }
        ranges.sort_by_key(|(range, _)| range.start);
        for pair in ranges.windows(2) {
            let [(first, name), (second, other)] = pair else {
                continue;
            };
            if first.end > second.start {
                let reason = format!("tensors `{name}` and `{other}` overlap");
                return Err(Error::malformed(self.path.display().to_string(), reason));
            }
        }
        Ok(())
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
        // Files leave out axes of size one.
        let axes = |shape: &[usize]| -> Vec<usize> {
            shape.iter().copied().filter(|&size| size != 1).collect()
        };
        if axes(&info.shape) != axes(&expected) {
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
        Ok(Cow::Owned(mxfp4::to_q5_0(
            name,
            blocks,
            mxfp4::Order::Halves,
        )?))
    }

    /// Returns the order that the file has a tensor's rows in, and that of its columns.
    fn orders(&self, name: &str) -> (Order, Order) {
        let family = self.config.architecture.family();
        let rotary_heads = (self.table.tensor(name)).and_then(|tensor| tensor.rotary_heads);
        if rotary_heads.is_some() && family.gguf_interleaves_heads {
            return (Order::Interleaved(self.config.head_dim), Order::Same);
        }
        let part = name.split_once(".linear_attn.").map(|(_, part)| part);
        let (Some(part), Some(shape)) = (part, self.config.features.delta) else {
            return (Order::Same, Order::Same);
        };
        let tiled = |before: usize, width: usize| {
            Order::Tiled(Tiled {
                before,
                key_heads: shape.key_heads,
                shared: shape.shared(),
                width,
            })
        };
        match part {
            "in_proj_qkv.weight" | "conv1d.weight" => {
                (tiled(2 * shape.keys(), shape.value_dim), Order::Same)
            }
            "in_proj_z.weight" => (tiled(0, shape.value_dim), Order::Same),
            "in_proj_b.weight" | "in_proj_a.weight" | "A_log" | "dt_bias" => {
                (tiled(0, 1), Order::Same)
            }
            "out_proj.weight" => (Order::Same, tiled(0, shape.value_dim)),
            _ => (Order::Same, Order::Same),
        }
    }

    /// Returns how to get Hugging Face's number from the file's, where they differ.
    fn stored_otherwise(&self, name: &str) -> Option<fn(f32) -> f32> {
        let adds_one = self.config.features.norms_add_one && name.ends_with("norm.weight");
        if adds_one && !name.ends_with(".linear_attn.norm.weight") {
            return Some(|stored| stored - 1.0);
        }
        name.ends_with(".linear_attn.A_log")
            .then_some(|stored| (-stored).ln())
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
        let (rows, columns) = self.orders(name);
        let outputs = shape.first().copied().unwrap_or(1).max(1);
        let bytes = match rows {
            Order::Same => bytes,
            order => Cow::Owned(order.restore(&bytes, bytes.len() / outputs)),
        };
        let bytes = match columns {
            Order::Same => bytes,
            order => {
                let rows = bytes.chunks_exact((bytes.len() / outputs).max(1));
                let rows = rows.map(|row| order.restore(row, dtype.size_bytes()));
                Cow::Owned(rows.collect::<Vec<_>>().concat())
            }
        };
        let tensor = TensorView::new(name, dtype, shape.to_vec(), bytes)?;
        let Some(original) = self.stored_otherwise(name) else {
            return Ok(tensor);
        };
        let mut values = tensor.to_f32();
        values
            .iter_mut()
            .for_each(|value| *value = original(*value));
        TensorView::from_f32(name, Dtype::F32, shape.to_vec(), &values)
    }

    fn precision(&self) -> Dtype {
        self.precision
    }

    fn stored(&self, name: &str) -> Result<StoredTensor<'_>, Error> {
        let found = self.stored_bytes(name)?;
        let (shape, format) = (found.shape, found.format);
        let bytes = self.blocks(name, &found)?;
        let (rows, columns) = self.orders(name);
        let tensor = StoredTensor::new(name, format, shape.to_vec(), bytes)?;
        Ok(tensor.ordered(rows, columns))
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
