//! Who else on this machine can read what the server keeps.
//!
//! A data folder holds weights, prompts and hashes of keys, so only its owner may enter it. A new one is made that
//! way. One that a server made earlier is closed with all that is in it, and so is an empty one. A folder that has
//! other things in it is left as it is, because other users may need those: a warning says what to do.

use std::fs::Metadata;
use std::io;
use std::path::Path;

/// Whether other users of this machine can enter a data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Privacy {
    /// Only its owner can.
    Private,
    /// They can: the folder has other things in it, or belongs to another user.
    OpenToOthers,
}

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
pub(crate) fn make_private_folder(folder: &Path) -> io::Result<Privacy> {
    use std::os::unix::fs::DirBuilderExt;

    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        // A umask may have taken away too much.
        Ok(()) => return set_mode(folder, 0o700).map(|()| Privacy::Private),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let is_of_server = is_of_server(folder)?;
    if !are_open_to_others(&std::fs::metadata(folder)?) {
        return Ok(Privacy::Private);
    }
    if !is_of_server || set_mode(folder, 0o700).is_err() {
        return Ok(Privacy::OpenToOthers);
    }
    close_all_in(folder);
    Ok(Privacy::Private)
}

#[cfg(not(unix))]
pub(crate) fn make_private_folder(folder: &Path) -> io::Result<Privacy> {
    std::fs::create_dir_all(folder)?;
    Ok(Privacy::Private)
}

/// Whether a folder is empty, or a server made what is in it.
#[cfg(unix)]
fn is_of_server(folder: &Path) -> io::Result<bool> {
    // The built-in model is unpacked before there is a database.
    const MADE_FIRST: [&str; 2] = ["models", "lock"];
    let mut is_of_server = true;
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name == "tinkrs.db" {
            return Ok(true);
        }
        is_of_server &= MADE_FIRST.iter().any(|known| name == *known);
    }
    Ok(is_of_server)
}

/// Closes what is in a folder that was open. Nobody else can reach it any more, so what cannot be closed may stay
/// as it is; the modes matter where the folder is copied to. Links are not followed.
#[cfg(unix)]
fn close_all_in(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        match kind {
            Ok(kind) if kind.is_dir() => {
                let _ = set_mode(&path, 0o700);
                close_all_in(&path);
            }
            Ok(kind) if kind.is_file() => {
                let _ = set_mode(&path, 0o600);
            }
            _ => {}
        }
    }
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, permissions)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_data_folder_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("new/data");
        let is_made_private = || {
            assert_eq!(make_private_folder(&data).unwrap(), Privacy::Private);
            assert_eq!(mode(&data), 0o700);
            set_mode(&data, 0o755).unwrap();
        };
        is_made_private();
        // An empty one, one in which the built-in model was unpacked, and one of a server.
        is_made_private();
        std::fs::create_dir(data.join("models")).unwrap();
        is_made_private();
        std::fs::write(data.join("tinkrs.db"), "").unwrap();
        std::fs::write(data.join("notes.txt"), "").unwrap();
        is_made_private();
    }

    #[test]
    fn what_is_in_a_folder_that_was_open_is_closed_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (data, outside) = (folder.path().join("data"), folder.path().join("outside"));
        let inside = data.join("models/a/weights");
        std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
        for file in [&inside, &outside] {
            std::fs::write(file, "").unwrap();
            set_mode(file, 0o644).unwrap();
        }
        std::os::unix::fs::symlink(&outside, data.join("models/link")).unwrap();
        set_mode(inside.parent().unwrap(), 0o755).unwrap();
        set_mode(&data, 0o755).unwrap();
        assert_eq!(make_private_folder(&data).unwrap(), Privacy::Private);
        let modes = [
            &inside,
            &data.join("models/a"),
            &data.join("models"),
            &outside,
        ]
        .map(|path| mode(path));
        assert_eq!(modes, [0o600, 0o700, 0o700, 0o644]);
    }

    #[test]
    fn a_folder_with_other_things_in_it_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        set_mode(folder.path(), 0o755).unwrap();
        std::fs::write(folder.path().join("notes.txt"), "").unwrap();
        let privacy = make_private_folder(folder.path()).unwrap();
        assert_eq!(
            (privacy, mode(folder.path())),
            (Privacy::OpenToOthers, 0o755)
        );
    }

    #[test]
    fn a_file_in_its_place_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = make_private_folder(file.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }
}
