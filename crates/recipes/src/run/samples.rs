//! What the model said, kept for the report.

use crate::Error;
use crate::data::{open_to_add, read_whole_lines};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;

/// One answer of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleRecord {
    /// How many steps the model had seen; 0 is before training.
    pub steps: usize,
    /// What it was asked.
    pub prompt: String,
    /// What it said.
    pub answer: String,
    /// Its grade, if it was graded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
}

/// Adds answers to the samples of a run folder.
///
/// # Errors
/// If they cannot be written.
pub fn write_samples(folder: impl AsRef<Path>, samples: &[SampleRecord]) -> Result<(), Error> {
    let path = folder.as_ref().join("samples.jsonl");
    let mut text = String::new();
    for sample in samples {
        let line = serde_json::to_string(sample).map_err(std::io::Error::from);
        text += &line.map_err(Error::file("write", &path))?;
        text.push('\n');
    }
    let (mut file, _) = open_to_add(&path)?;
    let written = file.write_all(text.as_bytes());
    written.map_err(Error::file("write", &path))
}

/// Reads the samples of a run folder; there may be none.
///
/// # Errors
/// If there are some and they cannot be read, other than a last one that was cut short.
pub fn read_samples(folder: impl AsRef<Path>) -> Result<Vec<SampleRecord>, Error> {
    let path = folder.as_ref().join("samples.jsonl");
    if path.exists() {
        read_whole_lines(&path)
    } else {
        Ok(Vec::new())
    }
}
