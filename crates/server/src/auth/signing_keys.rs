//! The secret of a data folder, from which everything that is signed gets its key.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use ring::hmac::{HMAC_SHA256, Key, sign};
use ring::rand::{SecureRandom, SystemRandom};

use crate::store::files;

const LENGTH: usize = 32;

/// The keys to sign with, one for each purpose.
pub(super) struct SigningKeys {
    tokens: Key,
    links: Key,
    cookies: Key,
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKeys").finish_non_exhaustive()
    }
}

impl SigningKeys {
    /// Reads the secret, or makes one if there is none.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => make(path)?.to_vec(),
            Err(error) => return Err(error),
        };
        if bytes.len() != LENGTH {
            let reason = format!(
                "it has {} bytes instead of {LENGTH}; without it a new one is made, and issued \
                 tokens and links end",
                bytes.len()
            );
            return Err(io::Error::new(ErrorKind::InvalidData, reason));
        }
        close_to_others(path)?;
        Ok(Self::new(&bytes))
    }

    pub(super) fn new(bytes: &[u8]) -> Self {
        let root = Key::new(HMAC_SHA256, bytes);
        let derived = |purpose: &[u8]| Key::new(HMAC_SHA256, sign(&root, purpose).as_ref());
        Self {
            tokens: derived(b"tinkrs token"),
            links: derived(b"tinkrs link"),
            cookies: derived(b"tinkrs cookie"),
        }
    }

    pub(super) fn tokens(&self) -> &Key {
        &self.tokens
    }

    pub(super) fn links(&self) -> &Key {
        &self.links
    }

    pub(super) fn cookies(&self) -> &Key {
        &self.cookies
    }
}

/// Writes a new secret under another name first, so that a crash leaves all of it or nothing.
fn make(path: &Path) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    let random = SystemRandom::new();
    random
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system gives no random numbers"))?;
    let temporary = path.with_extension("new");
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    files::sync_folder(files::parent(path))?;
    Ok(bytes)
}

/// Takes back permissions that a restored backup, say, gave to everyone.
#[cfg(unix)]
fn close_to_others(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;

    let mut permissions = std::fs::metadata(path)?.permissions();
    if permissions.mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "the secret was readable by others; its permissions are corrected");
        permissions.set_mode(0o600);
        std::fs::set_permissions(path, permissions)?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn close_to_others(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    fn mode(path: &Path) -> u32 {
        use std::os::unix::fs::PermissionsExt;

        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[cfg(unix)]
    #[test]
    fn the_secret_is_made_once_and_closed_to_others() {
        use std::os::unix::fs::PermissionsExt;

        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("secret");
        SigningKeys::open(&path).unwrap();
        let first = std::fs::read(&path).unwrap();
        assert_eq!((first.len(), mode(&path)), (LENGTH, 0o600));
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&path, open).unwrap();
        SigningKeys::open(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), first);
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn half_a_secret_is_refused_and_what_a_crash_left_is_replaced() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("secret");
        std::fs::write(path.with_extension("new"), "left by a crash").unwrap();
        SigningKeys::open(&path).unwrap();
        std::fs::write(&path, "short").unwrap();
        let error = SigningKeys::open(&path).unwrap_err().to_string();
        assert!(error.contains("5 bytes"), "{error}");
    }

    #[test]
    fn each_purpose_has_a_key_of_its_own() {
        let secret = SigningKeys::new(&[1; LENGTH]);
        let of = |key| sign(key, b"text").as_ref().to_vec();
        assert_ne!(of(secret.tokens()), of(secret.links()));
        assert_ne!(of(secret.tokens()), of(secret.cookies()));
        assert_ne!(of(secret.links()), of(secret.cookies()));
        assert!(!format!("{secret:?}").contains('1'));
    }
}
