//! Keys and the file that lists them.
//!
//! One key a line, followed by a name if it has one. Empty lines and those that start with `#` are
//! skipped:
//!
//! ```text
//! # for the nightly runs
//! tml-3fJ0c... nightly
//! tml-9sKw2...
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;
use std::path::Path;

use ring::digest::{Digest, SHA256, digest};

use super::Owner;
use crate::permissions;

/// The longest key that is taken. Clients send it in a header.
const KEY_BYTES: usize = 512;
/// The largest key file that is read.
const FILE_BYTES: u64 = 1 << 20;

/// Why a key file cannot be used. Lines are named by number, because they hold keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyFileError {
    #[error("could not read it")]
    Read(#[source] std::io::Error),
    #[error("it has more than {FILE_BYTES} bytes")]
    TooLarge,
    #[error("it lists no key")]
    Empty,
    #[error("line {line}: a key is `tml-` and up to {KEY_BYTES} visible ASCII characters")]
    NotAKey { line: usize },
    #[error("line {line}: the key of line {first} again")]
    Repeated { line: usize, first: usize },
}

/// Which keys are taken.
#[derive(Debug)]
pub(super) enum Keys {
    /// Any that is well-formed.
    Any,
    /// These only.
    Listed(Vec<Listed>),
}

/// A key of the file, as its hash.
pub(super) struct Listed {
    hash: Digest,
    owner: Owner,
    name: Option<String>,
}

impl fmt::Debug for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listed").field(&self.owner).finish()
    }
}

/// Returns whether a credential has the form of a key.
pub(super) fn is_key(credential: &[u8]) -> bool {
    let rest = credential.strip_prefix(b"tml-").unwrap_or_default();
    let is_visible = rest.iter().all(u8::is_ascii_graphic);
    !rest.is_empty() && is_visible && credential.len() <= KEY_BYTES
}

impl Keys {
    pub(super) fn load(path: &Path) -> Result<Self, KeyFileError> {
        let metadata = std::fs::metadata(path).map_err(KeyFileError::Read)?;
        if metadata.len() > FILE_BYTES {
            return Err(KeyFileError::TooLarge);
        }
        if permissions::are_open_to_others(&metadata) {
            let fix = format!("chmod 600 {}", path.display());
            tracing::warn!(path = %path.display(), fix, "other users of this machine can read a key file");
        }
        Self::parse(&std::fs::read_to_string(path).map_err(KeyFileError::Read)?)
    }

    pub(super) fn parse(text: &str) -> Result<Self, KeyFileError> {
        let mut keys: Vec<Listed> = Vec::new();
        let mut lines = BTreeMap::new();
        // Some editors start a file with a mark that is not part of the first key.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, text) in text.lines().enumerate() {
            let (line, text) = (index + 1, text.trim());
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (key, name) = match text.split_once(char::is_whitespace) {
                None => (text, None),
                Some((key, name)) => (key, Some(name.trim().to_owned())),
            };
            if !is_key(key.as_bytes()) {
                return Err(KeyFileError::NotAKey { line });
            }
            let owner = Owner::of_key(key.as_bytes());
            if let Some(first) = lines.insert(owner, line) {
                return Err(KeyFileError::Repeated { line, first });
            }
            keys.push(Listed {
                hash: digest(&SHA256, key.as_bytes()),
                owner,
                name,
            });
        }
        if keys.is_empty() {
            return Err(KeyFileError::Empty);
        }
        Ok(Self::Listed(keys))
    }

    /// Returns the owner of a key that is taken.
    pub(super) fn owner(&self, key: &[u8]) -> Option<Owner> {
        let listed = match self {
            Self::Any => return Some(Owner::of_key(key)),
            Self::Listed(listed) => listed,
        };
        let hash = digest(&SHA256, key);
        // Every key is compared, even after a match, so that the time says nothing about the list.
        let mut found = None;
        for key in listed {
            if same(key.hash.as_ref(), hash.as_ref()) {
                found = Some(key.owner);
            }
        }
        found
    }

    /// Returns whether a key of this owner is taken.
    pub(super) fn takes(&self, owner: Owner) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(listed) => listed.iter().any(|key| key.owner == owner),
        }
    }

    /// Returns the name of an owner's key.
    pub(super) fn name(&self, owner: Owner) -> Option<&str> {
        let Self::Listed(listed) = self else {
            return None;
        };
        listed
            .iter()
            .find(|key| key.owner == owner)?
            .name
            .as_deref()
    }
}

/// Compares two hashes in a time that does not depend on where they differ.
///
/// Hand-made because it is one line: what is compared are hashes, whose bytes cannot be chosen one
/// by one, so this is a second wall and not the first.
fn same(left: &[u8], right: &[u8]) -> bool {
    let differences = left.iter().zip(right).map(|(left, right)| left ^ right);
    left.len() == right.len()
        && black_box(differences.fold(0, |all, bits| all | black_box(bits))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_lists_keys_with_names_between_comments() {
        let text = "\u{feff}# ours\n\n  tml-one\tana's laptop  \r\ntml-two\n#tml-three\n";
        let keys = Keys::parse(text).unwrap();
        let one = keys.owner(b"tml-one").unwrap();
        assert_eq!(keys.name(one), Some("ana's laptop"));
        let two = keys.owner(b"tml-two").unwrap();
        assert_eq!(keys.name(two), None);
        for key in [b"tml-three".as_slice(), b"tml-on", b"tml-one ", b""] {
            assert_eq!(keys.owner(key), None, "{key:?}");
        }
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let long = format!("tml-{}", "x".repeat(KEY_BYTES));
        let cases = [
            ("", "no key"),
            ("# only a comment", "no key"),
            ("tml-a\n\nsk-b", "line 3"),
            ("tml-", "line 1"),
            ("tml-\u{e9}", "line 1"),
            (long.as_str(), "line 1"),
            ("tml-a x\n# y\ntml-a z", "line 3: the key of line 1"),
        ];
        for (text, expected) in cases {
            let error = Keys::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn hashes_are_the_same_only_if_every_byte_is() {
        let hash = [7_u8; 32];
        assert!(same(&hash, &hash));
        for index in 0..hash.len() {
            let mut other = hash;
            other[index] ^= 0x80;
            assert!(!same(&hash, &other), "byte {index}");
        }
        assert!(!same(&hash, &hash[..31]));
    }
}
