//! Manifests for weights of versions that wrote none.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::files::Files;
use super::manifest::{self, About, Manifest};
use super::tables::{records, runs};
use crate::registry::records::{RunRecord, SamplerRecord, SavedCheckpoint};

/// Describes all weights that a database knows as they are now. Weights that cannot be read, or are not
/// there, are named in the log, and again in the error of each request for them.
pub(super) fn describe_all(on: &Connection, files: &Files) -> rusqlite::Result<()> {
    let mut shared = BTreeMap::<PathBuf, Vec<SavedCheckpoint>>::new();
    for saved in records::CHECKPOINTS.all::<SavedCheckpoint>(on)? {
        shared.entry(saved.folder.clone()).or_default().push(saved);
    }
    for (folder, saved) in shared {
        describe(&files.root().join(folder), About::Checkpoints(saved));
    }
    for sampler in records::SAMPLERS.all::<SamplerRecord>(on)? {
        if let Some(folder) = sampler.own_folder() {
            describe(&files.root().join(folder), About::Sampler(sampler.clone()));
        }
    }
    for run in runs::all(on)? {
        if let Some(seq_id) = run.snapshot {
            describe_snapshot(&files.snapshot(&run.record.id, seq_id), run.record, seq_id);
        }
    }
    Ok(())
}

/// Describes a snapshot.
pub(super) fn describe_snapshot(snapshot: &Path, run: RunRecord, seq_id: i64) {
    report(snapshot, manifest::describe_snapshot(snapshot, run, seq_id));
}

/// Describes the files of a folder.
pub(super) fn describe(folder: &Path, about: About) {
    let manifest = Manifest::of_folder(folder, |_| about);
    let described = manifest.and_then(|manifest| manifest.write(&folder.join(manifest::FILE)));
    report(folder, described);
}

fn report(weights: &Path, described: io::Result<()>) {
    if let Err(error) = described {
        tracing::warn!(weights = %weights.display(), %error, "cannot be described, so it cannot be used");
    }
}
