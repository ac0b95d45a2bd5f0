//! How large the table of tensors of an imported adapter may be.
//!
//! It is read as a whole, and each of its entries takes memory, so it is counted first, name by name.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::error::ApiError;

/// The largest table: what tens of thousands of tensors take.
const TABLE_BYTES: u64 = 8 << 20;
/// The most tensors. A dense model of a hundred layers has 1,400 for all of its sites.
const TENSORS: usize = 32_768;
/// The longest name of one.
const NAME_BYTES: usize = 512;

/// Checks the table of a file of tensors. One that is broken passes, for the backend to say where.
pub(super) fn check(file: &Path) -> Result<(), ApiError> {
    let name = file.file_name().unwrap_or_default().display();
    let unread =
        |error: io::Error| ApiError::unavailable(format!("could not read {name}: {error}"));
    let mut opened = BufReader::new(File::open(file).map_err(unread)?);
    let mut length = [0; 8];
    match opened.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
        read => read.map_err(unread)?,
    }
    let length = u64::from_le_bytes(length);
    if length > TABLE_BYTES {
        return Err(ApiError::too_large(format!(
            "the table of tensors in `{name}` has {length} bytes, expected at most {TABLE_BYTES}"
        )));
    }
    let mut table = serde_json::Deserializer::from_reader(opened.take(length));
    match table.deserialize_map(Names) {
        Err(error) if error.is_data() => {
            // Without line and column: the table is one line that a program wrote.
            let why = error.to_string();
            let why = why.split(" at line ").next().unwrap_or_default();
            Err(ApiError::bad_request(format!("`{name}`: {why}")))
        }
        _ => Ok(()),
    }
}

/// Counts names, and keeps none.
struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut count = 0;
        while let Some(name) = entries.next_key::<String>()? {
            entries.next_value::<IgnoredAny>()?;
            count += 1;
            if count > TENSORS {
                let why = format!("found more than {TENSORS} tensors");
                return Err(A::Error::custom(why));
            }
            if name.len() > NAME_BYTES {
                let length = name.len();
                let why = format!("found a name of {length} bytes, expected at most {NAME_BYTES}");
                return Err(A::Error::custom(why));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(table: &str) -> Result<(), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes = [
            &(table.len() as u64).to_le_bytes(),
            table.as_bytes(),
            b"data",
        ]
        .concat();
        std::fs::write(file.path(), bytes).unwrap();
        check(file.path()).map_err(|refusal| refusal.detail().to_owned())
    }

    fn table(names: impl Iterator<Item = String>) -> String {
        let entries = names
            .map(|name| format!(r#""{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#));
        format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
    }

    #[test]
    fn tensors_their_names_and_their_table_have_limits() {
        let numbered = |count: usize| table((0..count).map(|number| number.to_string()));
        let named = |length: usize| table(std::iter::once("x".repeat(length)));
        assert_eq!(checked(&numbered(TENSORS)), Ok(()));
        assert_eq!(checked(&named(NAME_BYTES)), Ok(()));
        let cases = [
            (numbered(TENSORS + 1), "more than 32768 tensors"),
            (
                named(NAME_BYTES + 1),
                "a name of 513 bytes, expected at most 512",
            ),
            (
                format!("{}{{}}", " ".repeat(TABLE_BYTES as usize)),
                "has 8388610 bytes, expected at most 8388608",
            ),
        ];
        for (table, expected) in cases {
            let refusal = checked(&table).unwrap_err();
            assert!(refusal.contains(expected), "{refusal}");
            assert!(!refusal.contains("line"), "{refusal}");
        }
    }

    #[test]
    fn what_is_broken_is_left_to_the_backend() {
        for table in ["", "{", "[]", r#"{"a":"#, "nonsense"] {
            assert!(checked(table).is_ok() || table == "[]", "{table}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1, 2, 3]).unwrap();
        assert!(check(file.path()).is_ok());
        std::fs::write(file.path(), u64::MAX.to_le_bytes()).unwrap();
        assert!(check(file.path()).is_err());
    }
}
