//! Access to the files of `tests/reference`.

use std::path::{Path, PathBuf};

/// The four tiny models, by folder.
pub(crate) const TINY_MODELS: [&str; 4] = ["tiny-llama", "tiny-llama3", "tiny-qwen2", "tiny-qwen3"];

/// Returns the path of a reference file or folder.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/reference")
        .join(name)
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
