//! Keys that stay on this machine, in `~/.tinker/credentials.json`.
//!
//! The file is shared with the official tool, so its format is fixed: version 1, two spaces of
//! indentation, absent members left out. Only its owner may read it, and a reader never sees
//! half of it: it is written beside its place and then moved there.

use super::{AuthError, Secret};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tinkrs_wire::op::get_api_key::KeyDetails;
use zeroize::Zeroizing;

const FILE_NAME: &str = "credentials.json";
const VERSION: u64 = 1;

/// The file in which keys are stored.
///
/// ```
/// use tinkrs::auth::{CredentialStore, StoredKey};
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path().join(".tinker");
/// let store = CredentialStore::in_directory(folder);
/// let mut stored = store.load()?; // a file that does not exist is an empty store
/// stored.insert_default("1234", StoredKey::manual("tml-abcd", "tinker-cli-laptop"));
/// store.save(&stored)?;
/// assert_eq!(store.load()?.default_key().unwrap().1.name, "tinker-cli-laptop");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialStore {
    directory: PathBuf,
}

impl CredentialStore {
    /// Returns the store of the user who runs this program, `~/.tinker`.
    ///
    /// # Errors
    /// If the user has no home directory.
    pub fn of_user() -> Result<Self, AuthError> {
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        let home = home.ok_or(AuthError::NoHome)?;
        Ok(Self::in_directory(home.join(".tinker")))
    }

    /// Returns the store in another directory, which need not exist yet.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.join(FILE_NAME)
    }

    /// Reads the file. If there is none, the store is empty.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a store of version 1. The error names the file and
    /// shows none of its contents.
    pub fn load(&self) -> Result<StoredCredentials, AuthError> {
        let path = self.path();
        let text = match fs::read(&path) {
            Ok(bytes) => Zeroizing::new(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(StoredCredentials::default());
            }
            Err(source) => return Err(store_error("read", path, source)),
        };
        parse(&text).map_err(|problem| AuthError::MalformedStore { path, problem })
    }

    /// Replaces the file, and creates its directory if needed, for the user alone.
    ///
    /// # Errors
    /// If the directory or the file cannot be written. The old file is then still in place.
    pub fn save(&self, stored: &StoredCredentials) -> Result<(), AuthError> {
        create_private_directory(&self.directory)
            .map_err(|source| store_error("create", self.directory.clone(), source))?;
        let path = self.path();
        replace(&path, &encode(stored)).map_err(|source| store_error("write", path, source))
    }
}

/// The stored keys, and which of them is used by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredCredentials {
    default: Option<String>,
    keys: BTreeMap<String, StoredKey>,
}

impl StoredCredentials {
    /// Returns the default key and its id. A default that names no key counts as none.
    pub fn default_key(&self) -> Option<(&str, &StoredKey)> {
        let (id, key) = self.keys.get_key_value(self.default.as_ref()?)?;
        Some((id, key))
    }

    /// Returns all keys by their ids.
    pub fn keys(&self) -> &BTreeMap<String, StoredKey> {
        &self.keys
    }

    /// Adds a key, or replaces the one with that id, and makes it the default.
    pub fn insert_default(&mut self, id: impl Into<String>, key: StoredKey) {
        let id = id.into();
        self.default = Some(id.clone());
        self.keys.insert(id, key);
    }

    /// Removes the default key, after which there is none.
    pub fn remove_default(&mut self) -> Option<(String, StoredKey)> {
        self.keys.remove_entry(&self.default.take()?)
    }

    pub(crate) fn default_secret(&self) -> Option<Secret> {
        self.default_key().map(|(_, key)| key.key.clone())
    }
}

/// A stored key.
///
/// It cannot be serialized outside of the store, lest the key end up in some output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKey {
    /// How the key came to be.
    pub kind: KeyKind,
    /// The key itself.
    pub key: Secret,
    /// Its name on the server.
    pub name: String,
    /// A note on it. Generated keys have none.
    pub note: Option<String>,
    /// Whose it is. Generated keys always say so.
    pub details: Option<KeyDetails>,
}

impl StoredKey {
    /// Describes a key that the user made and pasted.
    pub fn manual(key: impl Into<Secret>, name: impl Into<String>) -> Self {
        Self {
            kind: KeyKind::Manual,
            key: key.into(),
            name: name.into(),
            note: None,
            details: None,
        }
    }
}

/// How a stored key came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyKind {
    /// The user made it and pasted it.
    Manual,
    /// An older tool made it, and logging out should delete it on the server.
    Generated,
}

/// The file as it is written.
#[derive(Serialize, Deserialize)]
struct Contents {
    version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    keys: BTreeMap<String, Record>,
}

/// A [`StoredKey`] as it is written.
#[derive(Serialize, Deserialize)]
struct Record {
    #[serde(rename = "type")]
    kind: KeyKind,
    #[serde(with = "secret_text")]
    key: Secret,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<KeyDetails>,
}

fn parse(text: &[u8]) -> Result<StoredCredentials, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u64,
    }
    // Read on its own, because a later version may have other members.
    let Version { version } = serde_json::from_slice(text).map_err(position)?;
    if version != VERSION {
        return Err(format!("version {version} is not known, only {VERSION}"));
    }
    let contents: Contents = serde_json::from_slice(text).map_err(position)?;
    let incomplete = |key: &Record| key.kind == KeyKind::Generated && key.details.is_none();
    if contents.keys.values().any(incomplete) {
        return Err("a generated key lacks its details".to_owned());
    }
    let keys = contents.keys.into_iter();
    Ok(StoredCredentials {
        default: contents.default,
        keys: keys.map(|(id, record)| (id, record.into())).collect(),
    })
}

fn encode(stored: &StoredCredentials) -> Zeroizing<Vec<u8>> {
    let keys = stored.keys.iter();
    let contents = Contents {
        version: VERSION,
        default: stored.default.clone(),
        keys: keys
            .map(|(id, key)| (id.clone(), key.clone().into()))
            .collect(),
    };
    let mut text = Zeroizing::new(Vec::with_capacity(4096));
    serde_json::to_writer_pretty(&mut *text, &contents).expect("the file has text keys only");
    text.push(b'\n');
    text
}

impl From<Record> for StoredKey {
    fn from(record: Record) -> Self {
        Self {
            kind: record.kind,
            key: record.key,
            name: record.name,
            note: record.note,
            details: record.details,
        }
    }
}

impl From<StoredKey> for Record {
    fn from(key: StoredKey) -> Self {
        Self {
            kind: key.kind,
            key: key.key,
            name: key.name,
            note: key.note,
            details: key.details,
        }
    }
}

/// Says where a parser stopped. Its own message may quote the file, and so a key.
fn position(error: serde_json::Error) -> String {
    let problem = match error.classify() {
        serde_json::error::Category::Data => "a member is missing or has the wrong type",
        _ => "this is not JSON",
    };
    format!(
        "line {}, column {}: {problem}",
        error.line(),
        error.column()
    )
}

fn store_error(action: &'static str, path: PathBuf, source: io::Error) -> AuthError {
    AuthError::Store {
        action,
        path,
        source,
    }
}

/// Creates a directory that only its owner may enter. One that exists is left as it is.
fn create_private_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(directory) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        created => created?,
    }
    // The umask may have taken away too much.
    #[cfg(unix)]
    fs::set_permissions(
        directory,
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )?;
    Ok(())
}

fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let temporary = path.with_file_name(format!(".{FILE_NAME}.{:016x}.tmp", fastrand::u64(..)));
    let written = write_private(&temporary, contents).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // the first error is the one to report
    }
    written
}

fn write_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file: File = options.open(path)?;
    // The umask may have taken away too much.
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    file.write_all(contents)?;
    file.sync_all()
}

/// A secret as plain text, which it is in this file only.
mod secret_text {
    use super::Secret;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(secret: &Secret, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(secret.expose())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
        String::deserialize(from).map(Secret::from)
    }
}

#[cfg(test)]
mod tests;
