//! One `.safetensors` file, mapped into memory.
//!
//! The header is checked when the file is opened, so a truncated file is refused before anything
//! is computed from it. Tensors borrow from the mapping.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::tensor::{Dtype as FileDtype, Metadata, SafeTensors, TensorInfo};
use serde_json::{Map, Value};

use super::{Dtype, TensorView};
use crate::{Error, files};

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

    /// Returns the bytes and the shape of a tensor of bytes.
    pub(crate) fn bytes(&self, name: &str) -> Result<(&[u8], &[usize]), Error> {
        let info = self.info(name)?;
        if info.dtype != FileDtype::U8 {
            let option = format!("element type of `{name}`");
            return Err(Error::unsupported(option, info.dtype, "U8"));
        }
        let (start, end) = info.data_offsets;
        let bytes = self.map.get(self.data_start + start..self.data_start + end);
        let bytes = bytes.ok_or_else(|| {
            let problem = format!("`{name}` is cut off");
            Error::malformed(self.path.display().to_string(), problem)
        })?;
        Ok((bytes, &info.shape))
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

    /// Lets the system take back the memory of a tensor until it is read again.
    pub(crate) fn release(&self, name: &str) {
        self.release_part(name, 0, 1);
    }

    /// The same of one of so many equal parts of a tensor.
    pub(crate) fn release_part(&self, name: &str, index: usize, count: usize) {
        let bytes = self.info(name).ok().and_then(|info| {
            let (start, end) = info.data_offsets;
            self.map.get(self.data_start + start..self.data_start + end)
        });
        if let Some(bytes) = bytes {
            let length = bytes.len() / count.max(1);
            forget(&self.map, &bytes[index * length..][..length]);
        }
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

/// Lets the system take back the memory of a part of a mapped file. It is read from the file again when it is
/// used again, so failing to do so changes nothing but the memory of this process.
#[cfg(unix)]
pub(crate) fn forget(map: &Mmap, part: &[u8]) {
    let start = part.as_ptr() as usize - map.as_ptr() as usize;
    #[expect(
        unsafe_code,
        reason = "the advice may drop what was written to private memory, but a map of a file that is only \
                  read has nothing but the file's contents"
    )]
    // SAFETY: as the reason says; the range lies in the map, since the part does.
    let _ = unsafe {
        map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, part.len())
    };
}

/// Elsewhere the system decides by itself.
#[cfg(not(unix))]
pub(crate) fn forget(_: &Mmap, _: &[u8]) {}

/// Writes a file of tensors, replacing it whole or not at all. They are not copied: the largest may be as
/// large as the memory allows.
pub(crate) fn save(path: &Path, tensors: &[TensorView<'_>]) -> Result<(), Error> {
    let outlines: Vec<_> = tensors.iter().map(Outline::of).collect();
    let layout = Layout::new(&outlines)?;
    files::replace_with(path, |file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        layout.write(tensors, &mut file)?;
        file.flush()
    })
}

/// Gives tensors of a file other names, replacing the file whole or not at all. Returns whether there were any.
pub(crate) fn rename(
    path: &Path,
    new_name: impl Fn(&str) -> Option<String>,
) -> Result<bool, Error> {
    let file = SafetensorsFile::open(path)?;
    let wrong = |problem: String| Error::malformed(path.display().to_string(), problem);
    let members: Map<String, Value> =
        serde_json::from_slice(&file.map[8..file.data_start]).map_err(|e| wrong(e.to_string()))?;
    let mut renamed = Map::new();
    let mut is_changed = false;
    for (name, member) in members {
        let name = match new_name(&name) {
            Some(new) => {
                is_changed = true;
                new
            }
            None => name,
        };
        if let Some(twice) = renamed.insert(name.clone(), member) {
            return Err(wrong(format!(
                "two tensors would be `{name}`, the other {twice}"
            )));
        }
    }
    if !is_changed {
        return Ok(false);
    }
    let header = padded(serde_json::to_vec(&renamed).expect("it was JSON before"));
    files::replace_with(path, |to| {
        to.write_all(&(header.len() as u64).to_le_bytes())?;
        to.write_all(&header)?;
        to.write_all(&file.map[file.data_start..])
    })?;
    Ok(true)
}

/// Fills a header up, so that the tensors behind it are aligned.
fn padded(mut header: Vec<u8>) -> Vec<u8> {
    header.resize(header.len().next_multiple_of(8), b' ');
    header
}

/// What a file says of a tensor before its elements come.
#[derive(Clone, Debug)]
pub struct Outline {
    /// Hugging Face name.
    pub name: String,
    /// Format of the elements.
    pub dtype: Dtype,
    /// Sizes, slowest first.
    pub shape: Vec<usize>,
}

impl Outline {
    fn of(tensor: &TensorView<'_>) -> Self {
        Self {
            name: tensor.name().to_owned(),
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
        }
    }

    /// Returns the bytes of the elements.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }
}

/// The order of tensors in their file, and its header.
pub(super) struct Layout {
    header: Vec<u8>,
    /// Places in the list that it was made from.
    pub(super) order: Vec<usize>,
}

impl Layout {
    /// The order, widest elements first and then by name, is that of the `safetensors` crate.
    pub(super) fn new(tensors: &[Outline]) -> Result<Self, Error> {
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by(|&left, &right| {
            let (left, right) = (&tensors[left], &tensors[right]);
            let by_type = file_dtype(right.dtype).cmp(&file_dtype(left.dtype));
            by_type.then(left.name.cmp(&right.name))
        });
        let mut end = 0;
        let infos = order.iter().map(|&place| {
            let tensor = &tensors[place];
            let start = end;
            end += tensor.size_bytes();
            let info = TensorInfo {
                dtype: file_dtype(tensor.dtype),
                shape: tensor.shape.clone(),
                data_offsets: (start, end),
            };
            (tensor.name.clone(), info)
        });
        let infos = infos.collect();
        // `transformers` refuses a file that does not say which framework's layout it follows.
        let format = [("format".to_owned(), "pt".to_owned())].into();
        let metadata = Metadata::new(Some(format), infos).map_err(invalid)?;
        let header = padded(serde_json::to_vec(&metadata).expect("names and numbers"));
        Ok(Self { header, order })
    }

    pub(super) fn write_header(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&(self.header.len() as u64).to_le_bytes())?;
        to.write_all(&self.header)
    }

    /// Writes the file of the tensors that this was made from.
    fn write(&self, tensors: &[TensorView<'_>], to: &mut impl Write) -> io::Result<()> {
        self.write_header(to)?;
        let mut order = self.order.iter();
        order.try_for_each(|&place| to.write_all(tensors[place].bytes()))
    }
}

fn file_dtype(dtype: Dtype) -> FileDtype {
    match dtype {
        Dtype::F32 => FileDtype::F32,
        Dtype::F16 => FileDtype::F16,
        Dtype::Bf16 => FileDtype::BF16,
    }
}

/// Lays tensors out in the format of the file.
#[cfg(test)]
pub(crate) fn encode(tensors: &[TensorView<'_>]) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let outlines: Vec<_> = tensors.iter().map(Outline::of).collect();
    let written = Layout::new(&outlines)?.write(tensors, &mut bytes);
    written.expect("a vector takes what is written");
    Ok(bytes)
}

fn invalid(error: safetensors::SafeTensorError) -> Error {
    Error::malformed("the tensors to save", error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn files_are_those_of_the_safetensors_crate() {
        let (wide, narrow) = ([1.0, -2.5, 0.125], [0.5, 7.0]);
        let tensors = [
            TensorView::from_f32("b", Dtype::Bf16, vec![2], &narrow).unwrap(),
            TensorView::borrow_f32("z", vec![3, 1], &wide).unwrap(),
            TensorView::from_f32("a", Dtype::F32, vec![2], &narrow).unwrap(),
            TensorView::from_f32("c", Dtype::F16, vec![2, 1], &narrow).unwrap(),
        ];
        let views = tensors.iter().map(|tensor| {
            let (dtype, shape) = (file_dtype(tensor.dtype()), tensor.shape().to_vec());
            let view = safetensors::tensor::TensorView::new(dtype, shape, tensor.bytes());
            (tensor.name(), view.unwrap())
        });
        let format = [("format".to_owned(), "pt".to_owned())].into();
        let expected = safetensors::serialize(views, Some(format)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        save(&path, &tensors).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        assert_eq!(encode(&tensors).unwrap(), expected);
    }

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
