//! Files that the database does not speak of.
//!
//! A process that is killed leaves files behind that it had not yet named, or had not yet removed. The same
//! is seen when a database has lost rows, and then they are a client's weights. So what was to be removed is
//! in the database until it is gone, and of the rest weights are never removed, only moved out of the
//! way; `data repair` brings them back.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::files::{self, Files, remove};
use super::load::Loaded;
use super::manifest;

/// Clears the data folder of what nothing refers to.
pub(super) fn clear(files: &Files, loaded: &Loaded) -> std::io::Result<()> {
    files.remove_partial()?;
    let known = known(files, loaded);
    for folder in ["bodies", "results"] {
        let entries = fs::read_dir(files.root().join(folder))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if !known.contains(&path) {
                remove(&path);
            }
        }
    }
    for path in &loaded.removals {
        let path = files.root().join(path);
        if !known.contains(&path) && path.exists() {
            remove(&path);
        }
    }
    quarantine(files, &known)?;
    files.remove_empty_folders();
    Ok(())
}

/// Moves weights that nothing refers to out of the way.
fn quarantine(files: &Files, known: &HashSet<PathBuf>) -> std::io::Result<()> {
    let into = files::dated();
    for path in files.weights() {
        if known.contains(&path) {
            continue;
        }
        if files::is_partial(&path) {
            remove(&path);
            continue;
        }
        let place = files.quarantine(&path, &into)?;
        tracing::warn!(
            found = %path.display(),
            moved_to = %place.display(),
            "found weights that the database does not know; `tinkrs data repair` brings them back if they are whole"
        );
    }
    Ok(())
}

/// Returns everything that the database refers to.
pub(super) fn known(files: &Files, loaded: &Loaded) -> HashSet<PathBuf> {
    let mut known = HashSet::new();
    for request in &loaded.requests {
        if request.has_body {
            known.insert(files.body(&request.id));
        }
        if let Some((_, Some(_))) = request.outcome {
            known.insert(files.result(&request.id));
        }
    }
    for run in &loaded.runs {
        for seq_id in run.snapshot.into_iter().chain(run.fallback.snapshot()) {
            let snapshot = files.snapshot(&run.record.id, seq_id);
            known.insert(manifest::of_snapshot(&snapshot));
            known.insert(snapshot);
        }
    }
    let folder = |folder: &Path| files.root().join(folder);
    let samplers = loaded.samplers.iter().filter_map(|s| s.own_folder());
    known.extend(samplers.map(|own| folder(own)));
    known.extend(loaded.checkpoints.iter().map(|c| folder(&c.folder)));
    known
}
