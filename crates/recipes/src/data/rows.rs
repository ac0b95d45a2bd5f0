//! Rows of the files that people have, one at a time, each as the text of a JSON object.
//!
//! What a file is follows from its beginning and, for tables and text, from its name, unless it is said. A folder
//! is all of its files, one after the other.

use super::columns::ColumnRows;
use super::folder;
use super::format::{DataFormat, Form, Layout};
use super::place::Place;
use super::text_rows::TextRows;
use crate::Error;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use tinkrs_chat::Json;

/// The rows of a file or folder.
pub struct Rows {
    path: PathBuf,
    /// What the folder is, and how many files it has.
    folder: Option<(&'static str, usize)>,
    format: DataFormat,
    layout: Layout,
    files: VecDeque<PathBuf>,
    file: Box<dyn Iterator<Item = Result<(Place, String), Error>>>,
    /// The first row, which was looked at already.
    first: Option<Result<(Place, String), Error>>,
    form: Option<Form>,
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows")
            .field("path", &self.path)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl Rows {
    /// Opens a file or folder, and finds out what it is.
    ///
    /// # Errors
    /// If it cannot be read, is a table without a header, or a folder with no data.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_as(path, DataFormat::default())
    }

    /// Opens a file or folder that is said to have a format.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_as(path: impl AsRef<Path>, format: DataFormat) -> Result<Self, Error> {
        let path = path.as_ref();
        let is_folder = path.is_dir();
        let found = if is_folder {
            folder::files(path)?
        } else {
            folder::Folder {
                files: vec![path.to_owned()],
                kind: "",
            }
        };
        let folder = is_folder.then_some((found.kind, found.files.len()));
        let mut files = VecDeque::from(found.files);
        let Some(next) = files.pop_front() else {
            return Err(Error::Data {
                path: path.to_owned(),
                message: "no data in this folder".to_owned(),
            });
        };
        let (layout, file) = open_file(&next, format)?;
        let mut rows = Self {
            path: path.to_owned(),
            folder,
            format,
            layout,
            files,
            file,
            first: None,
            form: format.form,
        };
        rows.first = rows.advance();
        if let (None, Some(Ok((_, text)))) = (rows.form, &rows.first) {
            rows.form = form_of(text);
        }
        Ok(rows)
    }

    /// Opens a CSV file without a header, whose columns are these.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn open_table(path: &Path, columns: &[&str]) -> Result<Self, Error> {
        check_is_file(path)?;
        let rows = TextRows::open_table(path, Some(Layout::Csv), Some(columns))?;
        Ok(Self {
            path: path.to_owned(),
            folder: None,
            format: DataFormat::default(),
            layout: Layout::Csv,
            files: VecDeque::new(),
            file: Box::new(rows),
            first: None,
            form: None,
        })
    }

    /// Returns whether the first row has a member.
    pub(crate) fn has_column(&self, name: &str) -> bool {
        let Some(Ok((_, text))) = &self.first else {
            return false;
        };
        Json::parse(text).is_ok_and(|row| row.get(name).is_some())
    }

    /// Returns how the file is laid out; of a folder, its first one.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns which members rows have, as far as the first one tells.
    pub fn form(&self) -> Option<Form> {
        self.form
    }

    fn advance(&mut self) -> Option<Result<(Place, String), Error>> {
        loop {
            if let Some(row) = self.file.next() {
                return Some(row.and_then(|row| self.only_form(row)));
            }
            let next = self.files.pop_front()?;
            match open_file(&next, self.format) {
                Ok((_, file)) => self.file = file,
                Err(error) => {
                    self.files.clear();
                    return Some(Err(error));
                }
            }
        }
    }

    /// Leaves out the members of a row that the form does not have, if it is said.
    fn only_form(&self, (place, text): (Place, String)) -> Result<(Place, String), Error> {
        let Some(form) = self.format.form else {
            return Ok((place, text));
        };
        match Json::parse(&text) {
            Ok(Json::Object(mut members)) => {
                members.retain(|(name, _)| form.has(name));
                Ok((place, Json::Object(members).to_string()))
            }
            // The reader of the row says what is wrong with it.
            _ => Ok((place, text)),
        }
    }
}

/// What the file is: `JSON lines, chats (`messages`)`.
impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.folder {
            Some((kind, 1)) => write!(f, "{kind}: 1 file, {}", self.layout)?,
            Some((kind, files)) => write!(f, "{kind}: {files} files, {}", self.layout)?,
            None => write!(f, "{}", self.layout)?,
        }
        match self.form {
            Some(form) => write!(f, ", {form}"),
            None => Ok(()),
        }
    }
}

impl Iterator for Rows {
    type Item = Result<(Place, String), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.first.take().or_else(|| self.advance())
    }
}

type FileRows = Box<dyn Iterator<Item = Result<(Place, String), Error>>>;

/// Refuses what can be read only once, such as a pipe, before it is waited for.
fn check_is_file(path: &Path) -> Result<(), Error> {
    let found = std::fs::metadata(path).map_err(Error::file("read", path))?;
    if found.is_file() {
        return Ok(());
    }
    Err(Error::Data {
        path: path.to_owned(),
        message:
            "not a file: data are read more than once, so write what a pipe has to a file first"
                .to_owned(),
    })
}

fn open_file(path: &Path, format: DataFormat) -> Result<(Layout, FileRows), Error> {
    check_is_file(path)?;
    let layout = match format.layout {
        Some(layout) => Some(layout),
        None => columns_layout(path)?,
    };
    match layout {
        Some(layout) if layout.is_columns() => {
            Ok((layout, Box::new(ColumnRows::open(path, layout)?)))
        }
        forced => {
            let rows = TextRows::open(path, forced)?;
            Ok((rows.layout(), Box::new(rows)))
        }
    }
}

/// Returns the layout of a file of columns, by how it begins.
fn columns_layout(path: &Path) -> Result<Option<Layout>, Error> {
    let mut begin = Vec::with_capacity(8);
    let file = File::open(path).map_err(Error::file("read", path))?;
    let read = file.take(8).read_to_end(&mut begin);
    read.map_err(Error::file("read", path))?;
    Ok(match begin.as_slice() {
        begin if begin.starts_with(b"PAR1") => Some(Layout::Parquet),
        begin if begin.starts_with(b"ARROW1") => Some(Layout::Arrow),
        // How every message of an Arrow stream begins.
        begin if begin.starts_with(&[0xff; 4]) => Some(Layout::Arrow),
        _ => None,
    })
}

fn form_of(text: &str) -> Option<Form> {
    let members: BTreeMap<String, serde::de::IgnoredAny> = serde_json::from_str(text).ok()?;
    Form::of(members.keys().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_that_is_said_hides_the_other_members() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let row =
            r#"{"prompt": "a", "messages": [{"role": "user", "content": "b"}], "completion": "c"}"#;
        std::fs::write(&path, row).unwrap();
        let rows = Rows::open(&path).unwrap();
        assert_eq!(rows.to_string(), "JSON lines, chats (`messages`)");
        let rows = Rows::open_as(&path, "pairs".parse().unwrap()).unwrap();
        assert_eq!(
            rows.to_string(),
            "JSON lines, pairs (`prompt`, `completion`)"
        );
        let texts: Vec<_> = rows.map(|row| row.unwrap().1).collect();
        assert_eq!(texts, [r#"{"prompt": "a", "completion": "c"}"#]);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for path in [pipe.as_path(), Path::new("/dev/zero")] {
            let error = Rows::open(path).unwrap_err().to_string();
            assert!(error.contains("not a file: data are read"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_what_is_said_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "{}\n").unwrap();
        for (format, expected) in [
            ("parquet", "a.jsonl: not Parquet that can be read"),
            ("arrow", "a.jsonl: not Arrow that can be read"),
            ("json", "a.jsonl, line 1: not JSON: no array begins here"),
        ] {
            let error = Rows::open_as(&path, format.parse().unwrap()).unwrap_err();
            assert!(error.to_string().contains(expected), "{format}: {error}");
        }
    }
}
