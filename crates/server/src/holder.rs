//! Who holds a data folder, and how other processes reach it.
//!
//! A folder is locked by one process. With [`Server::announce`] that process writes into the folder where it can
//! be reached, so that others become its clients. The file may outlive the process, and its port may
//! belong to somebody else by then: before a client sends a key it asks for a proof that only a reader of
//! the file can make ([`Holder::proof`]).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ring::hmac::{HMAC_SHA256, Key, sign};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use tinkrs_wire::text::hex;

use crate::Server;
use crate::lock::lock;

/// How often a process that uses the folder of another asks for a proof, which is how both know of each other.
pub const ASK_INTERVAL: Duration = Duration::from_millis(500);

const FILE: &str = "server.json";
/// More than any of these files has.
const MAX_BYTES: u64 = 64 << 10;

/// The process that holds a data folder, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Holder {
    /// Where it can be reached on this machine.
    pub url: String,
    /// Its process id.
    pub pid: u32,
    /// What it is, such as `tinkrs train sft`.
    pub command: String,
    /// Whether it takes any key, and not only those of a file.
    pub takes_any_key: bool,
    token: String,
}

impl Holder {
    /// Reads who holds a folder. The process may be gone: only its proof shows that it is not.
    #[must_use]
    pub fn read(folder: &Path) -> Option<Self> {
        let path = folder.join(FILE);
        let is_small = fs::metadata(&path).ok()?.len() <= MAX_BYTES;
        let text = is_small.then(|| fs::read(path).ok()).flatten()?;
        serde_json::from_slice(&text).ok()
    }

    /// Returns what the process answers to a `nonce`, and nobody else can.
    #[must_use]
    pub fn proof(&self, nonce: &str) -> String {
        proof(&self.token, nonce)
    }
}

/// The file that says who holds a folder. It goes when this is dropped.
#[derive(Debug)]
pub struct Announcement {
    path: PathBuf,
    holder: Holder,
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // Another process may hold the folder already.
        if Holder::read(folder).as_ref() == Some(&self.holder) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Server {
    /// Lets other processes find this server in its data folder, at a URL on this machine. `command` says what
    /// this process is.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn announce(&self, url: &str, command: &str) -> io::Result<Announcement> {
        let mut bytes = [0; 32];
        let random = SystemRandom::new().fill(&mut bytes);
        random.map_err(|_| io::Error::other("the system has no random numbers"))?;
        let token = self.shared().folder_token.get_or_init(|| hex(&bytes));
        let holder = Holder {
            url: url.to_owned(),
            pid: std::process::id(),
            command: command.to_owned(),
            takes_any_key: !self.is_restricted(),
            token: token.clone(),
        };
        let path = self.shared().settings.data.join(FILE);
        write_private(&path, &serde_json::to_vec(&holder)?)?;
        Ok(Announcement { path, holder })
    }

    /// Counts the open sessions whose clients were heard of in the time of this process.
    pub fn open_sessions(&self) -> usize {
        let registry = self.registry();
        let sessions = registry.sessions.values();
        sessions
            .filter(|session| session.is_open() && session.was_heard)
            .count()
    }

    /// Whether other processes use this server: a session is open, or somebody has asked for a proof just now.
    /// Whoever has joined asks again every [`ASK_INTERVAL`].
    pub fn is_used(&self) -> bool {
        let asked = *lock(&self.shared().folder_asked);
        self.open_sessions() > 0 || asked.is_some_and(|time| time.elapsed() < 3 * ASK_INTERVAL)
    }

    /// Answers a nonce, if this server has announced itself.
    pub(crate) fn folder_proof(&self, nonce: &str) -> Option<String> {
        let token = self.shared().folder_token.get()?;
        *lock(&self.shared().folder_asked) = Some(Instant::now());
        Some(proof(token, nonce))
    }
}

fn proof(token: &str, nonce: &str) -> String {
    hex(sign(&Key::new(HMAC_SHA256, token.as_bytes()), nonce.as_bytes()).as_ref())
}

/// Writes a file for the owner alone, whole or not at all.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("json.partial");
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&partial)?.write_all(bytes)?;
    fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    #[test]
    fn a_holder_can_be_found_and_proves_itself_until_it_is_done() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Holder::read(folder.path()), None);
        let server = Server::start_without_models(Settings::new(folder.path())).unwrap();
        assert_eq!(server.folder_proof("n"), None, "nobody was told of it");
        let announced = server.announce("http://127.0.0.1:1", "a test").unwrap();
        let holder = Holder::read(folder.path()).unwrap();
        assert_eq!(
            (holder.url.as_str(), holder.command.as_str(), holder.pid),
            ("http://127.0.0.1:1", "a test", std::process::id())
        );
        assert!(holder.takes_any_key);
        assert!(!server.is_used());
        assert_eq!(server.folder_proof("n"), Some(holder.proof("n")));
        assert!(server.is_used(), "somebody is about to come");
        assert_ne!(holder.proof("n"), holder.proof("m"));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(folder.path().join(FILE))
                .unwrap()
                .permissions();
            assert_eq!(mode.mode() & 0o777, 0o600);
        }
        drop(announced);
        assert_eq!(Holder::read(folder.path()), None);
    }

    #[test]
    fn what_is_not_a_description_of_a_holder_is_none() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{}", "{\"url\": 1}", "not JSON"] {
            fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(Holder::read(folder.path()), None, "{text}");
        }
        let long = " ".repeat(MAX_BYTES as usize + 1);
        fs::write(folder.path().join(FILE), long).unwrap();
        assert_eq!(Holder::read(folder.path()), None);
    }

    #[test]
    fn the_file_of_a_later_holder_stays() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start_without_models(Settings::new(folder.path())).unwrap();
        let announced = server.announce("http://127.0.0.1:1", "a test").unwrap();
        let mut later = Holder::read(folder.path()).unwrap();
        later.pid += 1;
        let text = serde_json::to_vec(&later).unwrap();
        fs::write(folder.path().join(FILE), text).unwrap();
        drop(announced);
        assert_eq!(Holder::read(folder.path()), Some(later));
    }
}
