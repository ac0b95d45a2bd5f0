//! The folder of a run.

use crate::Error;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::path::Path;

/// Makes the folder of a run. It will hold prompts and answers, so only its owner can enter a new one; the
/// permissions of one that is there are its owner's choice.
///
/// # Errors
/// If it cannot be made.
pub fn make_folder(folder: impl AsRef<Path>) -> Result<(), Error> {
    let folder = folder.as_ref();
    let failed = || Error::file("create", folder);
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent).map_err(failed())?;
    }
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(failed())
}

/// Keeps others from going on with the run in a folder while the returned file is open: two at a time would write
/// their steps into one journal.
///
/// # Errors
/// If another one has it, or the file that stands for it cannot be made.
pub(crate) fn hold(folder: &Path) -> Result<File, Error> {
    let path = folder.join(".lock");
    // Nothing is cut off, whatever a folder from elsewhere has under this name.
    let opened = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = opened.map_err(Error::file("create", &path))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::UnderWay {
            folder: folder.to_owned(),
        }),
        // Not every file system has locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

#[cfg(test)]
mod tests_of_hold {
    use super::*;

    #[test]
    fn a_run_goes_on_once_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let first = hold(root.path()).unwrap();
        let error = hold(root.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("is under way in another process"),
            "{error}"
        );
        drop(first);
        hold(root.path()).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_a_folder_from_elsewhere_costs_no_file() {
        let root = tempfile::tempdir().unwrap();
        let precious = root.path().join("precious");
        std::fs::write(&precious, "words").unwrap();
        std::os::unix::fs::symlink(&precious, root.path().join(".lock")).unwrap();
        hold(root.path()).unwrap();
        assert_eq!(std::fs::read_to_string(precious).unwrap(), "words");
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_new_folder_is_for_its_owner_alone_and_another_stays_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("runs/first");
        let mode = || std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777;
        make_folder(&folder).unwrap();
        assert_eq!(mode(), 0o700);
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o750)).unwrap();
        make_folder(&folder).unwrap();
        assert_eq!(mode(), 0o750);
    }
}
