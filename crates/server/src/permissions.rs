//! Who else on this machine can read what the server keeps.
//!
//! A data folder holds weights, prompts and keys' hashes, so only its owner may enter it. A new one is made that
//! way; one that is ours already, or empty, is closed. A folder that has other things in it is left as it is,
//! because closing it might lock somebody out of those: a warning says what to do.

use std::fs::Metadata;
use std::io;
use std::path::Path;

/// Returns whether users other than the owner can read a file or enter a folder.
#[cfg(unix)]
pub(crate) fn are_open_to_others(metadata: &Metadata) -> bool {
    std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0
}

#[cfg(not(unix))]
pub(crate) fn are_open_to_others(_: &Metadata) -> bool {
    false
}

/// Makes a data folder that only its owner can enter, or closes the one that is there.
#[cfg(unix)]
pub(crate) fn make_private_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

    if !folder.exists() {
        if let Some(parent) = folder.parent() {
            std::fs::create_dir_all(parent)?;
        }
        return std::fs::DirBuilder::new().mode(0o700).create(folder);
    }
    if !are_open_to_others(&std::fs::metadata(folder)?) {
        return Ok(());
    }
    let is_ours = folder.join("tinkrs.db").exists() || std::fs::read_dir(folder)?.next().is_none();
    let private = std::fs::Permissions::from_mode(0o700);
    if !is_ours || std::fs::set_permissions(folder, private).is_err() {
        let fix = format!("chmod 700 {}", folder.display());
        tracing::warn!(path = %folder.display(), fix, "other users of this machine can enter the data folder");
    }
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn make_private_folder(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn open(path: &Path) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_data_folder_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("new/data");
        make_private_folder(&data).unwrap();
        assert_eq!(mode(&data), 0o700);
        // An empty one, and one of ours.
        open(&data);
        make_private_folder(&data).unwrap();
        assert_eq!(mode(&data), 0o700);
        open(&data);
        std::fs::write(data.join("tinkrs.db"), "").unwrap();
        make_private_folder(&data).unwrap();
        assert_eq!(mode(&data), 0o700);
    }

    #[test]
    fn a_folder_with_other_things_in_it_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path());
        std::fs::write(folder.path().join("notes.txt"), "").unwrap();
        make_private_folder(folder.path()).unwrap();
        assert_eq!(mode(folder.path()), 0o755);
    }
}
