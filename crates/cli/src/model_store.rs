//! The models of this machine that have a name: those that were added, and those that the Hub's own
//! tool has downloaded.
//!
//! What was added is a small JSON file in `~/.tinkrs` (or `TINKRS_HOME`): names and paths. The model
//! itself stays where it is, except for models that we downloaded ourselves, which are beside that file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use tinkrs_chat::HubFolders;
use tinkrs_wire::text::percent_encode;

use crate::local_model::{NamedModel, NumericsArgs};
use crate::output::Hint;

const FILE: &str = "models.json";

/// The models that were added.
#[derive(Debug)]
pub(crate) struct ModelStore {
    home: PathBuf,
    stored: Stored,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Stored {
    models: BTreeMap<String, PathBuf>,
    /// What was said of the numbers of models, where anything was.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    numerics: BTreeMap<String, NumericsArgs>,
}

/// Returns the folder in which this program keeps what belongs to its user, if there is one.
pub(crate) fn home() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = variable("TINKRS_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".tinkrs")))
}

impl ModelStore {
    /// Opens the store of the user who runs this program.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let home = home().ok_or_else(|| {
            anyhow!("no home folder to store models in").context(Hint("set HOME or TINKRS_HOME"))
        })?;
        Self::in_folder(home)
    }

    /// Opens the store in a folder, which need not exist.
    pub(crate) fn in_folder(home: PathBuf) -> anyhow::Result<Self> {
        let path = home.join(FILE);
        let stored: Stored = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} is not a list of models", path.display()))
                .context(Hint("delete the file and add the models again"))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Stored::default(),
            Err(error) => {
                return Err(error).with_context(|| format!("could not read {}", path.display()));
            }
        };
        Ok(Self { home, stored })
    }

    /// Lists the models that were added, by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = NamedModel> {
        let models = self.stored.models.iter();
        models.map(|(name, path)| NamedModel::new(name, path))
    }

    /// Finds a model by its name.
    pub(crate) fn find(&self, name: &str) -> Option<NamedModel> {
        self.all().find(|model| model.name == name)
    }

    /// Returns the folder that a model of the Hub is downloaded to. Revisions are kept apart.
    pub(crate) fn download_folder(&self, repo: &str, revision: &str) -> PathBuf {
        let mut name = repo.replace('/', "--");
        if revision != "main" {
            name.push('@');
            name.push_str(&percent_encode(revision));
        }
        self.home.join("models").join(name)
    }

    /// Remembers a model. Returns what its name stood for before.
    pub(crate) fn add(&mut self, model: &NamedModel) -> anyhow::Result<Option<PathBuf>> {
        let (name, path) = (model.name.clone(), model.path.clone());
        let before = self.stored.models.insert(name, path);
        self.save()?;
        Ok(before.filter(|path| *path != model.path))
    }

    /// Forgets a model, and returns where it was.
    pub(crate) fn remove(&mut self, name: &str) -> anyhow::Result<Option<PathBuf>> {
        let removed = self.stored.models.remove(name);
        if removed.is_some() {
            self.save()?;
        }
        Ok(removed)
    }

    /// Returns what was said of the numbers of a model.
    pub(crate) fn numerics(&self, name: &str) -> NumericsArgs {
        self.stored.numerics.get(name).copied().unwrap_or_default()
    }

    /// Remembers what was said of the numbers of a model.
    pub(crate) fn set_numerics(
        &mut self,
        name: &str,
        numerics: NumericsArgs,
    ) -> anyhow::Result<()> {
        if self.numerics(name) != numerics {
            self.stored.numerics.insert(name.to_owned(), numerics);
            self.save()?;
        }
        Ok(())
    }

    /// Whether we downloaded what is at a path.
    pub(crate) fn is_download(&self, path: &Path) -> bool {
        // What is remembered has no links in it.
        let downloads = self.home.join("models").canonicalize();
        downloads.is_ok_and(|downloads| path.parent() == Some(&downloads))
    }

    fn save(&self) -> anyhow::Result<()> {
        let write = || -> anyhow::Result<()> {
            std::fs::create_dir_all(&self.home)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.home)?;
            file.write_all(serde_json::to_string_pretty(&self.stored)?.as_bytes())?;
            file.persist(self.home.join(FILE))?;
            Ok(())
        };
        write().with_context(|| format!("could not write {}", self.home.join(FILE).display()))
    }
}

/// Lists what the Hub's own tool has downloaded, each at its newest snapshot of `main`.
pub(crate) fn in_hub_cache() -> Vec<NamedModel> {
    let Some(entries) = HubFolders::from_env()
        .cache
        .and_then(|cache| std::fs::read_dir(cache).ok())
    else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .filter_map(|entry| cached(&entry.ok()?.path()))
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Reads `models--OWNER--NAME`, whose `refs/main` names a folder of `snapshots`.
fn cached(folder: &Path) -> Option<NamedModel> {
    let name = folder.file_name()?.to_str()?.strip_prefix("models--")?;
    let snapshot = std::fs::read_to_string(folder.join("refs/main")).ok()?;
    let path = folder.join("snapshots").join(snapshot.trim());
    // A tokenizer alone is no model.
    let is_model = path.join("config.json").exists();
    is_model.then(|| NamedModel::new(name.replacen("--", "/", 1), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_there_the_next_time() {
        let home = tempfile::tempdir().unwrap();
        let open = || ModelStore::in_folder(home.path().join(".tinkrs")).unwrap();
        let model = |path: &str| NamedModel::new("me/mine", path);
        assert_eq!(open().add(&model("/a")).unwrap(), None);
        assert_eq!(open().find("me/mine"), Some(model("/a")));
        assert_eq!(open().add(&model("/b")).unwrap(), Some("/a".into()));
        assert_eq!(open().remove("me/other").unwrap(), None);
        assert_eq!(open().remove("me/mine").unwrap(), Some("/b".into()));
        assert_eq!(open().all().count(), 0);
    }

    #[test]
    fn a_file_that_is_something_else_is_said_and_kept() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(FILE), "oops").unwrap();
        let error = ModelStore::in_folder(home.path().to_owned()).unwrap_err();
        assert!(format!("{error:#}").contains("is not a list of models"));
    }

    #[test]
    fn a_model_of_the_hubs_cache_is_at_its_newest_snapshot() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models--ada--tiny--v2");
        let snapshot = folder.join("snapshots/abc");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(folder.join("refs")).unwrap();
        std::fs::write(folder.join("refs/main"), "abc\n").unwrap();
        assert_eq!(cached(&folder), None, "it has no model");
        std::fs::write(snapshot.join("config.json"), "{}").unwrap();
        assert_eq!(cached(&folder).unwrap().name, "ada/tiny--v2");
        assert_eq!(cached(&folder).unwrap().path, snapshot);
    }
}
