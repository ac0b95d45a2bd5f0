//! The folder of a run.

use crate::Error;
use std::fs::DirBuilder;
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
