//! Files with one JSON object a line, and others that can be read like them.

use super::place::Place;
use super::rows::Rows;
use crate::Error;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io::{Error as IoError, ErrorKind, Read};
use std::path::Path;

/// Most characters of the name of a member.
const LONGEST_PATH: usize = 80;
/// Most characters of what is said about a line.
const LONGEST_MESSAGE: usize = 400;

/// Reads the objects of a file in any of the layouts of [`Rows`].
///
/// # Errors
/// If the file cannot be read or a row is not a `T`; the error names the line.
pub fn read_jsonl<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<Vec<T>, Error> {
    let numbered = read_numbered(path)?;
    Ok(numbered.into_iter().map(|(_, value)| value).collect())
}

/// Reads such a file with the place of each object.
///
/// # Errors
/// As [`read_jsonl`].
pub fn read_numbered<T: DeserializeOwned>(
    path: impl AsRef<Path>,
) -> Result<Vec<(Place, T)>, Error> {
    parse_rows(Rows::open(path)?)
}

/// Reads rows with the place of each.
///
/// # Errors
/// As [`read_jsonl`].
pub fn parse_rows<T: DeserializeOwned>(rows: Rows) -> Result<Vec<(Place, T)>, Error> {
    let parse = |row: Result<(Place, String), Error>| {
        let (place, text) = row?;
        let value = parse_row(&text, &place)?;
        Ok((place, value))
    };
    rows.map(parse).collect()
}

/// Reads a row.
///
/// # Errors
/// If it is not what is expected; the error names its place.
pub fn parse_row<T: DeserializeOwned>(text: &str, place: &Place) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::Row {
        place: place.clone(),
        message: match member::<T>(text).filter(|_| error.is_data()) {
            Some(member) => format!("`{member}`: {}", explain(&error)),
            None => explain(&error),
        },
    })
}

/// Returns the member that is wrong, such as `messages[1].role`, unless it is the row as a whole. Only rows that were
/// refused are looked at so closely.
fn member<T: DeserializeOwned>(text: &str) -> Option<String> {
    let mut row = serde_json::Deserializer::from_str(text);
    let error = serde_path_to_error::deserialize::<_, T>(&mut row).err()?;
    let path = error.path().to_string();
    (path != ".").then(|| path.chars().take(LONGEST_PATH).collect())
}

/// Reads such a file as far as its lines have an end: a crash may have cut the last one short.
pub(crate) fn read_whole_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, Error> {
    let bytes = std::fs::read(path).map_err(Error::file("read", path))?;
    parse_jsonl(&whole_lines(bytes, path)?, path)
}

/// Opens such a file to add lines, and returns those that are there. What a crash has left of a
/// line is removed, lest the next one become a part of it.
pub(crate) fn open_to_add(path: &Path) -> Result<(File, String), Error> {
    let open = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .open(path);
    let mut file = open.map_err(Error::file("open", path))?;
    let mut bytes = Vec::new();
    let read = file.read_to_end(&mut bytes);
    let length = read.map_err(Error::file("read", path))?;
    let lines = whole_lines(bytes, path)?;
    if lines.len() < length {
        let cut = file.set_len(lines.len() as u64);
        let cut = cut.and_then(|()| file.sync_data());
        cut.map_err(Error::file("write", path))?;
    }
    Ok((file, lines))
}

fn whole_lines(mut bytes: Vec<u8>, path: &Path) -> Result<String, Error> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n');
    bytes.truncate(end.map_or(0, |end| end + 1));
    let text =
        String::from_utf8(bytes).map_err(|error| IoError::new(ErrorKind::InvalidData, error));
    text.map_err(Error::file("read", path))
}

/// Reads the text of such a file; `path` is for messages.
///
/// # Errors
/// If a line is not a `T`; the error names the line.
pub fn parse_jsonl<T: DeserializeOwned>(text: &str, path: &Path) -> Result<Vec<T>, Error> {
    let numbered = parse_numbered(text, path)?;
    Ok(numbered.into_iter().map(|(_, value)| value).collect())
}

/// Reads the text of such a file with the number of each line, from 1.
pub(crate) fn parse_numbered<T: DeserializeOwned>(
    text: &str,
    path: &Path,
) -> Result<Vec<(usize, T)>, Error> {
    // Some editors begin a file with a mark of its encoding, which is not part of the first line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            let value = parse_row(line, &Place::line(path, index + 1))?;
            Ok((index + 1, value))
        })
        .collect()
}

/// Says what is wrong with a line, without serde's own "at line 1 column 7": it counts within the line. What a line says
/// is repeated up to a point.
fn explain(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = message.rfind(" at line ");
    let message = &message[..place.unwrap_or(message.len())];
    let message = match message.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    };
    if error.is_data() {
        message
    } else if error.is_eof() {
        format!("not JSON: {message} (an object has to stand on one line)")
    } else {
        format!("not JSON: {message}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_added_behind_a_line_cut_short_is_a_line_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.jsonl");
        // The last of these is half a letter.
        for torn in [&b"[3"[..], b"[3]", b"[\xc3"] {
            std::fs::write(&path, [b"[1]\n[2]\n", torn].concat()).unwrap();
            let lines = read_whole_lines::<[u32; 1]>(&path).unwrap();
            assert_eq!(lines, [[1], [2]], "{torn:?}");
            let (mut file, text) = open_to_add(&path).unwrap();
            assert_eq!(text, "[1]\n[2]\n");
            file.write_all(b"[4]\n").unwrap();
            let lines = read_jsonl::<[u32; 1]>(&path).unwrap();
            assert_eq!(lines, [[1], [2], [4]], "{torn:?}");
        }
    }

    #[test]
    fn a_bad_line_is_named_as_an_editor_counts_it() {
        let read = |text| parse_jsonl::<u32>(text, Path::new("data.jsonl"));
        assert_eq!(read("1\n\n2\n").unwrap(), [1, 2]);
        let error = read("1\n\n\"x\"\n").unwrap_err().to_string();
        assert!(
            error.starts_with("data.jsonl, line 3: invalid type: string"),
            "{error}"
        );
        assert!(!error.contains("column"), "{error}");
        let pairs = parse_jsonl::<Vec<(u32, u32)>>("[[1, 2], [3, \"x\"]]", Path::new("a.jsonl"));
        let error = pairs.unwrap_err().to_string();
        assert!(
            error.starts_with("a.jsonl, line 1: `[1][1]`: invalid type"),
            "{error}"
        );
        let error = read("1\nnone\n").unwrap_err().to_string();
        assert_eq!(error, "data.jsonl, line 2: not JSON: expected ident");
        let object = parse_jsonl::<serde_json::Value>("{}\n{\n", Path::new("a.json"));
        let error = object.unwrap_err().to_string();
        assert!(
            error.starts_with("a.json, line 2: not JSON: EOF"),
            "{error}"
        );
        assert!(
            error.ends_with("(an object has to stand on one line)"),
            "{error}"
        );
        let long = format!("1\n{:?}\n", "é".repeat(100_000));
        let error = read(&long).unwrap_err().to_string();
        assert!(error.len() < 1000 && error.ends_with("éé…"), "{error}");
    }

    #[test]
    fn a_mark_of_the_encoding_is_not_part_of_the_first_line() {
        let read = |text| parse_jsonl::<u32>(text, Path::new("data.jsonl"));
        assert_eq!(read("\u{feff}1\r\n2\r\n").unwrap(), [1, 2]);
    }
}
