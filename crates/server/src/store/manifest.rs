//! What a folder of weights, or a snapshot, says of itself.
//!
//! Beside the files lies a manifest: whose they are, what they are of, and the size and SHA-256 of each. What is
//! loaded or handed out is compared with it, so damage is an error and never other numbers. And it is enough to
//! write the rows of a lost database again (`data repair`), so it changes with them: it is written before
//! the commit that it describes.
//!
//! A manifest has two lines of JSON. The second has the digest of the first.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use tinkrs_types::TinkerPath;
use tinkrs_wire::text::hex;

use super::files;
use crate::accept::digest;
use crate::registry::records::{RunRecord, SamplerRecord, SavedCheckpoint};

/// The manifest of a folder, in the folder.
pub(crate) const FILE: &str = "manifest.jsonl";
/// What a snapshot's manifest has in the place of its `safetensors`.
const SNAPSHOT_ENDING: &str = "manifest.jsonl";
/// The version that this program writes and reads.
const VERSION: u32 = 1;
/// How much of a file is hashed at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Why saved weights are not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Damage {
    #[error("{} is missing", .0.display())]
    Missing(PathBuf),
    #[error("{} is damaged: it has {found} bytes, and had {expected} when it was saved", path.display())]
    Size {
        path: PathBuf,
        found: u64,
        expected: u64,
    },
    #[error("{} is damaged: its SHA-256 is {found}, and was {expected} when it was saved", path.display())]
    Digest {
        path: PathBuf,
        found: String,
        expected: String,
    },
    #[error("{} is damaged: {why}", path.display())]
    Manifest { path: PathBuf, why: String },
    #[error("could not read {}", .1.display())]
    Io(#[source] io::Error, PathBuf),
}

/// What is known of saved files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: u32,
    pub(crate) about: About,
    /// By name.
    files: BTreeMap<String, FileDigest>,
}

/// What saved files are.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum About {
    /// A checkpoint; several, if some are copies.
    Checkpoints(Vec<SavedCheckpoint>),
    /// The adapter of a sampling session.
    Sampler(SamplerRecord),
    /// The state of a run after an operation.
    Snapshot { run: RunRecord, seq_id: i64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileDigest {
    size_bytes: u64,
    sha256: String,
}

#[derive(Serialize, Deserialize)]
struct Seal {
    sha256: String,
}

impl Manifest {
    /// Describes the files of a folder, whose size is given to `about`.
    pub(crate) fn of_folder(folder: &Path, about: impl FnOnce(u64) -> About) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        for path in files_in(folder)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            files.insert(name.into_owned(), FileDigest::of(&path)?);
        }
        let size = files.values().map(|file| file.size_bytes).sum();
        Ok(Self {
            version: VERSION,
            about: about(size),
            files,
        })
    }

    /// Describes one file.
    pub(crate) fn of_file(path: &Path, about: About) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let files = [(name.into_owned(), FileDigest::of(path)?)].into();
        let version = VERSION;
        Ok(Self {
            version,
            about,
            files,
        })
    }

    /// Reads a manifest, of which all must be as it was written.
    pub(crate) fn read(path: &Path) -> Result<Self, Damage> {
        let bytes = fs::read(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Damage::Missing(path.to_owned()),
            _ => Damage::Io(error, path.to_owned()),
        })?;
        let damaged = |why: &str| Damage::Manifest {
            path: path.to_owned(),
            why: why.to_owned(),
        };
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let (Some(text), Some(seal)) = (lines.next(), lines.next()) else {
            return Err(damaged("it has no digest of its own"));
        };
        let seal: Option<Seal> = serde_json::from_slice(seal).ok();
        if seal.is_none_or(|seal| seal.sha256 != hex(&digest(text))) {
            return Err(damaged("it is not what its own digest is of"));
        }
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        match serde_json::from_slice(text) {
            Ok(Version { version }) if version > VERSION => {
                Err(damaged("it was written by a newer version of this program"))
            }
            _ => serde_json::from_slice(text).map_err(|error| damaged(&error.to_string())),
        }
    }

    /// Returns what is written.
    pub(crate) fn text(&self) -> String {
        let mut text = serde_json::to_string(self).expect("records have text keys");
        let seal = Seal {
            sha256: hex(&digest(text.as_bytes())),
        };
        text.push('\n');
        text += &serde_json::to_string(&seal).expect("a text");
        text.push('\n');
        text
    }

    /// Writes the manifest in place of the one that is there, durably.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        files::replace(path, self.text().as_bytes())
    }

    /// Compares the files of a folder with what they were. `is_needed` chooses by name.
    pub(crate) fn verify(
        &self,
        folder: &Path,
        is_needed: impl Fn(&str) -> bool,
    ) -> Result<(), Damage> {
        for (name, expected) in &self.files {
            if is_needed(name) {
                expected.verify(&folder.join(name))?;
            }
        }
        Ok(())
    }

    /// Returns the names of the files.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

impl FileDigest {
    fn of(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let (mut context, mut buffer) = (Context::new(&SHA256), vec![0; CHUNK_BYTES]);
        let mut size_bytes = 0;
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            size_bytes += count as u64;
            context.update(&buffer[..count]);
        }
        let sha256 = hex(context.finish().as_ref());
        Ok(Self { size_bytes, sha256 })
    }

    fn verify(&self, path: &Path) -> Result<(), Damage> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Damage::Missing(path.to_owned()),
            _ => Damage::Io(error, path.to_owned()),
        };
        // Of another size there is nothing to be read.
        let size = fs::metadata(path).map_err(failed)?.len();
        if size != self.size_bytes {
            return Err(Damage::Size {
                path: path.to_owned(),
                found: size,
                expected: self.size_bytes,
            });
        }
        let found = Self::of(path).map_err(failed)?;
        if found != *self {
            return Err(Damage::Digest {
                path: path.to_owned(),
                found: found.sha256,
                expected: self.sha256.clone(),
            });
        }
        Ok(())
    }
}

/// Returns where the manifest of a snapshot is.
pub(crate) fn of_snapshot(snapshot: &Path) -> PathBuf {
    snapshot.with_extension(SNAPSHOT_ENDING)
}

/// Returns the snapshot that a manifest is of.
pub(super) fn described_by(manifest: &Path) -> PathBuf {
    let name = manifest.to_string_lossy();
    let name = name.trim_end_matches(SNAPSHOT_ENDING);
    PathBuf::from(format!("{name}safetensors"))
}

/// Compares files of a folder with what they were when they were saved.
pub(crate) fn verify(folder: &Path, is_needed: impl Fn(&str) -> bool) -> Result<(), Damage> {
    Manifest::read(&folder.join(FILE))?.verify(folder, is_needed)
}

/// Compares a snapshot with what it was when it was taken.
pub(crate) fn verify_snapshot(snapshot: &Path) -> Result<(), Damage> {
    let manifest = Manifest::read(&of_snapshot(snapshot))?;
    let folder = snapshot.parent().unwrap_or(Path::new("."));
    manifest.verify(folder, |_| true)
}

/// Writes of a run's state in a file what it is.
pub(crate) fn describe_snapshot(snapshot: &Path, run: RunRecord, seq_id: i64) -> io::Result<()> {
    let about = About::Snapshot { run, seq_id };
    Manifest::of_file(snapshot, about)?.write(&of_snapshot(snapshot))
}

/// Brings a checkpoint's manifest in line with its row, which is about to be committed. A manifest that is
/// missing or damaged stays as it is, for loading to find.
pub(super) fn put(root: &Path, saved: &SavedCheckpoint) -> io::Result<()> {
    let text = |saved: &SavedCheckpoint| serde_json::to_value(saved).ok();
    change(&root.join(&saved.folder), |all| {
        match all.iter_mut().find(|known| known.path() == saved.path()) {
            Some(known) if text(known) == text(saved) => false,
            Some(known) => {
                *known = saved.clone();
                true
            }
            None => {
                all.push(saved.clone());
                true
            }
        }
    })
}

/// Takes a checkpoint out of the manifest of a folder that others share.
pub(super) fn take(folder: &Path, path: &TinkerPath) -> io::Result<()> {
    change(folder, |all| {
        let before = all.len();
        all.retain(|known| known.path() != path);
        all.len() < before
    })
}

fn change(folder: &Path, change: impl FnOnce(&mut Vec<SavedCheckpoint>) -> bool) -> io::Result<()> {
    let path = folder.join(FILE);
    match Manifest::read(&path) {
        Ok(mut manifest) => {
            let is_changed = match &mut manifest.about {
                About::Checkpoints(all) => change(all),
                About::Sampler(_) | About::Snapshot { .. } => false,
            };
            if is_changed {
                manifest.write(&path)?;
            }
            Ok(())
        }
        Err(damage) => {
            tracing::warn!(%damage, "a checkpoint cannot be described");
            Ok(())
        }
    }
}

/// Lists the files of a folder that a manifest describes: all but itself.
pub(crate) fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        if file.file_name() != FILE {
            found.push(file.path());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let snapshot = root.path().join("7.safetensors");
        fs::write(&snapshot, "state").unwrap();
        describe_snapshot(&snapshot, RunRecord::example(), 7).unwrap();
        (root, snapshot)
    }

    #[test]
    fn files_that_are_as_they_were_are_taken_and_others_are_named() {
        let (_root, snapshot) = described();
        verify_snapshot(&snapshot).unwrap();
        for (damage, said) in [
            ("statE", "SHA-256"),
            ("stat", "4 bytes"),
            ("state!", "6 bytes"),
        ] {
            fs::write(&snapshot, damage).unwrap();
            let text = verify_snapshot(&snapshot).unwrap_err().to_string();
            assert!(text.contains(said), "{damage}: {text}");
            assert!(text.contains("7.safetensors is damaged"), "{text}");
        }
        fs::remove_file(&snapshot).unwrap();
        let text = verify_snapshot(&snapshot).unwrap_err().to_string();
        assert!(text.contains("7.safetensors is missing"), "{text}");
    }

    #[test]
    fn a_manifest_with_any_bit_changed_is_not_taken() {
        let (_root, snapshot) = described();
        let path = of_snapshot(&snapshot);
        let whole = fs::read(&path).unwrap();
        let manifest = Manifest::read(&path).unwrap();
        assert!(matches!(manifest.about, About::Snapshot { seq_id: 7, .. }));
        for position in 0..whole.len() - 1 {
            let mut changed = whole.clone();
            changed[position] ^= 1 << (position % 8);
            fs::write(&path, &changed).unwrap();
            let damage = Manifest::read(&path).err();
            let is_named = damage.is_some_and(|damage| damage.to_string().contains("damaged"));
            // Inside the digest's line only the digest matters.
            let in_seal = position > whole.len() - 80;
            assert!(is_named || in_seal, "byte {position}");
        }
        for length in 0..whole.len() - 2 {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(Manifest::read(&path).is_err(), "{length} bytes");
        }
    }
}
