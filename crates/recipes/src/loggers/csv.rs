//! Metrics as a table: `metrics.csv` in the folder of a run.

use super::MetricsLog;
use crate::Error;
use crate::run::{Numbers, read_metrics};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A table with a row for each step and a column for each number. It says what `metrics.jsonl` does.
#[derive(Debug)]
pub struct CsvLog {
    path: PathBuf,
    columns: BTreeSet<String>,
    rows: BTreeMap<usize, Numbers>,
}

impl CsvLog {
    /// Opens the table of a run's folder. Rows that the run has already are there.
    ///
    /// # Errors
    /// If the metrics cannot be read, or the table cannot be written.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let metrics = folder.join("metrics.jsonl");
        let rows = if metrics.exists() {
            read_metrics(&metrics)?
        } else {
            BTreeMap::new()
        };
        let log = Self {
            path: folder.join("metrics.csv"),
            columns: rows.values().flat_map(Numbers::keys).cloned().collect(),
            rows,
        };
        log.rewrite()?;
        Ok(log)
    }

    fn row(&self, step: usize) -> String {
        let numbers = self.rows.get(&step);
        let cell = |column: &String| {
            let number = numbers.and_then(|numbers| numbers.get(column));
            number
                .filter(|number| number.is_finite())
                .map_or(String::new(), ToString::to_string)
        };
        let cells: Vec<_> = self.columns.iter().map(cell).collect();
        format!("{step},{}\n", cells.join(","))
    }

    fn rewrite(&self) -> Result<(), Error> {
        let names: Vec<_> = self.columns.iter().map(|name| quoted(name)).collect();
        let mut text = format!("step,{}\n", names.join(","));
        text.extend(self.rows.keys().map(|step| self.row(*step)));
        // The whole table or the one before.
        let beside = self.path.with_extension("csv.part");
        let written = std::fs::write(&beside, text);
        let written = written.and_then(|()| std::fs::rename(&beside, &self.path));
        written.map_err(Error::file("write", &self.path))
    }
}

fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_owned()
    }
}

impl MetricsLog for CsvLog {
    fn write(&mut self, step: usize, numbers: &Numbers) -> Result<(), Error> {
        let is_last = self
            .rows
            .last_key_value()
            .is_none_or(|(last, _)| *last < step);
        let is_known = numbers.keys().all(|name| self.columns.contains(name));
        self.rows.entry(step).or_default().extend(numbers.clone());
        self.columns.extend(numbers.keys().cloned());
        if !is_last || !is_known {
            return self.rewrite();
        }
        let file = OpenOptions::new().append(true).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(self.row(step).as_bytes()));
        written.map_err(Error::file("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_row_a_step_and_grows_by_columns() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = |pairs: &[(&str, f64)]| -> Numbers {
            pairs
                .iter()
                .map(|(name, number)| ((*name).to_owned(), *number))
                .collect()
        };
        let read = || std::fs::read_to_string(folder.path().join("metrics.csv")).unwrap();
        let mut log = CsvLog::open(folder.path()).unwrap();
        log.write(0, &numbers(&[("loss", 2.5)])).unwrap();
        log.write(1, &numbers(&[("loss", 2.0)])).unwrap();
        assert_eq!(read(), "step,loss\n0,2.5\n1,2\n");
        log.write(1, &numbers(&[("eval", 1.5)])).unwrap();
        log.write(2, &numbers(&[("loss", f64::NAN), ("a,b", 1.0)]))
            .unwrap();
        assert_eq!(read(), "step,\"a,b\",eval,loss\n0,,,2.5\n1,,1.5,2\n2,1,,\n");
        // A run that resumes has dropped what it does again from its own file.
        let metrics = "{\"step\": 0, \"loss\": 2.5}\n";
        std::fs::write(folder.path().join("metrics.jsonl"), metrics).unwrap();
        CsvLog::open(folder.path()).unwrap();
        assert_eq!(read(), "step,loss\n0,2.5\n");
    }
}
