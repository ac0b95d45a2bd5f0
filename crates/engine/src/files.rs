//! Writing files so that a crash leaves the old version or the new one, never a part.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::Error;

/// Replaces the file at `path`: writes next to it, syncs, renames, and syncs the folder.
pub(crate) fn replace(path: &Path, contents: &[u8]) -> Result<(), Error> {
    replace_with(path, |file| file.write_all(contents))
}

/// As [`replace`], with contents that are not in one piece.
pub(crate) fn replace_with(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), Error> {
    let folder = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".partial");
    let temporary = Path::new(&temporary);

    let replaced = File::create(temporary)
        .map_err(Error::io("create", temporary))
        .and_then(|mut file| {
            write(&mut file).map_err(Error::io("write", temporary))?;
            file.sync_all().map_err(Error::io("sync", temporary))
        })
        .and_then(|()| {
            fs::rename(temporary, path).map_err(Error::io("rename the finished file to", path))
        });
    if replaced.is_err() {
        // A full disk has no room for half a file.
        let _ = fs::remove_file(temporary);
        return replaced;
    }
    // The new name itself is durable only once its folder is; Windows cannot open folders.
    if cfg!(unix) {
        let folder = folder.unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|f| f.sync_all())
            .map_err(Error::io("sync", folder))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adapter.bin");
        for contents in ["old", "new"] {
            replace(&path, contents.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adapter.bin");
        replace(&path, b"old").unwrap();
        let full = |file: &mut File| {
            file.write_all(b"ne")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        assert!(replace_with(&path, full).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("absent/adapter.bin");
        let message = replace(&path, b"x").unwrap_err().to_string();
        assert!(message.starts_with("could not create "), "{message}");
        assert!(message.contains("absent"), "{message}");
    }
}
