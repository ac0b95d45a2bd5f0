//! The files of a folder of data, as `datasets` of Hugging Face saves or the Hub has them.
//!
//! `save_to_disk` writes `state.json` and Arrow streams, or a folder of that kind for each split below
//! `dataset_dict.json`. A repository of the Hub has files with the name of the split, such as
//! `data/train-00000-of-00001.parquet`.

use crate::Error;
use serde::Deserialize;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The split that is meant where several are there.
const TRAIN: &str = "train";

const ENDINGS: [&str; 8] = [
    "parquet", "arrow", "jsonl", "ndjson", "json", "csv", "tsv", "txt",
];

/// Files of a folder, in order, and what the folder is.
#[derive(Debug, PartialEq)]
pub(super) struct Folder {
    pub(super) files: Vec<PathBuf>,
    pub(super) kind: &'static str,
}

#[derive(Deserialize)]
struct State {
    #[serde(rename = "_data_files")]
    files: Vec<DataFile>,
}

#[derive(Deserialize)]
struct DataFile {
    filename: String,
}

#[derive(Deserialize)]
struct Splits {
    splits: Vec<String>,
}

/// Finds the files of a folder.
pub(super) fn files(folder: &Path) -> Result<Folder, Error> {
    if folder.join("dataset_dict.json").is_file() {
        let Splits { splits } = read(&folder.join("dataset_dict.json"))?;
        let split = match splits.iter().find(|split| *split == TRAIN) {
            Some(split) => split,
            None => match splits.as_slice() {
                [only] => only,
                _ => return Err(which(folder, &splits)),
            },
        };
        return files(&inside(folder, split)?);
    }
    if folder.join("state.json").is_file() {
        let State { files } = read(&folder.join("state.json"))?;
        let files = files.iter().map(|file| inside(folder, &file.filename));
        let files = files.collect::<Result<_, _>>()?;
        let kind = "a Hugging Face dataset on disk";
        return Ok(Folder { files, kind });
    }
    let places = [folder.to_owned(), folder.join("data")];
    for place in places.iter().filter(|place| place.is_dir()) {
        let mut found = data_files(place)?;
        let train = |path: &PathBuf| split_of(path) == TRAIN;
        let splits: Vec<_> = found.iter().map(|path| split_of(path)).collect();
        let one = splits.windows(2).all(|pair| pair[0] == pair[1]);
        if found.iter().any(train) {
            found.retain(train);
        } else if !one {
            return Err(which(folder, &splits));
        }
        if !found.is_empty() {
            let kind = "a folder of files";
            return Ok(Folder { files: found, kind });
        }
    }
    let accepted = ENDINGS.join(", ");
    Err(wrong(
        folder,
        format!(
            "no data in this folder: expected what `save_to_disk` of `datasets` writes, or files that end in one of \
             {accepted}, here or in `data`"
        ),
    ))
}

fn wrong(path: &Path, message: impl Into<String>) -> Error {
    Error::Data {
        path: path.to_owned(),
        message: message.into(),
    }
}

fn which(folder: &Path, splits: &[String]) -> Error {
    let mut splits = splits.to_vec();
    splits.sort();
    splits.dedup();
    let splits = splits.join(", ");
    wrong(
        folder,
        format!("which split is meant ({splits})? Name its folder or files"),
    )
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let file = File::open(path).map_err(Error::file("read", path))?;
    let read = serde_json::from_reader(std::io::BufReader::new(file));
    read.map_err(|error| wrong(path, error.to_string()))
}

/// Returns the path of a name that a file in the folder has, which must not lead out of it.
fn inside(folder: &Path, name: &str) -> Result<PathBuf, Error> {
    let mut parts = Path::new(name).components();
    let is_name = matches!(parts.next(), Some(std::path::Component::Normal(_)));
    if !is_name || parts.next().is_some() {
        return Err(wrong(
            folder,
            format!("`{name}` is no name of a file in it"),
        ));
    }
    Ok(folder.join(name))
}

fn data_files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(folder).map_err(Error::file("read", folder))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::file("read", folder))?.path();
        if path.is_file() && is_data(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn is_data(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_ascii_lowercase();
    if name.starts_with('.') || name.starts_with("dataset_info") || name == "readme.txt" {
        return false;
    }
    let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    ENDINGS.contains(&ending)
}

/// Returns the split that the name of a file begins with: `train` of `train-00000-of-00002.parquet`.
fn split_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let end = name.find(['-', '.', '_']).unwrap_or(name.len());
    name[..end].to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_of(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "{}").unwrap();
        }
        folder
    }

    #[test]
    fn the_files_of_the_train_split_are_taken() {
        let folder = folder_of(&[
            "README.md",
            "data/train-00001-of-00002.parquet",
            "data/train-00000-of-00002.parquet",
            "data/test-00000-of-00001.parquet",
        ]);
        let names: Vec<_> = files(folder.path()).unwrap().files;
        let names: Vec<_> = names.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(
            names,
            [
                "train-00000-of-00002.parquet",
                "train-00001-of-00002.parquet"
            ]
        );
        let one = folder_of(&["part-0.jsonl", "part-1.jsonl"]);
        assert_eq!(files(one.path()).unwrap().files.len(), 2);
    }

    #[test]
    fn what_cannot_be_chosen_is_said() {
        let two = folder_of(&["validation.csv", "test.csv"]);
        let error = files(two.path()).unwrap_err().to_string();
        assert!(
            error.contains("which split is meant (test, validation)"),
            "{error}"
        );
        let none = folder_of(&["README.md"]);
        let error = files(none.path()).unwrap_err().to_string();
        assert!(error.contains("no data in this folder"), "{error}");
        let out = folder_of(&["data.arrow"]);
        let state = r#"{"_data_files": [{"filename": "../x.arrow"}]}"#;
        std::fs::write(out.path().join("state.json"), state).unwrap();
        let error = files(out.path()).unwrap_err().to_string();
        assert!(error.contains("no name of a file in it"), "{error}");
    }
}
