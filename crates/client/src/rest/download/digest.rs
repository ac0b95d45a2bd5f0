//! What a file's content is known by.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use tinkrs_wire::text::hex;

const PIECE_BYTES: usize = 1 << 20;

/// The digest of a file's content, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Digest {
    /// SHA-256 of the content.
    Sha256(String),
    /// The name that Git gives to the content: SHA-1 of a header and the content.
    GitBlob(String),
}

impl Digest {
    /// Computes the SHA-256 of a file.
    ///
    /// # Errors
    /// If the file cannot be read to its end.
    pub fn sha256_of(file: &Path) -> io::Result<Self> {
        let mut hasher = Hasher(Context::new(&SHA256));
        hasher.update_from(&File::open(file)?)?;
        Ok(Self::Sha256(hasher.finish()))
    }

    /// Returns the digest as text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sha256(text) | Self::GitBlob(text) => text,
        }
    }

    /// Returns whether the text has the length and the digits of such a digest.
    pub fn is_valid(&self) -> bool {
        let length = match self {
            Self::Sha256(_) => 64,
            Self::GitBlob(_) => 40,
        };
        let text = self.as_str();
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// Returns whether a file has this digest and this size. One that cannot be opened has not.
    ///
    /// # Errors
    /// If the file cannot be read to its end.
    pub fn matches(&self, file: &Path, size_bytes: u64) -> io::Result<bool> {
        let Ok(file) = File::open(file) else {
            return Ok(false);
        };
        let mut hasher = self.hasher(size_bytes);
        let size = hasher.update_from(&file)?;
        Ok(size == size_bytes && hasher.finish() == self.as_str().to_ascii_lowercase())
    }

    pub(super) fn hasher(&self, size_bytes: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher(Context::new(&SHA256)),
            Self::GitBlob(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size_bytes}\0").as_bytes());
                Hasher(context)
            }
        }
    }
}

/// Computes a digest piece by piece.
pub(super) struct Hasher(Context);

impl Hasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Takes in what is left of a file, and returns how much that was.
    pub(super) fn update_from(&mut self, mut file: &File) -> io::Result<u64> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut size = 0;
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(size),
                count => {
                    self.0.update(&piece[..count]);
                    size += count as u64;
                }
            }
        }
    }

    pub(super) fn finish(self) -> String {
        hex(self.0.finish().as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_size_and_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "abc").unwrap();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let sha256 = Digest::Sha256(sha256.to_owned());
        // What `printf abc | git hash-object --stdin` prints.
        let blob = Digest::GitBlob("f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f".to_owned());
        assert_eq!(Digest::sha256_of(&path).unwrap(), sha256);
        for digest in [sha256, blob] {
            assert!(digest.is_valid());
            assert!(digest.matches(&path, 3).unwrap(), "{digest:?}");
            assert!(!digest.matches(&path, 4).unwrap(), "{digest:?}");
            assert!(!digest.matches(&folder.path().join("b"), 3).unwrap());
            std::fs::write(folder.path().join("c"), "abd").unwrap();
            assert!(!digest.matches(&folder.path().join("c"), 3).unwrap());
        }
        assert!(!Digest::GitBlob("../../x".to_owned()).is_valid());
        assert!(!Digest::Sha256("a".repeat(40)).is_valid());
    }
}
