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
use super::schema::{self, Scrutiny};
use super::{OpenError, lock_folder_to_read, orphans, repair};
use crate::data::{DataProblem, DataReport};
use crate::error::chain;
use crate::registry::records::SavedCheckpoint;

/// Saved weights: the folder of a checkpoint or sampler, or a snapshot.
pub(super) struct Saved {
    /// Where they are.
    pub(super) at: PathBuf,
    /// Where they belong, in the data folder: as their manifest says, else where they are.
    pub(super) home: PathBuf,
    pub(super) manifest: Result<Manifest, Damage>,
    /// Why they cannot be used, if the manifest can be read.
    pub(super) damage: Option<Damage>,
}

impl Saved {
    fn read(at: PathBuf, root: &Path) -> Self {
        let kind = fs::symlink_metadata(&at).map(|about| about.file_type());
        let (folder, manifest) = match kind {
            Ok(kind) if kind.is_dir() => (&*at, Manifest::read(&at.join(manifest::FILE))),
            Ok(kind) if kind.is_file() => {
                let manifest = Manifest::read(&manifest::of_snapshot(&at));
                (at.parent().unwrap_or(root), manifest)
            }
            _ => (root, Err(Damage::NotAFile(at.clone()))),
        };
        let (home, damage) = match &manifest {
            Ok(manifest) => (
                manifest.about.home(),
                manifest.verify(folder, |_| true).err(),
            ),
            Err(_) => (None, None),
        };
        let inside = at.strip_prefix(root).unwrap_or(&at);
        Self {
            home: home.unwrap_or_else(|| inside.to_owned()),
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
        match self.about() {
            Some(About::Checkpoints(all)) => all,
            _ => &[],
        }
    }

    /// Returns what the manifest says that they are.
    pub(super) fn about(&self) -> Option<&About> {
        self.manifest.as_ref().ok().map(|manifest| &manifest.about)
    }

    /// Returns why they cannot be used from where they are.
    fn problem(&self) -> Option<String> {
        match &self.manifest {
            Err(damage) => Some(chain(damage)),
            Ok(manifest) => {
                let place = manifest.about.check_place(&self.at).err();
                self.damage
                    .as_ref()
                    .or(place.as_ref())
                    .map(|damage| chain(damage))
            }
        }
    }

    fn file_count(&self) -> usize {
        let manifest = self.manifest.as_ref();
        manifest.map_or(0, |manifest| manifest.names().count())
    }
}

/// Reads all saved weights of a data folder, and compares them with their digests.
pub(super) fn all_saved(files: &Files) -> Vec<Saved> {
    let weights = files.weights().into_iter().filter(|path| !is_beside(path));
    weights.map(|at| Saved::read(at, files.root())).collect()
}

/// Reads the weights in quarantine.
pub(super) fn all_quarantined(files: &Files) -> Vec<Saved> {
    files.quarantined().iter().flat_map(all_saved).collect()
}

/// Whether a file belongs to another one: the manifest of a snapshot, or what was not written to its end.
fn is_beside(path: &Path) -> bool {
    let is_manifest = path.to_string_lossy().ends_with(".manifest.jsonl");
    files::is_partial(path) || is_manifest && manifest::described_by(path).exists()
}

/// Refuses a folder that no server has used. Nothing must be made there.
pub(super) fn require_data_folder(root: &Path) -> io::Result<()> {
    files::check_kinds(root)?;
    let files = Files::at(root);
    let is_one = root.join("lock").is_file()
        || files.database().exists()
        || repair::unfinished(&files).is_some()
        || !files.weights().is_empty();
    if is_one {
        return Ok(());
    }
    // Why it cannot be read, if that is the reason.
    fs::read_dir(root)?;
    let text = format!("{} is not a data folder of a server", root.display());
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

/// Reads everything and says what is wrong.
pub(crate) fn check(root: &Path, scratch: &Path) -> Result<DataReport, OpenError> {
    require_data_folder(root)?;
    // A server that starts meanwhile would write what is being read.
    let _guard = lock_folder_to_read(root)?;
    report(&Files::at(root), scratch)
}

/// Reads the database, and returns how many checkpoints it lists.
pub(crate) fn check_database(root: &Path, scratch: &Path) -> Result<usize, OpenError> {
    files::check_kinds(root)?;
    let files = Files::at(root);
    // One that no server has used yet, or in which only a model was unpacked.
    if !files.database().exists() {
        return Ok(0);
    }
    let _guard = lock_folder_to_read(root)?;
    let copy = copy_database(&files, scratch)?;
    let loaded = read_database(&files, &copy)?;
    Ok(loaded.map_or(0, |loaded| loaded.checkpoints.len()))
}

/// Says what is wrong with a data folder that no other process changes.
pub(super) fn report(files: &Files, scratch: &Path) -> Result<DataReport, OpenError> {
    let mut report = DataReport {
        folder: files.root().to_owned(),
        ..DataReport::default()
    };
    let (saved, quarantined) = (all_saved(files), all_quarantined(files));
    report.files = saved
        .iter()
        .chain(&quarantined)
        .map(Saved::file_count)
        .sum();
    let mut note = |path: PathBuf, problem: String| {
        report.problems.push(DataProblem {
            path,
            problem,
            repairable: true,
        });
    };
    if let Some(repaired) = repair::unfinished(files) {
        note(repaired, "a repair was interrupted".to_owned());
        return Ok(report);
    }
    let copy = copy_database(files, scratch)?;
    match read_database(files, &copy) {
        Ok(Some(loaded)) => {
            report.checkpoints = loaded.checkpoints.len();
            report.problems = problems(files, &loaded, &saved, &quarantined);
        }
        // A folder that was never used.
        Ok(None) if saved.is_empty() => {}
        Ok(None) => note(
            files.database(),
            format!(
                "it is missing or empty, and {} saved weights are there",
                saved.len()
            ),
        ),
        Err(OpenError::Damaged { why, .. }) => {
            note(files.database(), format!("it is damaged: {why}"));
        }
        Err(OpenError::NotOurs(_)) => note(
            files.database(),
            "it is not a database of this program".to_owned(),
        ),
        Err(error) => return Err(error),
    }
    Ok(report)
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
    match schema::inspect(copy, Scrutiny::Everything).map_err(named)? {
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
    let mut problems = problems_of_weights(files, loaded, saved);
    problems.extend(missing_files(files, loaded));
    problems.extend(restorable(loaded, quarantined));
    problems
}

/// Lists the saved weights that the database does not know, that are damaged, or that say something else of themselves.
fn problems_of_weights(files: &Files, loaded: &Loaded, saved: &[Saved]) -> Vec<DataProblem> {
    let known = orphans::known(files, loaded);
    let removals: HashSet<_> = loaded
        .removals
        .iter()
        .map(|path| files.root().join(path))
        .collect();
    let mut problems = Vec::new();
    let mut note = |weights: &Saved, problem, repairable| {
        problems.push(problem_at(&weights.at, problem, repairable));
    };
    for weights in saved
        .iter()
        .filter(|weights| !removals.contains(&weights.at))
    {
        if !known.contains(&weights.at) {
            // A repair brings them back if they are whole, and otherwise moves them away.
            let why = weights
                .problem()
                .map_or(String::new(), |why| format!("; {why}"));
            let problem = format!("the database does not know it{why}");
            note(weights, problem, true);
        } else if let Some(problem) = weights.problem() {
            note(weights, problem, is_undescribed(weights));
        } else if let Some(about) = weights.about() {
            for path in disagreements(about, &weights.home, loaded) {
                let problem = format!("its manifest and the database disagree about {path}");
                note(weights, problem, true);
            }
        }
    }
    problems
}

/// Lists what the database knows and the folder does not have.
fn missing_files(files: &Files, loaded: &Loaded) -> Vec<DataProblem> {
    let checkpoints = loaded.checkpoints.iter().map(|checkpoint| {
        let folder = files.root().join(&checkpoint.folder);
        let problem = format!("the files of {} are missing", checkpoint.path());
        problem_at(&folder, problem, true)
    });
    let snapshots = loaded.runs.iter().filter_map(|run| {
        let snapshot = files.snapshot(&run.record.id, run.snapshot?);
        let problem = format!("the snapshot of {} is missing", run.record.id);
        Some(problem_at(&snapshot, problem, false))
    });
    let all = checkpoints.chain(snapshots);
    all.filter(|problem| !problem.path.exists()).collect()
}

/// Lists the checkpoints in quarantine that are whole, and that no checkpoint has replaced.
fn restorable(loaded: &Loaded, quarantined: &[Saved]) -> Vec<DataProblem> {
    let listed: BTreeSet<_> = loaded
        .checkpoints
        .iter()
        .map(SavedCheckpoint::path)
        .collect();
    let whole = quarantined.iter().filter(|weights| weights.is_whole());
    whole
        .flat_map(|weights| weights.checkpoints().iter().map(move |it| (weights, it)))
        .filter(|(_, checkpoint)| !listed.contains(checkpoint.path()))
        .map(|(weights, checkpoint)| {
            let path = checkpoint.path();
            let problem = format!("{path} is in quarantine and can be brought back");
            problem_at(&weights.at, problem, true)
        })
        .collect()
}

fn problem_at(path: &Path, problem: String, repairable: bool) -> DataProblem {
    DataProblem {
        path: path.to_owned(),
        problem,
        repairable,
    }
}

/// Whether weights have no manifest, as those of earlier versions.
pub(super) fn is_undescribed(weights: &Saved) -> bool {
    matches!(&weights.manifest, Err(Damage::Missing(_)))
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
