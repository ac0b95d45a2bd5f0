//! Where a tokenizer's file lies on this machine.
//!
//! A tokenizer is looked for, in this order, at its id if that is a path;
//! in a folder of the caller's, as `org/name/tokenizer.json` or `name/tokenizer.json`; and in the
//! hub's cache, where `refs` name the snapshots that were downloaded.

use super::TokenizerError;
use super::resolve::Resolved;
use crate::hub::{newest_commit, repository_folder};
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

const FILE: &str = "tokenizer.json";

/// What a few models have instead.
const TIKTOKEN: &str = "tiktoken.model";

/// What its settings are in, without which it cannot be read.
const SETTINGS: &str = "tokenizer_config.json";

/// The folders to look into.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folders {
    /// The caller's own folder of tokenizers.
    pub(crate) own: Option<PathBuf>,
    /// The hub's cache.
    pub(crate) hub: Option<PathBuf>,
}

impl Folders {
    /// Finds the file of a tokenizer.
    ///
    /// # Errors
    /// If there is none; the error says where it was looked for and how to get it.
    pub(crate) fn locate(&self, wanted: &Resolved) -> Result<PathBuf, TokenizerError> {
        let places = self.places(wanted)?;
        let both = |place: &PathBuf| [place.clone(), place.with_file_name(TIKTOKEN)];
        let found = places.iter().flat_map(both).find(|file| self.has(file));
        found.ok_or_else(|| TokenizerError::NotFound {
            id: wanted.id.clone(),
            revision: wanted.revision,
            places,
        })
    }

    fn has(&self, file: &Path) -> bool {
        // Something else may have put a part of a tokenizer into the cache. What is in a folder of the
        // caller's is taken, and said to be incomplete.
        let in_cache = self.hub.as_ref().is_some_and(|hub| file.starts_with(hub));
        let is_whole =
            !in_cache || !file.ends_with(TIKTOKEN) || file.with_file_name(SETTINGS).is_file();
        is_whole && file.is_file()
    }

    fn places(&self, wanted: &Resolved) -> Result<Vec<PathBuf>, TokenizerError> {
        let id = Path::new(&wanted.id);
        if id.is_absolute() || wanted.id.starts_with('.') {
            return Ok(vec![in_folder(id)]);
        }
        // An id may come from a server: it must not lead out of the folders.
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if wanted.id.is_empty() || !id.components().all(plain) {
            let id = wanted.id.clone();
            return Err(TokenizerError::NotAnId { id });
        }
        let mut places = Vec::new();
        if let Some(own) = &self.own {
            places.push(own.join(id).join(FILE));
            places.extend(id.file_name().map(|name| own.join(name).join(FILE)));
            places.dedup();
        }
        if let Some(hub) = &self.hub {
            places.push(in_hub(hub, wanted));
        }
        Ok(places)
    }
}

/// Returns the file that a path means: itself, or the one in the folder that it names.
fn in_folder(path: &Path) -> PathBuf {
    let is_file = |extension: &OsStr| extension == "json" || extension == "gguf";
    if path.extension().is_some_and(is_file) && !path.is_dir() {
        path.to_owned()
    } else {
        path.join(FILE)
    }
}

/// Returns the file's place in the hub's cache: `models--org--name/snapshots/<commit>/`.
///
/// A pinned revision is a commit. Otherwise it is the commit last downloaded.
fn in_hub(hub: &Path, wanted: &Resolved) -> PathBuf {
    let commit = match wanted.revision {
        Some(revision) => revision.to_owned(),
        None => newest_commit(hub, &wanted.id).unwrap_or_else(|| "main".to_owned()),
    };
    let snapshots = repository_folder(hub, &wanted.id).join("snapshots");
    snapshots.join(commit).join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn resolved(id: &str) -> Resolved {
        let id = id.to_owned();
        Resolved { id, revision: None }
    }

    fn touch(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "{}").unwrap();
        path.to_owned()
    }

    #[test]
    fn a_tokenizer_is_found_in_own_folders_before_the_hubs_cache() {
        let root = tempfile::tempdir().unwrap();
        let folders = Folders {
            own: Some(root.path().join("own")),
            hub: Some(root.path().join("hub")),
        };
        let model = root.path().join("hub/models--org--name");
        fs::create_dir_all(model.join("refs")).unwrap();
        fs::write(model.join("refs/main"), "abc123\n").unwrap();

        let wanted = resolved("org/name");
        let error = folders.locate(&wanted).unwrap_err().to_string();
        assert!(error.contains("hf download org/name"), "{error}");
        assert!(error.contains("own/org/name/tokenizer.json"), "{error}");

        let hub = touch(&model.join("snapshots/abc123/tokenizer.json"));
        assert_eq!(folders.locate(&wanted).unwrap(), hub);
        let short = touch(&root.path().join("own/name/tokenizer.json"));
        assert_eq!(folders.locate(&wanted).unwrap(), short);
        let long = touch(&root.path().join("own/org/name/tokenizer.json"));
        assert_eq!(folders.locate(&wanted).unwrap(), long);
    }

    #[test]
    fn a_pinned_revision_is_taken_and_no_other() {
        let root = tempfile::tempdir().unwrap();
        let hub = Some(root.path().to_owned());
        let folders = Folders { own: None, hub };
        let snapshots = root.path().join("models--org--name/snapshots");
        touch(&snapshots.join("other/tokenizer.json"));
        touch(&root.path().join("models--org--name/refs/main"));
        let id = "org/name".to_owned();
        let revision = Some("pinned");
        let wanted = Resolved { id, revision };
        let error = folders.locate(&wanted).unwrap_err().to_string();
        assert!(
            error.contains("hf download org/name --revision pinned"),
            "{error}"
        );
        let tiktoken = touch(&snapshots.join("pinned/tiktoken.model"));
        folders.locate(&wanted).unwrap_err(); // its settings are missing
        touch(&snapshots.join("pinned/tokenizer_config.json"));
        assert_eq!(folders.locate(&wanted).unwrap(), tiktoken);
        let pinned = touch(&snapshots.join("pinned/tokenizer.json"));
        assert_eq!(folders.locate(&wanted).unwrap(), pinned);
    }

    #[test]
    fn a_path_means_the_folder_or_the_file() {
        let root = tempfile::tempdir().unwrap();
        let file = touch(&root.path().join("model/tokenizer.json"));
        let folders = Folders::default();
        for path in [file.parent().unwrap(), &file] {
            let wanted = resolved(path.to_str().unwrap());
            assert_eq!(folders.locate(&wanted).unwrap(), file);
        }
        let gguf = touch(&root.path().join("model.gguf"));
        let wanted = resolved(gguf.to_str().unwrap());
        assert_eq!(folders.locate(&wanted).unwrap(), gguf);
    }

    #[test]
    fn an_id_cannot_lead_out_of_the_folders() {
        let folders = Folders {
            own: Some("/own".into()),
            hub: Some("/hub".into()),
        };
        for id in ["", "a/../../b", "org/.."] {
            let error = folders.locate(&resolved(id)).unwrap_err();
            assert!(
                matches!(error, TokenizerError::NotAnId { .. }),
                "{id}: {error}"
            );
        }
        let root = tempfile::tempdir().unwrap();
        let hub = Some(root.path().to_owned());
        touch(&root.path().join("models--a/tokenizer.json"));
        let refs = root.path().join("models--a/refs");
        fs::create_dir_all(&refs).unwrap();
        fs::write(refs.join("main"), "..").unwrap();
        let folders = Folders { own: None, hub };
        folders.locate(&resolved("a")).unwrap_err();
    }
}
