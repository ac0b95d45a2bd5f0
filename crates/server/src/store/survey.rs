//! What lies in a data folder, compared with what its database says.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tinkrs_types::TinkerPath;

use super::files::{self, Files};
use super::load::{self, Loaded};
use super::manifest::{self, About, Damage, Manifest};
use super::{OpenError, lock_folder, orphans, schema};
use crate::data::{DataProblem, DataReport};
use crate::registry::records::SavedCheckpoint;

/// Saved weights: the folder of a checkpoint or sampler, or a snapshot.
pub(super) struct Saved {
    /// Where they are.
    pub(super) at: PathBuf,
    /// Where they belong, in the data folder. Another place if they are in quarantine.
    pub(super) home: PathBuf,
    pub(super) manifest: Result<Manifest, Damage>,
    /// Why they cannot be used, if the manifest can be read.
    pub(super) damage: Option<Damage>,
}

impl Saved {
    fn read(at: PathBuf, root: &Path) -> Self {
        let is_folder = at.is_dir();
        let manifest = if is_folder {
            Manifest::read(&at.join(manifest::FILE))
        } else {
            Manifest::read(&manifest::of_snapshot(&at))
        };
        let folder = if is_folder {
            &*at
        } else {
            at.parent().unwrap_or(root)
        };
        let damage = match &manifest {
            Ok(manifest) => manifest.verify(folder, |_| true).err(),
            Err(_) => None,
        };
        Self {
            home: at.strip_prefix(root).unwrap_or(&at).to_owned(),
            at,
            manifest,
            damage,
        }
    }

    /// Whether all that was saved is there, as it was.
    pub(super) fn is_whole(&self) -> bool {
        self.manifest.is_ok() && self.damage.is_none()
    }

    /// Returns the checkpoints that these weights are.
    pub(super) fn checkpoints(&self) -> &[SavedCheckpoint] {
        match &self.manifest {
            Ok(Manifest {
                about: About::Checkpoints(all),
                ..
            }) => all,
            _ => &[],
        }
    }
}

/// Reads all saved weights of a data folder, and compares them with their digests.
pub(super) fn all_saved(files: &Files) -> Vec<Saved> {
    let weights = files.weights().into_iter().filter(|path| !is_beside(path));
    weights.map(|at| Saved::read(at, files.root())).collect()
}

/// Reads the weights in quarantine.
pub(super) fn all_quarantined(files: &Files) -> Vec<Saved> {
    let mut found = Vec::new();
    let folders = fs::read_dir(files.root().join("quarantine"));
    for folder in folders.into_iter().flatten().flatten() {
        found.extend(all_saved(&Files::at(&folder.path())));
    }
    found
}

/// Whether a file belongs to another one: the manifest of a snapshot, or what was not written to its end.
fn is_beside(path: &Path) -> bool {
    let is_manifest = path.to_string_lossy().ends_with(".manifest.jsonl");
    files::is_partial(path) || is_manifest && manifest::described_by(path).exists()
}

/// Reads everything and says what is wrong.
pub(crate) fn check(root: &Path, scratch: &Path) -> Result<DataReport, OpenError> {
    let files = Files::at(root);
    if !root.join("lock").exists() && !files.database().exists() && files.weights().is_empty() {
        let text = format!("{} is not a data folder of a server", root.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, text).into());
    }
    // Whoever only reads must not be in the way of a server for long, nor see it write.
    let _guard = match root.join("lock").exists() {
        true => Some(lock_folder(root)?),
        false => None,
    };
    let copy = copy_database(&files, scratch)?;
    let loaded = read_database(&files, &copy);
    let (saved, quarantined) = (all_saved(&files), all_quarantined(&files));
    let mut report = DataReport {
        folder: root.to_owned(),
        ..DataReport::default()
    };
    report.files = saved.iter().chain(&quarantined).map(file_count).sum();
    match loaded {
        Ok(Some(loaded)) => {
            report.checkpoints = loaded.checkpoints.len();
            report.problems = problems(&files, &loaded, &saved, &quarantined);
        }
        // A folder that was never used.
        Ok(None) if saved.is_empty() => {}
        Ok(None) => report.problems.push(DataProblem {
            path: files.database(),
            problem: format!(
                "it is missing or empty, and {} saved weights are there",
                saved.len()
            ),
            repairable: true,
        }),
        Err(error @ (OpenError::Damaged { .. } | OpenError::NotOurs(_))) => {
            report.problems.push(DataProblem {
                path: files.database(),
                problem: match error {
                    OpenError::Damaged { why, .. } => format!("it is damaged: {why}"),
                    _ => "it is not a database of this program".to_owned(),
                },
                repairable: true,
            });
        }
        Err(error) => return Err(error),
    }
    Ok(report)
}

fn file_count(saved: &Saved) -> usize {
    saved
        .manifest
        .as_ref()
        .map_or(0, |manifest| manifest.names().count())
}

/// Copies the database with its write-ahead log, so that reading it changes neither.
pub(super) fn copy_database(files: &Files, into: &Path) -> io::Result<PathBuf> {
    let copy = into.join("tinkrs.db");
    for ending in ["", "-wal"] {
        let from = files::with_ending(&files.database(), ending);
        if from.exists() {
            fs::copy(&from, files::with_ending(&copy, ending))?;
        }
    }
    Ok(copy)
}

/// Reads a copy of the database; `None` if there is nothing in it.
pub(super) fn read_database(files: &Files, copy: &Path) -> Result<Option<Loaded>, OpenError> {
    // Errors name the database itself, not its copy.
    let named = |error: OpenError| match error {
        OpenError::Damaged { why, .. } => OpenError::Damaged {
            database: files.database(),
            why,
        },
        OpenError::NotOurs(_) => OpenError::NotOurs(files.database()),
        error => error,
    };
    match schema::inspect(copy).map_err(named)? {
        0 => return Ok(None),
        schema::VERSION => {}
        version => return Err(OpenError::Older { version }),
    }
    let failed = |error| named(OpenError::of_database(error, copy));
    let loaded = Connection::open(copy).and_then(|connection| load::read(&connection));
    let loaded = loaded.map_err(failed)?;
    Ok(Some(loaded).filter(|loaded| !loaded.is_empty()))
}

/// Lists what is wrong with a folder whose database can be read.
fn problems(
    files: &Files,
    loaded: &Loaded,
    saved: &[Saved],
    quarantined: &[Saved],
) -> Vec<DataProblem> {
    let mut problems = Vec::new();
    let mut note = |path: &Path, problem: String, repairable| {
        problems.push(DataProblem {
            path: path.to_owned(),
            problem,
            repairable,
        });
    };
    let known = orphans::known(files, loaded);
    let removals: HashSet<_> = loaded.removals.iter().collect();
    for weights in saved {
        let is_known = known.contains(&weights.at);
        if removals.contains(&weights.home) {
            continue;
        }
        match (&weights.manifest, &weights.damage) {
            (Err(damage), _) => note(
                &weights.at,
                damage.to_string(),
                is_known && is_missing(damage),
            ),
            (Ok(_), Some(damage)) => note(&weights.at, damage.to_string(), false),
            (Ok(_), None) if !is_known => {
                note(
                    &weights.at,
                    "the database does not know it".to_owned(),
                    true,
                );
            }
            (Ok(manifest), None) => {
                for path in disagreements(&manifest.about, &weights.home, loaded) {
                    let problem = format!("its manifest and the database disagree about {path}");
                    note(&weights.at, problem, true);
                }
            }
        }
    }
    for checkpoint in &loaded.checkpoints {
        let folder = files.root().join(&checkpoint.folder);
        if !folder.exists() {
            let problem = format!("the files of {} are missing", checkpoint.path());
            note(&folder, problem, true);
        }
    }
    let listed: BTreeSet<_> = loaded
        .checkpoints
        .iter()
        .map(SavedCheckpoint::path)
        .collect();
    for weights in quarantined.iter().filter(|weights| weights.is_whole()) {
        for checkpoint in weights.checkpoints() {
            if !listed.contains(checkpoint.path()) {
                let problem = format!(
                    "{} is in quarantine and can be brought back",
                    checkpoint.path()
                );
                note(&weights.at, problem, true);
            }
        }
    }
    problems
}

pub(super) fn is_missing(damage: &Damage) -> bool {
    matches!(damage, Damage::Missing(path) if path.ends_with(manifest::FILE))
}

/// Lists the checkpoints in a folder that the manifest and the database describe in different ways.
pub(super) fn disagreements(about: &About, home: &Path, loaded: &Loaded) -> Vec<TinkerPath> {
    let About::Checkpoints(described) = about else {
        return Vec::new();
    };
    let text = |saved: &SavedCheckpoint| serde_json::to_string(saved).ok();
    let in_database = loaded
        .checkpoints
        .iter()
        .filter(|saved| saved.folder == home);
    let texts: BTreeSet<_> = described.iter().map(text).collect();
    let differing = in_database.filter(|saved| !texts.contains(&text(saved)));
    differing.map(|saved| saved.path().clone()).collect()
}
