//! One `.safetensors` file, mapped into memory.
//!
//! The header is checked when the file is opened, so a truncated file is refused before anything
//! is computed from it. Tensors borrow from the mapping.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::tensor::{Dtype as FileDtype, Metadata, SafeTensors, TensorInfo};

use super::{Dtype, TensorView};
use crate::Error;

/// A mapped file and where its tensors are.
#[derive(Debug)]
pub(crate) struct SafetensorsFile {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    data_start: usize,
}

impl SafetensorsFile {
    /// Maps a file and checks its header.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let map = map_file(path)?;
        let (header_len, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|error| Error::malformed(path.display().to_string(), error.to_string()))?;
        // Eight bytes of header length come before the header.
        let data_start = header_len + 8;
        Ok(Self {
            path: path.to_owned(),
            map,
            metadata,
            data_start,
        })
    }

    /// Returns the names of all tensors.
    pub(crate) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Returns the shape of a tensor without looking at its elements.
    pub(crate) fn shape(&self, name: &str) -> Result<&[usize], Error> {
        Ok(&self.info(name)?.shape)
    }

    /// Returns one tensor.
    pub(crate) fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let info = self.info(name)?;
        let dtype = match info.dtype {
            FileDtype::F32 => Dtype::F32,
            FileDtype::F16 => Dtype::F16,
            FileDtype::BF16 => Dtype::Bf16,
            other => {
                let option = format!("element type of `{name}`");
                return Err(Error::unsupported(option, other, "F32, F16 and BF16"));
            }
        };
        let (start, end) = info.data_offsets;
        let bytes = self.map.get(self.data_start + start..self.data_start + end);
        let bytes = bytes.ok_or_else(|| {
            Error::malformed(
                self.path.display().to_string(),
                format!("`{name}` is cut off"),
            )
        })?;
        TensorView::new(name, dtype, info.shape.clone(), bytes)
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.metadata
            .info(name)
            .ok_or_else(|| Error::MissingTensor {
                tensor: name.to_owned(),
                origin: self.path.display().to_string(),
            })
    }
}

/// Maps a whole file for reading.
pub(crate) fn map_file(path: &Path) -> Result<Mmap, Error> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    #[expect(
        unsafe_code,
        reason = "mapping is unsafe because another process may change the file; model files are \
                  replaced by renaming, which leaves the mapped contents as they were"
    )]
    let map = unsafe { Mmap::map(&file) };
    map.map_err(Error::io("map", path))
}

/// Lays tensors out in the format of the file.
pub(crate) fn encode(tensors: &[TensorView<'_>]) -> Result<Vec<u8>, Error> {
    let views = tensors
        .iter()
        .map(|tensor| {
            let dtype = match tensor.dtype() {
                Dtype::F32 => FileDtype::F32,
                Dtype::F16 => FileDtype::F16,
                Dtype::Bf16 => FileDtype::BF16,
            };
            let view = safetensors::tensor::TensorView::new(
                dtype,
                tensor.shape().to_vec(),
                tensor.bytes(),
            );
            Ok((tensor.name(), view.map_err(invalid)?))
        })
        .collect::<Result<Vec<_>, Error>>()?;
    // `transformers` refuses a file that does not say which framework's layout it follows.
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize(views, Some(metadata)).map_err(invalid)
}

fn invalid(error: safetensors::SafeTensorError) -> Error {
    Error::malformed("the tensors to save", error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tensors_survive_a_round_trip_in_every_format() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        let tensors: Vec<_> = [("c", Dtype::F32), ("a", Dtype::F16), ("b", Dtype::Bf16)]
            .map(|(name, dtype)| {
                TensorView::from_f32(name, dtype, vec![3, 1], &[1.0, -2.5, 0.125]).unwrap()
            })
            .into();
        std::fs::write(&path, encode(&tensors).unwrap()).unwrap();

        let file = SafetensorsFile::open(&path).unwrap();
        assert_eq!(file.names().len(), 3);
        for tensor in &tensors {
            let read = file.tensor(tensor.name()).unwrap();
            assert_eq!(
                (read.dtype(), read.shape()),
                (tensor.dtype(), tensor.shape())
            );
            assert_eq!(read.bytes(), tensor.bytes());
        }
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        let tensor = TensorView::from_f32("a", Dtype::F32, vec![2], &[1.0, 2.0]).unwrap();
        let bytes = encode(&[tensor]).unwrap();
        for length in 0..bytes.len() {
            std::fs::write(&path, &bytes[..length]).unwrap();
            assert!(
                SafetensorsFile::open(&path).is_err(),
                "{length} of {} bytes",
                bytes.len()
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_file_with_changed_bytes_is_read_or_refused(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4)
        ) {
            let tensor = TensorView::from_f32("a", Dtype::F32, vec![2], &[1.0, 2.0]).unwrap();
            let mut bytes = encode(&[tensor]).unwrap();
            for (index, byte) in changes {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("t.safetensors");
            std::fs::write(&path, bytes).unwrap();
            if let Ok(file) = SafetensorsFile::open(&path) {
                for name in file.names() {
                    let _ = file.tensor(&name);
                }
            }
        }
    }
}
