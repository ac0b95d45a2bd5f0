//! Numbers of each step, as JSON lines.

use crate::Error;
use crate::data::{open_to_add, parse_jsonl, read_whole_lines};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The number that every step has: how many tokens it trained on. Rows without it were measured between steps.
pub(crate) const TOKENS: &str = "tokens";

/// Named numbers.
pub type Numbers = BTreeMap<String, f64>;

/// The numbers of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepNumbers {
    /// Which step, from 0.
    pub step: usize,
    /// The numbers. Those that are not finite are left out of the file, which could not hold them.
    #[serde(flatten)]
    pub numbers: Numbers,
}

/// Puts a prefix in front of every name, to keep numbers of different origin apart.
pub(crate) fn prefixed(prefix: &str, numbers: Numbers) -> impl Iterator<Item = (String, f64)> {
    numbers
        .into_iter()
        .map(move |(name, number)| (format!("{prefix}{name}"), number))
}

/// A metrics file that is open for writing.
#[derive(Debug)]
pub struct MetricsFile {
    file: File,
    path: PathBuf,
}

impl MetricsFile {
    /// Opens the file to add to it.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let (file, _) = open_to_add(&path)?;
        Ok(Self { file, path })
    }

    /// Drops what is there about steps from `step` on, since they are done again. What was measured before
    /// that step, such as a loss on evaluation examples, stays.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn drop_from(&mut self, step: usize) -> Result<(), Error> {
        let bytes = std::fs::read(&self.path).map_err(Error::file("read", &self.path))?;
        let text = String::from_utf8_lossy(&bytes);
        let rows: Vec<StepNumbers> = parse_jsonl(&text, &self.path)?;
        let is_kept = |row: &&StepNumbers| {
            row.step < step || (row.step == step && !row.numbers.contains_key(TOKENS))
        };
        let kept: Vec<_> = rows.iter().filter(is_kept).collect();
        if kept.len() == rows.len() {
            return Ok(());
        }
        // The whole file or none of it: a crash here must not lose the numbers of earlier steps.
        let beside = self.path.with_extension("part");
        let lines: Result<Vec<_>, _> = kept.into_iter().map(serde_json::to_string).collect();
        let lines = lines.map_err(std::io::Error::from);
        let text = lines.map(|lines| lines.iter().map(|line| format!("{line}\n")).collect());
        let written = text.and_then(|text: String| std::fs::write(&beside, text));
        let written = written.and_then(|()| std::fs::rename(&beside, &self.path));
        written.map_err(Error::file("write", &self.path))?;
        (self.file, _) = open_to_add(&self.path)?;
        Ok(())
    }

    /// Adds the numbers of a step.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(&mut self, step: usize, numbers: &Numbers) -> Result<(), Error> {
        let finite = numbers.iter().filter(|(_, number)| number.is_finite());
        let line = StepNumbers {
            step,
            numbers: finite
                .map(|(name, number)| (name.clone(), *number))
                .collect(),
        };
        let text = serde_json::to_string(&line).map_err(std::io::Error::from);
        let written = text.and_then(|text| self.file.write_all(format!("{text}\n").as_bytes()));
        written.map_err(Error::file("write", &self.path))
    }
}

/// Reads a metrics file: for each step and name the number that was written last, since earlier versions
/// kept the numbers of steps that a resumed run did again.
///
/// # Errors
/// If the file cannot be read, or a line of it other than a last one cut short.
pub fn read_metrics(path: impl AsRef<Path>) -> Result<BTreeMap<usize, Numbers>, Error> {
    let mut steps: BTreeMap<usize, Numbers> = BTreeMap::new();
    for line in read_whole_lines::<StepNumbers>(path.as_ref())? {
        steps.entry(line.step).or_default().extend(line.numbers);
    }
    Ok(steps)
}

/// Returns of how many pairs the better answer was told from the worse, and by how much.
pub(crate) fn told_apart(prefix: &str, metrics: &Numbers) -> impl Iterator<Item = (String, f64)> {
    ["accuracy", "margin"].into_iter().filter_map(move |name| {
        let number = metrics.get(&format!("{name}:mean"))?;
        Some((format!("{prefix}{name}"), *number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_of_a_step_counts_and_infinite_ones_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let numbers = |loss: f64| Numbers::from([("loss".to_owned(), loss)]);
        let mut file = MetricsFile::open(&path).unwrap();
        file.write(0, &numbers(2.0)).unwrap();
        file.write(1, &numbers(f64::NAN)).unwrap();
        file.write(0, &numbers(1.5)).unwrap();
        file.write(0, &Numbers::from([("eval_loss".to_owned(), 3.0)]))
            .unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}{{\"step\": 9")).unwrap();
        let read = read_metrics(&path).unwrap();
        assert_eq!(read[&0]["loss"], 1.5);
        assert_eq!(read[&0]["eval_loss"], 3.0);
        assert!(read[&1].is_empty());
        assert_eq!(read.len(), 2);
        // A run that goes on begins a new line.
        let mut file = MetricsFile::open(&path).unwrap();
        file.write(2, &numbers(1.0)).unwrap();
        assert_eq!(read_metrics(&path).unwrap()[&2]["loss"], 1.0);
    }

    #[test]
    fn steps_that_are_done_again_leave_no_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = MetricsFile::open(&path).unwrap();
        let eval = Numbers::from([("eval_loss".to_owned(), 3.0)]);
        for step in 0..4 {
            file.write(step, &eval).unwrap();
            file.write(step, &Numbers::from([(TOKENS.to_owned(), 7.0)]))
                .unwrap();
        }
        file.drop_from(2).unwrap();
        let rows: Vec<StepNumbers> = read_whole_lines(&path).unwrap();
        let steps: Vec<_> = rows.iter().map(|row| row.step).collect();
        assert_eq!(steps, [0, 0, 1, 1, 2]);
        assert_eq!(rows[4].numbers, eval, "measured before step 2");
        file.write(2, &eval).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 6, "it adds to the new file");
    }
}
