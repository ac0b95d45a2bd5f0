//! Where a tokenizer's file lies on this machine.
//!
//! Nothing is downloaded. A tokenizer is looked for, in this order, at its id if that is a path;
//! in a folder of the caller's, as `org/name/tokenizer.json` or `name/tokenizer.json`; and in the
//! hub's cache, where `refs` name the snapshots that were downloaded.

use super::TokenizerError;
use super::resolve::Resolved;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use tinkrs_chat::HubFolders;

const FILE: &str = "tokenizer.json";

/// What a few models have instead.
const TIKTOKEN: &str = "tiktoken.model";

/// The folders to look into.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folders {
    /// The caller's own folder of tokenizers.
    pub(crate) own: Option<PathBuf>,
    /// The hub's cache.
    pub(crate) hub: Option<PathBuf>,
}

impl Folders {
    /// Takes the folders from the environment, as the hub's own tools do; `own` wins over
    /// `TINKER_TOKENIZERS`.
    pub(crate) fn from_env(own: Option<PathBuf>, var: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = || var("TINKER_TOKENIZERS").filter(|folder| !folder.is_empty());
        Self {
            own: own.or_else(|| set().map(PathBuf::from)),
            hub: HubFolders::from_variables(var).cache,
        }
    }

    /// Finds the file of a tokenizer.
    ///
    /// # Errors
    /// If there is none; the error says where it was looked for and how to get it.
    pub(crate) fn locate(&self, wanted: &Resolved) -> Result<PathBuf, TokenizerError> {
        let places = self.places(wanted)?;
        let both = |place: &PathBuf| [place.clone(), place.with_file_name(TIKTOKEN)];
        let found = places.iter().flat_map(both).find(|file| file.is_file());
        found.ok_or_else(|| TokenizerError::NotFound {
            id: wanted.id.clone(),
            revision: wanted.revision,
            places,
        })
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
/// A pinned revision is a commit. Otherwise `refs/main` holds the commit last downloaded.
fn in_hub(hub: &Path, wanted: &Resolved) -> PathBuf {
    let model = hub.join(format!("models--{}", wanted.id.replace('/', "--")));
    let main = || {
        let commit = std::fs::read_to_string(model.join("refs/main")).ok()?;
        let commit = commit.trim();
        let plain = !commit.is_empty() && commit.chars().all(|c| c.is_ascii_alphanumeric());
        plain.then(|| commit.to_owned())
    };
    let commit = match wanted.revision {
        Some(revision) => revision.to_owned(),
        None => main().unwrap_or_else(|| "main".to_owned()),
    };
    model.join("snapshots").join(commit).join(FILE)
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
    fn a_folder_that_is_named_wins_over_the_environment() {
        let var = |name: &str| match name {
            "TINKER_TOKENIZERS" => Some(OsString::from("/t")),
            "HF_HUB_CACHE" => Some(OsString::from("/c")),
            _ => None,
        };
        let folders = Folders::from_env(None, var);
        assert_eq!(folders.own.as_deref(), Some(Path::new("/t")));
        assert_eq!(folders.hub.as_deref(), Some(Path::new("/c")));
        let explicit = Folders::from_env(Some("/mine".into()), var);
        assert_eq!(explicit.own.as_deref(), Some(Path::new("/mine")));
        let none = Folders::from_env(None, |_| Some(OsString::new()));
        assert_eq!((none.own, none.hub), (None, None));
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
