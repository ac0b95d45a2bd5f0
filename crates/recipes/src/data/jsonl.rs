//! Files with one JSON object a line.

use crate::Error;
use serde::de::DeserializeOwned;
use std::path::Path;

/// Reads a file with one JSON object a line. Empty lines are skipped.
///
/// # Errors
/// If the file cannot be read or a line is not a `T`; the error names the line.
pub fn read_jsonl<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<Vec<T>, Error> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    parse_jsonl(&text, path)
}

/// Reads such a file with the number of each line, counted from 1.
///
/// # Errors
/// As [`read_jsonl`].
pub fn read_numbered<T: DeserializeOwned>(
    path: impl AsRef<Path>,
) -> Result<Vec<(usize, T)>, Error> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    parse_numbered(&text, path)
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
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let parse = |(index, line): (usize, &str)| match serde_json::from_str(line) {
        Ok(value) => Ok((index + 1, value)),
        Err(error) => Err(Error::Line {
            path: path.to_owned(),
            line: index + 1,
            message: without_place(&error.to_string()),
        }),
    };
    lines.map(parse).collect()
}

/// Drops serde's own "at line 1 column 7": it counts within the line.
fn without_place(message: &str) -> String {
    let place = message.rfind(" at line ");
    message[..place.unwrap_or(message.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
