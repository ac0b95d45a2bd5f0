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
    // Some editors begin a file with a mark of its encoding, which is not part of the first line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let parse = |(index, line): (usize, &str)| match serde_json::from_str(line) {
        Ok(value) => Ok((index + 1, value)),
        Err(error) => Err(Error::Line {
            path: path.to_owned(),
            line: index + 1,
            message: explain(&error),
        }),
    };
    lines.map(parse).collect()
}

/// Says what is wrong with a line, without serde's own "at line 1 column 7": it counts within the line.
fn explain(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = message.rfind(" at line ");
    let message = &message[..place.unwrap_or(message.len())];
    match error.is_data() {
        true => message.to_owned(),
        false => format!("not JSON: {message}"),
    }
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
        let error = read("1\nnone\n").unwrap_err().to_string();
        assert_eq!(error, "data.jsonl, line 2: not JSON: expected ident");
    }

    #[test]
    fn a_mark_of_the_encoding_is_not_part_of_the_first_line() {
        let read = |text| parse_jsonl::<u32>(text, Path::new("data.jsonl"));
        assert_eq!(read("\u{feff}1\r\n2\r\n").unwrap(), [1, 2]);
    }
}
