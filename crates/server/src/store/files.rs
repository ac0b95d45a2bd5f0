//! Where things lie in the data folder.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tinkrs_types::{ModelId, RequestId};

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

    /// Uses a folder, which is made if it is not there.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        for folder in Self::FOLDERS {
            fs::create_dir_all(root.join(folder))?;
        }
        // Whatever an earlier process left half-written is of no use to anybody.
        for left in fs::read_dir(root.join("partial"))? {
            remove(&left?.path());
        }
        let root = root.to_owned();
        Ok(Self { root })
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
        self.root.join("snapshots").join(file_name(run.as_str()))
    }

    pub(crate) fn snapshot(&self, run: &ModelId, seq_id: i64) -> PathBuf {
        self.snapshots(run).join(format!("{seq_id}.safetensors"))
    }

    /// Writes a whole file. What a full disk cuts off does not stay behind.
    pub(super) fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let written = fs::File::create(path).and_then(|mut file| file.write_all(bytes));
        if written.is_err() {
            remove(path);
        }
        written
    }
}

/// Ids have colons, which some file systems do not take.
pub(crate) fn file_name(id: &str) -> String {
    id.replace(':', ".")
}

/// Removes a file or folder. What cannot be removed is only lost space, and nobody's request fails
/// for it.
pub(crate) fn remove(path: &Path) {
    let removed = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "could not remove what is not needed");
        }
        _ => {}
    }
}
