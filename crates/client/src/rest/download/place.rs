//! Where a file may be written.
//!
//! Names come from a server, so they are not trusted. [`check_name`] takes only
//! plain relative paths that mean the same on every system, and [`Place::prepare`] follows no
//! link on the way from the folder to the file. What another program does in the folder at the
//! same moment is not guarded against: a program that can write there needs no tricks.

use super::error::{DownloadError, file_error};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The suffix of a file that is not complete yet.
const PARTIAL: &str = ".part";
/// The suffix of the note on which version of a file was begun.
const VERSION: &str = ".part.tag";

/// Checks that a name is a relative path that stays inside its folder, on every system.
pub(super) fn check_name(name: &str) -> Result<(), DownloadError> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.starts_with('/') {
        "it is an absolute path"
    } else if name.contains(['\\', ':']) {
        "it contains a backslash or a colon"
    } else if name.contains(|c: char| c.is_control()) {
        "it contains a control character"
    } else if name.split('/').any(|part| part.is_empty()) {
        "it has an empty part"
    } else if name.split('/').any(|part| part.ends_with(['.', ' '])) {
        // `.` and `..`, but also what Windows reads as those.
        "a part of it ends in a dot or a space"
    } else if name.split('/').any(|part| part.len() > 255) {
        "a part of it is too long"
    } else if cfg!(windows) && name.split('/').any(is_device) {
        "a part of it is the name of a device"
    } else if name.ends_with(PARTIAL) || name.ends_with(VERSION) {
        "its ending is reserved for downloads that are under way"
    } else {
        return Ok(());
    };
    Err(DownloadError::UnsafeName {
        name: name.to_owned(),
        reason,
    })
}

fn is_device(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part).to_ascii_uppercase();
    let numbered = |prefix| {
        let rest: Option<&str> = stem.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.chars().count() == 1)
    };
    matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL") || numbered("COM") || numbered("LPT")
}

/// The three paths of one file: where it ends up, and what there is until then.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The finished file.
    pub(super) path: PathBuf,
    /// The file while it is written.
    pub(super) partial: PathBuf,
    /// Which version of the file was begun, in the server's own words.
    pub(super) version: PathBuf,
}

impl Place {
    /// Finds the place of a file and creates the folders on the way to it.
    pub(super) fn prepare(folder: &Path, name: &str) -> Result<Self, DownloadError> {
        check_name(name)?;
        let (parent, file) = match name.rsplit_once('/') {
            Some((parents, file)) => (prepare_folder(folder, parents)?, file),
            None => (folder.to_owned(), name),
        };
        let place = Self {
            path: parent.join(file),
            partial: parent.join(format!("{file}{PARTIAL}")),
            version: parent.join(format!("{file}{VERSION}")),
        };
        place.checked()
    }

    /// Finds the place of a file in a folder, and of a partial file that is named after its digest.
    pub(super) fn prepare_with_digest(
        folder: &Path,
        name: &str,
        digest: &str,
    ) -> Result<Self, DownloadError> {
        check_name(name)?;
        if name.contains('/') {
            return Err(DownloadError::UnsafeName {
                name: name.to_owned(),
                reason: "it contains a slash",
            });
        }
        let start = digest.get(..16).unwrap_or(digest);
        let place = Self {
            path: folder.join(name),
            partial: folder.join(format!(".{name}.{start}{PARTIAL}")),
            version: folder.join(format!(".{name}.{start}{VERSION}")),
        };
        place.checked()
    }

    fn checked(self) -> Result<Self, DownloadError> {
        let place = self;
        for path in [&place.path, &place.partial, &place.version] {
            match kind_of(path)? {
                Kind::Nothing | Kind::File => {}
                Kind::Folder => return Err(in_the_way(path, "it is a folder")),
                Kind::Other => return Err(in_the_way(path, "it is not a plain file")),
            }
        }
        Ok(place)
    }
}

/// Finds the place of a folder and creates it, and those on the way to it.
fn prepare_folder(folder: &Path, name: &str) -> Result<PathBuf, DownloadError> {
    check_name(name)?;
    let mut path = folder.to_owned();
    for part in name.split('/') {
        path.push(part);
        create_plain_folder(&path)?;
    }
    Ok(path)
}

fn create_plain_folder(path: &Path) -> Result<(), DownloadError> {
    match kind_of(path)? {
        Kind::Folder => Ok(()),
        Kind::File => Err(in_the_way(path, "it is a file, not a folder")),
        Kind::Other => Err(in_the_way(path, "it is not a plain folder")),
        Kind::Nothing => match fs::create_dir(path) {
            // Another download of the same folder was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            created => created.map_err(file_error("create", path)),
        },
    }
}

enum Kind {
    Nothing,
    File,
    Folder,
    /// A link or something stranger.
    Other,
}

fn kind_of(path: &Path) -> Result<Kind, DownloadError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(Kind::File),
        Ok(metadata) if metadata.is_dir() => Ok(Kind::Folder),
        Ok(_) => Ok(Kind::Other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kind::Nothing),
        Err(source) => Err(file_error("look at", path)(source)),
    }
}

fn in_the_way(path: &Path, reason: &'static str) -> DownloadError {
    DownloadError::InTheWay {
        path: path.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_relative_names_are_taken() {
        for name in [
            "adapter_model.safetensors",
            "a/b/c.json",
            ".hidden",
            "name with spaces",
            "größe.bin",
            "x.age",
            "..double",
            "a..b",
        ] {
            check_name(name).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn names_that_could_lead_elsewhere_are_refused() {
        let long = "x".repeat(256);
        for name in [
            "",
            "/etc/passwd",
            "..",
            "../x",
            "a/../x",
            "a/..",
            "./x",
            "a//x",
            "a/",
            "..\\x",
            "\\\\host\\share",
            "C:x",
            "C:/x",
            "x:stream",
            "a/.. /x",
            "a/.../x",
            "x.",
            "x\0y",
            "x\ny",
            "\u{1b}[2J",
            "x.part",
            "x.part.tag",
            &long,
        ] {
            let error = check_name(name).unwrap_err();
            assert!(
                matches!(error, DownloadError::UnsafeName { .. }),
                "{name:?}"
            );
            assert!(!error.to_string().contains(char::is_control), "{error:?}");
        }
    }

    #[test]
    fn devices_are_known_by_name_whatever_the_ending() {
        for (part, device) in [
            ("con", true),
            ("Nul.txt", true),
            ("COM1", true),
            ("lpt9.bin", true),
            ("config.json", false),
            ("comet", false),
            ("com", false),
        ] {
            assert_eq!(is_device(part), device, "{part}");
        }
    }

    #[test]
    fn folders_on_the_way_are_created() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::prepare(folder.path(), "a/b/c.bin").unwrap();
        assert_eq!(place.path, folder.path().join("a/b/c.bin"));
        assert!(folder.path().join("a/b").is_dir());
        Place::prepare(folder.path(), "a/b/d.bin").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn links_in_the_folder_are_not_followed() {
        use std::os::unix::fs::symlink;
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("file"), "precious").unwrap();
        let folder = tempfile::tempdir().unwrap();
        symlink(outside.path(), folder.path().join("link")).unwrap();
        symlink(outside.path().join("file"), folder.path().join("x.part")).unwrap();
        symlink("nowhere", folder.path().join("y.part.tag")).unwrap();
        symlink(outside.path().join("file"), folder.path().join("z")).unwrap();
        for name in ["link/file", "x", "y", "z"] {
            let error = Place::prepare(folder.path(), name).unwrap_err();
            assert!(matches!(error, DownloadError::InTheWay { .. }), "{error}");
        }
    }

    #[test]
    fn files_and_folders_do_not_replace_each_other() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        for name in ["file/x", "folder"] {
            let error = Place::prepare(folder.path(), name).unwrap_err();
            assert!(matches!(error, DownloadError::InTheWay { .. }), "{error}");
        }
    }
}
