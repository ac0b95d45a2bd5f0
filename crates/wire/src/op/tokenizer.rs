//! `GET /tokenizer`: the tokenizer and the chat template of a model, as the server has them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The names that files can have. A client writes no others.
pub const FILES: [&str; 4] = [
    "chat_template.jinja",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// The files of a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenizerFiles {
    /// The SHA-256 of the files, in hexadecimal: of the name, the size in bytes and the text of each, in the order
    /// of the names, with a zero byte behind the name and behind the decimal size.
    pub digest: String,
    /// The text of each file by its name: `tokenizer.json` or `tiktoken.model`, `tokenizer_config.json`, and
    /// `chat_template.jinja` where there is one. Absent if the caller has named the digest: nothing has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<BTreeMap<String, String>>,
}

/// Gives everything that the digest is made of to a hash function.
pub fn hash_files<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a str)>,
    mut update: impl FnMut(&[u8]),
) {
    for (name, text) in files {
        update(name.as_bytes());
        update(b"\0");
        update(text.len().to_string().as_bytes());
        update(b"\0");
        update(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_differ_in_where_one_ends_are_hashed_differently() {
        let hashed = |files: &[(&str, &str)]| {
            let mut bytes = Vec::new();
            hash_files(files.iter().copied(), |part| bytes.extend_from_slice(part));
            bytes
        };
        assert_eq!(hashed(&[("a", "bc")]), b"a\x002\0bc");
        assert_ne!(
            hashed(&[("a", "b"), ("c", "d")]),
            hashed(&[("a", "bc\x001\0d")])
        );
        assert!(FILES.is_sorted(), "the order of the digest");
    }
}
