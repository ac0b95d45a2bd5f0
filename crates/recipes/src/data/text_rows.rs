//! Rows of files that are text, one at a time, each as the text of a JSON object.
//!
//! A file is JSON lines, a JSON array, a table with a header (CSV or TSV) or plain text, and may be
//! compressed with gzip or zstd. A file of any size is read through a buffer.

use super::format::Layout;
use super::place::Place;
use crate::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use tinkrs_chat::Json;

/// No row of a training file is longer, so one that is has another layout, or wants to fill the memory.
const LONGEST_ROW: usize = 64 << 20;
/// How a file begins that Git LFS has left in place of another.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// The rows of a file.
pub(super) struct TextRows {
    path: Arc<Path>,
    layout: Layout,
    bytes: Box<dyn BufRead>,
    is_compressed: bool,
    /// The line that is read next, from 1.
    line: usize,
    /// The names of a table's columns.
    header: Vec<String>,
    done: bool,
}

impl TextRows {
    /// Opens a file, and finds out what it is unless that is said.
    pub(super) fn open(path: &Path, forced: Option<Layout>) -> Result<Self, Error> {
        Self::open_table(path, forced, None)
    }

    /// Opens a file that is a table without a header, if its columns are named.
    pub(super) fn open_table(
        path: &Path,
        forced: Option<Layout>,
        columns: Option<&[&str]>,
    ) -> Result<Self, Error> {
        let read = Error::file("read", path);
        let file = File::open(path).and_then(|file| decompressed(BufReader::new(file)));
        let (bytes, is_compressed) = file.map_err(read)?;
        let mut rows = Self {
            path: path.into(),
            layout: Layout::Text,
            bytes,
            is_compressed,
            line: 1,
            header: Vec::new(),
            done: false,
        };
        if rows.begin()?.starts_with(b"\xef\xbb\xbf") {
            rows.bytes.consume(3);
        }
        let begin = rows.begin()?;
        let problem = if begin.starts_with(LFS_POINTER) {
            Some("Git LFS has left a pointer in place of the data: `git lfs pull` fetches them")
        } else if begin.starts_with(b"\xff\xfe") || begin.starts_with(b"\xfe\xff") {
            Some("UTF-16 text, expected UTF-8")
        } else {
            None
        };
        let first = begin.iter().find(|byte| !byte.is_ascii_whitespace());
        let first = first.copied();
        if let Some(problem) = problem {
            return Err(rows.fault(1, problem));
        }
        let layout = forced.unwrap_or_else(|| layout(path, first));
        rows.layout = layout;
        if let Some(columns) = columns {
            rows.header = columns.iter().map(ToString::to_string).collect();
        } else if matches!(layout, Layout::Csv | Layout::Tsv) {
            rows.header = rows.fields()?.unwrap_or_default();
            if let Some(problem) = header_problem(&rows.header) {
                return Err(rows.fault(1, problem));
            }
        }
        if layout == Layout::JsonArray {
            if first != Some(b'[') {
                return Err(rows.fault(1, "not JSON: no array begins here"));
            }
            rows.skip_to(b'[')?;
        }
        Ok(rows)
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    fn fault(&self, line: usize, message: impl Into<String>) -> Error {
        Error::Row {
            place: Place::line(Arc::clone(&self.path), line),
            message: message.into(),
        }
    }

    fn unreadable(&self, problem: io::Error) -> Error {
        if self.is_compressed {
            let message = format!("the compressed file is damaged or cut short: {problem}");
            return self.fault(self.line, message);
        }
        Error::file("read", &self.path)(problem)
    }

    /// Returns how the rest of the file begins, as far as it is in memory.
    fn begin(&mut self) -> Result<&[u8], Error> {
        if let Err(problem) = self.bytes.fill_buf() {
            return Err(self.unreadable(problem));
        }
        Ok(self.bytes.fill_buf().unwrap_or_default())
    }

    fn byte(&mut self) -> Result<Option<u8>, Error> {
        let byte = match self.bytes.fill_buf() {
            Ok(buffer) => buffer.first().copied(),
            Err(problem) => return Err(self.unreadable(problem)),
        };
        if let Some(byte) = byte {
            self.bytes.consume(1);
            self.line += usize::from(byte == b'\n');
        }
        Ok(byte)
    }

    fn skip_to(&mut self, wanted: u8) -> Result<(), Error> {
        while let Some(byte) = self.byte()? {
            if byte == wanted {
                break;
            }
        }
        Ok(())
    }

    /// Refuses what stands behind an array: it would be left out.
    fn expect_end(&mut self) -> Result<(), Error> {
        while let Some(byte) = self.byte()? {
            if !byte.is_ascii_whitespace() {
                return Err(self.fault(self.line, "not JSON: something stands behind the array"));
            }
        }
        Ok(())
    }

    fn text(&self, bytes: Vec<u8>, line: usize) -> Result<String, Error> {
        String::from_utf8(bytes).map_err(|_| self.fault(line, "not UTF-8 text"))
    }

    fn push(&self, row: &mut Vec<u8>, byte: u8, line: usize) -> Result<(), Error> {
        if row.len() >= LONGEST_ROW {
            let problem = format!("a row has more than {} MiB", LONGEST_ROW >> 20);
            return Err(self.fault(line, problem));
        }
        row.push(byte);
        Ok(())
    }

    /// Reads a line, without its end; `None` at the end of the file.
    fn read_line(&mut self) -> Result<Option<(usize, String)>, Error> {
        let (line, mut row, mut any) = (self.line, Vec::new(), false);
        while let Some(byte) = self.byte()? {
            any = true;
            if byte == b'\n' {
                break;
            }
            self.push(&mut row, byte, line)?;
        }
        if row.last() == Some(&b'\r') {
            row.pop();
        }
        Ok(any.then_some((line, self.text(row, line)?)))
    }

    /// Reads an element of an array up to what follows it.
    fn element(&mut self) -> Result<Option<(usize, String)>, Error> {
        let (mut row, mut start) = (Vec::new(), self.line);
        let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
        loop {
            let line = self.line;
            let Some(byte) = self.byte()? else {
                return Err(self.fault(line, "not JSON: the array does not end"));
            };
            match byte {
                _ if in_text => {
                    in_text = escaped || byte != b'"';
                    escaped = !escaped && byte == b'\\';
                }
                b'"' => in_text = true,
                b'{' | b'[' => depth += 1,
                b']' | b',' if depth == 0 => {
                    self.done = byte == b']';
                    if self.done {
                        self.expect_end()?;
                    }
                    let text = self.text(row, start)?;
                    let empty = text.trim().is_empty();
                    return match (empty, self.done) {
                        (true, true) => Ok(None),
                        (true, false) => Err(self.fault(start, "not JSON: an element is missing")),
                        (false, _) => Ok(Some((start, text))),
                    };
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if row.is_empty() {
                if byte.is_ascii_whitespace() {
                    continue;
                }
                start = line;
            }
            self.push(&mut row, byte, start)?;
        }
    }

    /// Reads the fields of a table's row; `None` at the end of the file.
    fn fields(&mut self) -> Result<Option<Vec<String>>, Error> {
        let apart = if self.layout == Layout::Csv {
            b','
        } else {
            b'\t'
        };
        let start = self.line;
        let (mut fields, mut field, mut any) = (Vec::new(), Vec::new(), false);
        let (mut quoted, mut was_quote) = (false, false);
        while let Some(byte) = self.byte()? {
            any = true;
            match byte {
                // Two quotes inside of quotes are one.
                b'"' if quoted => (quoted, was_quote) = (false, true),
                b'"' if was_quote => {
                    self.push(&mut field, byte, start)?;
                    (quoted, was_quote) = (true, false);
                }
                b'"' if field.is_empty() => quoted = true,
                b'\n' if !quoted => break,
                _ if byte == apart && !quoted => {
                    fields.push(self.text(std::mem::take(&mut field), start)?);
                    was_quote = false;
                }
                _ => {
                    self.push(&mut field, byte, start)?;
                    was_quote = false;
                }
            }
        }
        if quoted {
            return Err(self.fault(start, "a quoted field does not end"));
        }
        if !was_quote && field.last() == Some(&b'\r') {
            field.pop();
        }
        fields.push(self.text(field, start)?);
        Ok(any.then_some(fields))
    }

    fn table_row(&mut self) -> Result<Option<(usize, String)>, Error> {
        let line = self.line;
        let Some(fields) = self.fields()? else {
            return Ok(None);
        };
        if fields.len() == 1 && fields[0].trim().is_empty() {
            return Ok(Some((line, String::new())));
        }
        if fields.len() != self.header.len() {
            let problem = format!(
                "{} fields, but the header has {} columns",
                fields.len(),
                self.header.len()
            );
            return Err(self.fault(line, problem));
        }
        let members = self
            .header
            .iter()
            .cloned()
            .zip(fields.into_iter().map(Json::Text));
        Ok(Some((line, Json::Object(members.collect()).to_string())))
    }

    fn paragraph(&mut self) -> Result<Option<(usize, String)>, Error> {
        let mut paragraph: Option<(usize, String)> = None;
        while let Some((line, text)) = self.read_line()? {
            match (&mut paragraph, text.trim().is_empty()) {
                (None, true) => {}
                (Some(_), true) => break,
                (None, false) => paragraph = Some((line, text)),
                (Some((_, before)), false) => {
                    before.push('\n');
                    before.push_str(&text);
                }
            }
        }
        Ok(paragraph
            .map(|(line, text)| (line, Json::object([("text", Json::Text(text))]).to_string())))
    }
}

impl Iterator for TextRows {
    type Item = Result<(Place, String), Error>;

    /// Returns the next row with the line that it begins in. Empty lines are left out.
    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            let row = match self.layout {
                Layout::JsonLines => self.read_line(),
                Layout::JsonArray => self.element(),
                Layout::Csv | Layout::Tsv => self.table_row(),
                Layout::Text => self.paragraph(),
                // These are no text, and opened elsewhere.
                Layout::Parquet | Layout::Arrow => Ok(None),
            };
            match row {
                Ok(Some((_, text))) if text.trim().is_empty() => {}
                Ok(Some((line, text))) => {
                    let place = Place::line(Arc::clone(&self.path), line);
                    return Some(Ok((place, text)));
                }
                Ok(None) => self.done = true,
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// Returns the layout of a file with this name whose first letter is this.
fn layout(path: &Path, first: Option<u8>) -> Layout {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_ascii_lowercase();
    let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "csv" => Layout::Csv,
        "tsv" => Layout::Tsv,
        "txt" | "md" => Layout::Text,
        "jsonl" | "ndjson" => Layout::JsonLines,
        _ if first == Some(b'[') => Layout::JsonArray,
        _ => Layout::JsonLines,
    }
}

/// Returns the text of a file, and whether it was compressed.
fn decompressed(mut file: BufReader<File>) -> io::Result<(Box<dyn BufRead>, bool)> {
    let begin = file.fill_buf()?;
    if begin.starts_with(b"\x1f\x8b") {
        let text = flate2::bufread::MultiGzDecoder::new(file);
        return Ok((Box::new(BufReader::new(text)), true));
    }
    if begin.starts_with(b"\x28\xb5\x2f\xfd") {
        let text = zstd::Decoder::with_buffer(file)?;
        return Ok((Box::new(BufReader::new(text)), true));
    }
    Ok((Box::new(file), false))
}

/// Says what is wrong with the names of columns.
fn header_problem(header: &[String]) -> Option<String> {
    let mut names = header.iter().enumerate();
    names.find_map(|(column, name)| {
        let number = column + 1;
        let same = header[..column].iter().position(|other| other == name);
        match same {
            _ if name.is_empty() => Some(format!("the header has no name for column {number}")),
            Some(same) => Some(format!(
                "columns {} and {number} are both `{name}`",
                same + 1
            )),
            None => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn read(name: &str, bytes: &[u8]) -> (Layout, Result<Vec<(usize, String)>, String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        match TextRows::open(&path, None) {
            Ok(rows) => {
                let layout = rows.layout();
                let rows = rows.map(|row| row.map(|(place, text)| (place.number(), text)));
                let rows: Result<Vec<_>, _> = rows.collect();
                (layout, rows.map_err(|error| error.to_string()))
            }
            Err(error) => (Layout::JsonLines, Err(error.with_cause())),
        }
    }

    /// A name, what is in the file, and what is read.
    type Case<'a> = (&'a str, &'a str, Layout, &'a [(usize, &'a str)]);

    fn row(line: usize, text: &str) -> (usize, String) {
        (line, text.to_owned())
    }

    #[test]
    fn each_layout_is_found_and_read_with_the_lines_of_its_rows() {
        let cases: [Case<'_>; 6] = [
            (
                "a.jsonl",
                "\u{feff}{\"a\":1}\r\n\n{\"a\":2}",
                Layout::JsonLines,
                &[(1, "{\"a\":1}"), (3, "{\"a\":2}")],
            ),
            (
                "a.json",
                " [\n{\"a\": \"],}\\\"\"},\n\n {\"a\":\n[1,{}]} ]\n",
                Layout::JsonArray,
                &[(2, "{\"a\": \"],}\\\"\"}"), (4, "{\"a\":\n[1,{}]} ")],
            ),
            ("a.json", "[]", Layout::JsonArray, &[]),
            (
                "a.csv",
                "prompt,completion\r\n\"a, \"\"b\"\"\nc\",d\r\n\ne,\n",
                Layout::Csv,
                &[
                    (2, r#"{"prompt": "a, \"b\"\nc", "completion": "d"}"#),
                    (5, r#"{"prompt": "e", "completion": ""}"#),
                ],
            ),
            (
                "a.tsv",
                "text\tn\nx y\t1\n",
                Layout::Tsv,
                &[(2, r#"{"text": "x y", "n": "1"}"#)],
            ),
            (
                "a.txt",
                "one\ntwo\n\n\nthree",
                Layout::Text,
                &[(1, r#"{"text": "one\ntwo"}"#), (5, r#"{"text": "three"}"#)],
            ),
        ];
        for (name, text, layout, expected) in cases {
            let expected = expected
                .iter()
                .map(|(line, text)| row(*line, text))
                .collect();
            assert_eq!(
                read(name, text.as_bytes()),
                (layout, Ok(expected)),
                "{name}: {text}"
            );
        }
    }

    #[test]
    fn compressed_files_are_read_as_they_are() {
        let text = b"{\"a\":1}\n{\"a\":2}\n";
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(&text[..], 1).unwrap();
        let plain = read("a.jsonl", text);
        assert_eq!(read("a.jsonl.gz", &gzip), plain);
        assert_eq!(
            read("a.jsonl.gz", &[gzip.clone(), gzip].concat())
                .1
                .unwrap()
                .len(),
            4
        );
        assert_eq!(read("a.jsonl.zst", &zstd), plain);
        let lines = "{\"a\":1}\n".repeat(40_000);
        let mut long = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        long.write_all(lines.as_bytes()).unwrap();
        let long = long.finish().unwrap();
        for (name, bytes, expected) in [
            ("a.jsonl.zst", &zstd[..zstd.len() - 4], "line "),
            ("a.jsonl.gz", &long[..long.len() / 2], "line 2"),
            ("a.jsonl.gz", b"\x1f\x8bno", "line 1"),
        ] {
            let error = read(name, bytes).1.unwrap_err();
            let problem = "the compressed file is damaged or cut short";
            assert!(
                error.contains(expected) && error.contains(problem),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let cases = [
            (
                "a.json",
                "[{}\n",
                "line 2: not JSON: the array does not end",
            ),
            (
                "a.json",
                "[{},,{}]",
                "line 1: not JSON: an element is missing",
            ),
            (
                "a.json",
                "[{},\n{}]\n[{}]",
                "line 3: not JSON: something stands behind the array",
            ),
            (
                "a.csv",
                "a,b,a\n1,2,3\n",
                "line 1: columns 1 and 3 are both `a`",
            ),
            (
                "a.txt",
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
                "line 1: Git LFS has left a pointer",
            ),
            (
                "a.csv",
                "a,b\n1\n",
                "line 2: 1 fields, but the header has 2 columns",
            ),
            (
                "a.csv",
                "a,\n1,2\n",
                "line 1: the header has no name for column 2",
            ),
            ("a.csv", "a\n\"x\n", "line 2: a quoted field does not end"),
        ];
        for (name, text, expected) in cases {
            let error = read(name, text.as_bytes()).1.unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = read("a.jsonl", b"{\"a\":1}\n\xff\n").1.unwrap_err();
        assert!(error.contains("line 2: not UTF-8"), "{error}");
        let error = read("a.jsonl", b"\xff\xfe{\0}\0").1.unwrap_err();
        assert!(error.contains("line 1: UTF-16"), "{error}");
    }
}
