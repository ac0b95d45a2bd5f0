//! Where things lie in the data folder, and how they get there for good.
//!
//! A loss of power takes what was not synced: bytes of a file, and also its name, which belongs to
//! the folder. So a file is synced, then the folders above it, and only then may the database name
//! it. `tests/it/power` shows that nothing is missing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tinkrs_types::{ModelId, RequestId};

use super::manifest;

/// The paths of a data folder.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    root: PathBuf,
}

impl Files {
    /// The folders that a data folder has.
    const FOLDERS: [&str; 6] = [
        "bodies",
        "results",
        "snapshots",
        "checkpoints",
        "samplers",
        "partial",
    ];

    /// The folders that hold weights, and how deep below them each one lies.
    pub(super) const WEIGHTS: [(&str, u32); 3] =
        [("samplers", 1), ("snapshots", 2), ("checkpoints", 3)];

    /// Uses a folder, which is made if it is not there.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        for folder in Self::FOLDERS {
            fs::create_dir_all(root.join(folder))?;
        }
        sync_folder(root)?;
        let root = root.to_owned();
        Ok(Self { root })
    }

    /// Lists the dated folders of the quarantine, each of which has the same folders as the data folder.
    pub(super) fn quarantined(&self) -> Vec<Self> {
        let folders = entries_of(&self.root.join("quarantine")).filter(|(_, is_folder)| *is_folder);
        folders.map(|(root, _)| Self { root }).collect()
    }

    /// Names a folder as it is; nothing is made.
    pub(super) fn at(root: &Path) -> Self {
        let root = root.to_owned();
        Self { root }
    }

    /// Removes what an earlier process left half-written.
    pub(super) fn remove_partial(&self) -> io::Result<()> {
        for left in fs::read_dir(self.root.join("partial"))? {
            remove(&left?.path());
        }
        Ok(())
    }

    /// Lists everything that holds weights: the folders of checkpoints and samplers, and snapshots.
    pub(super) fn weights(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for (folder, depth) in Self::WEIGHTS {
            entries_below(&self.root.join(folder), depth, &mut found);
        }
        found
    }

    /// Returns a path inside the data folder if weights lie there.
    pub(super) fn as_weights<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        let inside = path.strip_prefix(&self.root).ok()?;
        let is_weights = |(folder, _)| inside.starts_with(folder);
        Self::WEIGHTS.into_iter().any(is_weights).then_some(inside)
    }

    /// Removes the folders of runs that nothing is in any more.
    pub(super) fn remove_empty_folders(&self) {
        for (folder, depth) in Self::WEIGHTS {
            remove_empty_below(&self.root.join(folder), depth);
        }
    }

    /// Moves something out of the way that must not be lost, to its own place in a folder of
    /// `quarantine/`. Returns where it is now.
    pub(super) fn quarantine(&self, path: &Path, into: &str) -> io::Result<PathBuf> {
        let inside = path.strip_prefix(&self.root).unwrap_or(path);
        let place = self.root.join("quarantine").join(into).join(inside);
        fs::create_dir_all(place.parent().unwrap_or(&self.root))?;
        fs::rename(path, &place)?;
        Ok(place)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.root.join("tinkrs.db")
    }

    pub(crate) fn body(&self, id: &RequestId) -> PathBuf {
        self.root.join("bodies").join(id.as_str())
    }

    pub(crate) fn result(&self, id: &RequestId) -> PathBuf {
        self.root.join("results").join(id.as_str())
    }

    pub(crate) fn snapshots(&self, run: &ModelId) -> PathBuf {
        self.root.join(snapshots_path(run))
    }

    pub(crate) fn snapshot(&self, run: &ModelId, seq_id: i64) -> PathBuf {
        self.root.join(snapshot_path(run, seq_id))
    }

    /// Returns the files of a snapshot: its own and its manifest.
    pub(super) fn snapshot_files(&self, run: &ModelId, seq_id: i64) -> [PathBuf; 2] {
        let snapshot = self.snapshot(run, seq_id);
        let manifest = manifest::of_snapshot(&snapshot);
        [snapshot, manifest]
    }

    /// Returns a path for a file or folder that is not whole yet.
    pub(crate) fn partial(&self) -> PathBuf {
        let name = format!("{:016x}", fastrand::u64(..));
        self.root.join("partial").join(name)
    }

    /// Moves a file or folder that is whole now to its place, durably. Returns its size.
    pub(crate) fn publish(&self, partial: &Path, path: &Path) -> io::Result<u64> {
        let size_bytes = sync_tree(partial)?;
        fs::create_dir_all(parent(path))?;
        fs::rename(partial, path)?;
        // All folders above it: each of them may be new, too.
        let above = path.ancestors().skip(1);
        for folder in above.take_while(|folder| folder.starts_with(&self.root)) {
            sync_folder(folder)?;
        }
        Ok(size_bytes)
    }
}

fn snapshots_path(run: &ModelId) -> PathBuf {
    Path::new("snapshots").join(file_name(run.as_str()))
}

/// Returns where a snapshot is in the data folder.
pub(super) fn snapshot_path(run: &ModelId, seq_id: i64) -> PathBuf {
    snapshots_path(run).join(format!("{seq_id}.safetensors"))
}

/// Refuses a data folder in which something else is in the place of its own files and folders. A symbolic link leads
/// elsewhere, where nothing must be written, moved or removed; a pipe would be waited for.
pub(super) fn check_kinds(root: &Path) -> io::Result<()> {
    let files = [
        "lock",
        "revoked-keys",
        "secret",
        "tinkrs.db",
        "tinkrs.db-shm",
        "tinkrs.db-wal",
    ];
    let folders = Files::FOLDERS.into_iter().chain(["quarantine"]);
    let expected = files.map(|name| (name, false)).into_iter();
    for (name, is_folder) in expected.chain(folders.map(|name| (name, true))) {
        let path = root.join(name);
        let found = match fs::symlink_metadata(&path) {
            Ok(about) if about.is_symlink() => "a symbolic link",
            Ok(about) if about.is_dir() == is_folder && about.is_file() != is_folder => continue,
            Ok(_) => "something else",
            Err(_) => continue,
        };
        let expected = if is_folder { "a folder" } else { "a file" };
        let text = format!("{} is {found}, and must be {expected}", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(())
}

/// Lets `make` make a folder and what is missing above it, durably.
pub(crate) fn make_root<T>(
    root: &Path,
    make: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let missing = missing_of(root);
    let made = make(root)?;
    for folder in missing {
        sync_folder(parent(&folder))?;
    }
    Ok(made)
}

/// Returns a folder and those above it that are not there.
fn missing_of(folder: &Path) -> Vec<PathBuf> {
    let above = folder.ancestors();
    // Above a relative path is the current folder, under an empty name.
    let named = above.take_while(|folder| !folder.as_os_str().is_empty());
    let missing = named.take_while(|folder| !folder.exists());
    missing.map(Path::to_owned).collect()
}

/// Writes a whole new file, durably. What a full disk cuts off does not stay behind.
pub(super) fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        sync_folder(parent(path))
    });
    if written.is_err() {
        remove(path);
    }
    written
}

/// Returns a path with something after its name.
pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Replaces a file, durably: a crash leaves the old one or the new one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = with_ending(path, ".partial");
    write_durably(&partial, bytes)?;
    fs::rename(&partial, path)?;
    sync_folder(parent(path))
}

/// Makes a file durable, or all files in a folder with their names in it. Its own name is not part of that.
/// Returns the size.
fn sync_tree(path: &Path) -> io::Result<u64> {
    if !path.is_dir() {
        return sync_file(path);
    }
    let mut size_bytes = 0;
    for entry in fs::read_dir(path)? {
        size_bytes += sync_tree(&entry?.path())?;
    }
    sync_folder(path)?;
    Ok(size_bytes)
}

/// Makes the bytes of a file durable, also if another library wrote them. Returns how many there are.
pub(crate) fn sync_file(path: &Path) -> io::Result<u64> {
    // Windows syncs only what it may write.
    let file = File::options().read(true).write(cfg!(windows)).open(path)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// Makes the names in a folder durable. Windows cannot open folders.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Returns the folder that a path is in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

/// Ids have colons, which some file systems do not take.
pub(crate) fn file_name(id: &str) -> String {
    id.replace(':', ".")
}

/// Returns a name for what is set aside now, which sorts by time.
pub(crate) fn dated() -> String {
    let now = Timestamp::now().strftime("%Y%m%dT%H%M%S");
    format!("{now}Z-{:04x}", fastrand::u16(..))
}

/// Whether a file was not written to its end.
pub(super) fn is_partial(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "partial")
}

fn remove_empty_below(folder: &Path, depth: u32) {
    for (path, is_folder) in entries_of(folder) {
        if depth > 1 && is_folder {
            remove_empty_below(&path, depth - 1);
            // Refused by the system unless the folder is empty.
            let _ = fs::remove_dir(&path);
        }
    }
}

/// Lists what is in a folder, and which of it are folders. A symbolic link is none, wherever it leads.
fn entries_of(folder: &Path) -> impl Iterator<Item = (PathBuf, bool)> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        (entry.path(), is_folder)
    })
}

/// Collects what lies `depth` levels below a folder, and what lies in its place above.
fn entries_below(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) {
    for (path, is_folder) in entries_of(folder) {
        if depth > 1 && is_folder {
            entries_below(&path, depth - 1, found);
        } else {
            found.push(path);
        }
    }
}

/// Removes a file or folder. What cannot be removed is only lost space, and no request fails for it.
pub(crate) fn remove(path: &Path) {
    let removed = if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "could not remove what is not needed");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_folder_is_not_missing() {
        let missing = missing_of(Path::new("not-there/nor-this"));
        assert_eq!(
            missing,
            ["not-there/nor-this", "not-there"].map(PathBuf::from)
        );
    }
}
