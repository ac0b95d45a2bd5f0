//! Access to the files of `tests/reference`.

use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors};

/// The tiny models, by folder.
pub(crate) const TINY_MODELS: [&str; 12] = [
    "tiny-llama",
    "tiny-llama3",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-mistral",
    "tiny-phi3",
    "tiny-gemma2",
    "tiny-gemma3",
    "tiny-qwen3-moe",
    "tiny-gpt-oss",
    "tiny-qwen35",
    "tiny-qwen35-moe",
];

/// Returns the path of a reference file or folder.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/reference")
        .join(name)
}

/// The tensors of a safetensors file.
pub(crate) struct Tensors {
    bytes: Vec<u8>,
}

impl Tensors {
    /// Reads what PyTorch computed for a tiny model.
    pub(crate) fn expected(model: &str) -> Self {
        Self::read(&path(model).join("expected.safetensors"))
    }

    pub(crate) fn read(path: &Path) -> Self {
        Self {
            bytes: std::fs::read(path).unwrap(),
        }
    }

    /// Returns all names that start with `prefix`, without it.
    pub(crate) fn names(&self, prefix: &str) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let names = file.names().into_iter();
        names
            .filter_map(|name| Some(name.strip_prefix(prefix)?.to_owned()))
            .collect()
    }

    /// Returns the elements of a tensor of floats.
    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        let data = self.data(name, Dtype::F32);
        let (chunks, _) = data.as_chunks();
        chunks.iter().map(|&x| f32::from_le_bytes(x)).collect()
    }

    /// Returns the elements of a tensor of token ids.
    pub(crate) fn tokens(&self, name: &str) -> Vec<u32> {
        let data = self.data(name, Dtype::I64);
        let (chunks, _) = data.as_chunks();
        let tokens = chunks.iter().map(|&x| i64::from_le_bytes(x));
        tokens.map(|token| token.try_into().unwrap()).collect()
    }

    fn data(&self, name: &str, dtype: Dtype) -> &[u8] {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file
            .tensor(name)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(tensor.dtype(), dtype, "{name}");
        tensor.data()
    }
}

/// Returns the largest absolute difference, or infinity when one side is not finite.
pub(crate) fn largest_difference(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len(), "lengths differ");
    let differences = left.iter().zip(right).map(|(l, r)| (l - r).abs());
    differences.fold(0.0, |largest, x| {
        if x.is_finite() {
            largest.max(x)
        } else {
            f32::INFINITY
        }
    })
}

/// Returns the largest absolute difference, relative to the largest value on the right.
pub(crate) fn relative_difference(left: &[f32], right: &[f32]) -> f32 {
    // An expert that no token went to has no gradients.
    largest_difference(left, right) / largest(right).max(f32::MIN_POSITIVE)
}

/// Returns the largest absolute value.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, x| largest.max(x.abs()))
}
