//! What a folder of weights, or a snapshot, says of itself.
//!
//! Beside the files lies a manifest: whose they are, what they are of, and the size and SHA-256 of each. What is
//! loaded or handed out is compared with it, so damage is an error and never other numbers. And it is enough to
//! write the rows of a lost database again (`data repair`), so it changes with them: it is written before
//! the commit that it describes.
//!
//! It also says where in the data folder they belong, so weights that were copied over others are an error, too.
//!
//! A manifest has two lines of JSON. The second has the digest of the first. It may have been written by a stranger: what
//! it names is checked to be beside it, and only regular files are read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use tinkrs_types::TinkerPath;
use tinkrs_wire::text::hex;

use super::files;
use super::names::{self, NamesFiles, Stray};
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
/// The most bytes of a manifest that are read: hundreds of checkpoints that share a folder, with all the metadata that they
/// may have.
const MAX_BYTES: u64 = 64 << 20;

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
    #[error("{} is not a file", .0.display())]
    NotAFile(PathBuf),
    #[error("{} has other weights: those of {}", path.display(), home.display())]
    Elsewhere { path: PathBuf, home: PathBuf },
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
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, while files are written or read"
)]
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

    /// Reads the manifest in a folder, which must be about this folder.
    pub(crate) fn in_folder(folder: &Path) -> Result<Self, Damage> {
        let manifest = Self::read(&folder.join(FILE))?;
        manifest.about.check_place(folder)?;
        Ok(manifest)
    }

    /// Reads a manifest, of which all must be as it was written.
    pub(crate) fn read(path: &Path) -> Result<Self, Damage> {
        let damaged = |why: &str| Damage::Manifest {
            path: path.to_owned(),
            why: why.to_owned(),
        };
        let size_bytes = size_of_file(path)?;
        if size_bytes > MAX_BYTES {
            let why = format!("it has {size_bytes} bytes, and at most {MAX_BYTES} are read");
            return Err(damaged(&why));
        }
        let bytes = fs::read(path).map_err(|error| Damage::Io(error, path.to_owned()))?;
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
            _ => {
                let manifest: Self =
                    serde_json::from_slice(text).map_err(|error| damaged(&error.to_string()))?;
                manifest.check().map_err(|why| damaged(&why))?;
                Ok(manifest)
            }
        }
    }

    /// Refuses names that lead elsewhere, and digests that are none.
    fn check(&self) -> Result<(), String> {
        self.about
            .check_names()
            .map_err(|stray| stray.to_string())?;
        if let About::Checkpoints(all) = &self.about
            && all.iter().any(|saved| saved.folder != all[0].folder)
        {
            return Err("its checkpoints are in several folders".to_owned());
        }
        for (name, file) in &self.files {
            names::check_name(name).map_err(|stray| stray.to_string())?;
            let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
            if file.sha256.len() != 64 || !file.sha256.bytes().all(is_hex) {
                let found = file.sha256.chars().take(64).collect::<String>();
                return Err(format!(
                    "`{found}`, expected 64 hexadecimal digits in lower case"
                ));
            }
        }
        Ok(())
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

impl About {
    /// Returns where in the data folder it belongs; `None` if it describes nothing.
    pub(crate) fn home(&self) -> Option<PathBuf> {
        match self {
            Self::Checkpoints(all) => all.first().map(|saved| saved.folder.clone()),
            Self::Sampler(sampler) => sampler.adapter.clone(),
            Self::Snapshot { run, seq_id } => Some(files::snapshot_path(&run.id, *seq_id)),
        }
    }

    /// Refuses weights that lie in the place of others.
    pub(super) fn check_place(&self, place: &Path) -> Result<(), Damage> {
        match self.home() {
            Some(home) if !place.ends_with(&home) => Err(Damage::Elsewhere {
                path: place.to_owned(),
                home,
            }),
            _ => Ok(()),
        }
    }
}

impl NamesFiles for About {
    fn check_names(&self) -> Result<(), Stray> {
        match self {
            Self::Checkpoints(all) => all.iter().try_for_each(NamesFiles::check_names),
            Self::Sampler(sampler) => sampler.check_names(),
            Self::Snapshot { run, .. } => run.check_names(),
        }
    }
}

/// Returns the size of a regular file. Links are not followed, and a pipe is not waited for.
fn size_of_file(path: &Path) -> Result<u64, Damage> {
    let about = fs::symlink_metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Damage::Missing(path.to_owned()),
        _ => Damage::Io(error, path.to_owned()),
    })?;
    if about.is_file() {
        Ok(about.len())
    } else {
        Err(Damage::NotAFile(path.to_owned()))
    }
}

impl FileDigest {
    fn of(path: &Path) -> io::Result<Self> {
        if !fs::symlink_metadata(path)?.is_file() {
            let text = format!("{} is not a file", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
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
        // Of another size there is nothing to be read.
        let size = size_of_file(path)?;
        if size != self.size_bytes {
            return Err(Damage::Size {
                path: path.to_owned(),
                found: size,
                expected: self.size_bytes,
            });
        }
        let found = Self::of(path).map_err(|error| Damage::Io(error, path.to_owned()))?;
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
    Manifest::in_folder(folder)?.verify(folder, is_needed)
}

/// Compares a snapshot with what it was when it was taken.
pub(crate) fn verify_snapshot(snapshot: &Path) -> Result<(), Damage> {
    let manifest = Manifest::read(&of_snapshot(snapshot))?;
    manifest.about.check_place(snapshot)?;
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
        let snapshot = root.path().join("snapshots/s.train.0/7.safetensors");
        fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
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

    /// Writes a manifest with a text in place of another, as a stranger would: with the digest that fits.
    fn forge(path: &Path, from: &str, to: &str) {
        let whole = fs::read_to_string(path).unwrap();
        let text = whole.lines().next().unwrap();
        assert!(text.contains(from), "{text}");
        let text = text.replace(from, to);
        let sha256 = hex(&digest(text.as_bytes()));
        fs::write(path, format!("{text}\n{{\"sha256\":\"{sha256}\"}}\n")).unwrap();
    }

    #[test]
    fn a_forged_manifest_that_leads_elsewhere_or_has_no_digests_is_not_taken() {
        for (from, to, said) in [
            ("7.safetensors", "../7.safetensors", "`../7.safetensors`"),
            ("7.safetensors", "/etc/passwd", "`/etc/passwd`"),
            ("s:train:0", "../../x", "`../../x`"),
            ("\"sha256\":\"", "\"sha256\":\"A", "in lower case"),
            ("\"owner-", "\"", "expected `owner-`"),
            ("{\"version\":1,", "{", "missing field `version`"),
        ] {
            let (_root, snapshot) = described();
            forge(&of_snapshot(&snapshot), from, to);
            let error = verify_snapshot(&snapshot).unwrap_err().to_string();
            assert!(error.contains(said), "{to}: {error}");
        }
        let (_root, snapshot) = described();
        let path = of_snapshot(&snapshot);
        let manifest = fs::read_to_string(&path).unwrap();
        let (text, seal) = manifest.split_once('\n').unwrap();
        fs::write(&path, format!("{text}\n{}", seal.to_uppercase())).unwrap();
        assert!(Manifest::read(&path).is_err(), "a digest in upper case");
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let error = Manifest::read(&path).unwrap_err().to_string();
        assert!(error.contains("at most 67108864 are read"), "{error}");
    }

    #[test]
    fn weights_that_were_copied_over_others_are_not_taken() {
        let (root, snapshot) = described();
        let other = root.path().join("snapshots/t.train.0/7.safetensors");
        fs::create_dir_all(other.parent().unwrap()).unwrap();
        fs::copy(&snapshot, &other).unwrap();
        fs::copy(of_snapshot(&snapshot), of_snapshot(&other)).unwrap();
        let error = verify_snapshot(&other).unwrap_err().to_string();
        assert!(
            error.ends_with("has other weights: those of snapshots/s.train.0/7.safetensors"),
            "{error}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let (root, snapshot) = described();
        let outside = root.path().join("outside");
        fs::rename(&snapshot, &outside).unwrap();
        std::os::unix::fs::symlink(&outside, &snapshot).unwrap();
        let error = verify_snapshot(&snapshot).unwrap_err().to_string();
        assert!(error.ends_with("7.safetensors is not a file"), "{error}");
        let error = describe_snapshot(&snapshot, RunRecord::example(), 7).unwrap_err();
        assert!(error.to_string().ends_with("7.safetensors is not a file"));
    }
}
