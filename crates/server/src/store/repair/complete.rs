//! A database that can be read, and lacks rows or has some that are not so.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Transaction};
use tinkrs_types::{ModelId, TinkerPath};

use super::adopt::{newest, newest_snapshots};
use super::{Repair, RepairError};
use crate::registry::records::SavedCheckpoint;
use crate::store::load::{self, Loaded};
use crate::store::manifest::{self, About};
use crate::store::survey::{self, Saved};
use crate::store::tables::records;
use crate::store::{OpenError, files, legacy, orphans, schema};

/// What is to be done to the database.
struct Plan<'s> {
    /// Checkpoints without files.
    gone: Vec<TinkerPath>,
    /// Checkpoints that their manifests describe in another way.
    described: Vec<&'s SavedCheckpoint>,
    /// Checkpoints that the database does not know.
    adopted: Vec<(&'s Saved, &'s SavedCheckpoint)>,
    /// Adapters of sampling sessions that the database does not know.
    samplers: Vec<&'s Saved>,
    /// The last snapshots of runs that are lost.
    recovered: Vec<(TinkerPath, &'s Saved)>,
    /// Checkpoints that are listed already.
    listed: BTreeSet<TinkerPath>,
    /// Whether there are weights that the database does not know.
    has_unknown: bool,
}

impl Repair {
    /// Adds what is missing to a database that can be read.
    pub(super) fn complete(&mut self, loaded: &Loaded) -> Result<(), OpenError> {
        let saved = survey::all_saved(&self.files);
        let quarantined = survey::all_quarantined(&self.files);
        let known = orphans::known(&self.files, loaded);
        for weights in saved.iter().filter(|weights| known.contains(&weights.at)) {
            if survey::is_undescribed(weights) {
                self.describe(&weights.at, loaded);
            }
        }
        let plan = self.plan(loaded, &known, &saved, &quarantined)?;
        if plan.is_empty() {
            return Ok(());
        }
        let path = self.files.database();
        let failed = |error| OpenError::of_database(error, &path);
        let mut connection = Connection::open(&path).map_err(failed)?;
        schema::sync_commits(&connection).map_err(failed)?;
        let copy = self.beside_database(&format!(".before-repair-{}", self.dated));
        connection
            .execute("VACUUM INTO ?", [copy.to_string_lossy()])
            .map_err(failed)?;
        files::sync_file(&copy)?;
        files::sync_folder(self.files.root())?;
        let transaction = connection.transaction().map_err(failed)?;
        self.carry_out(plan, &transaction)
            .map_err(|error| error.into_open_error(&path))?;
        let loaded = load::read(&transaction).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        self.set_aside(&loaded, Vec::new())?;
        self.done
            .push(format!("the database as it was is {}", copy.display()));
        Ok(())
    }

    /// Decides what is to be done. Manifests that lack a checkpoint of the database are written again.
    fn plan<'s>(
        &mut self,
        loaded: &Loaded,
        known: &HashSet<PathBuf>,
        saved: &'s [Saved],
        quarantined: &'s [Saved],
    ) -> Result<Plan<'s>, OpenError> {
        let root = self.files.root().to_owned();
        let removals: HashSet<_> = loaded.removals.iter().map(|path| root.join(path)).collect();
        let is_unknown = |at: &PathBuf| !known.contains(at) && !removals.contains(at);
        let unknown = || saved.iter().filter(|weights| is_unknown(&weights.at));
        let whole: Vec<_> = unknown()
            .chain(quarantined)
            // What is in the place of weights that the database knows is not theirs.
            .filter(|weights| weights.is_whole() && !known.contains(&root.join(&weights.home)))
            .collect();
        let mut described = Vec::new();
        for weights in saved.iter().filter(|weights| known.contains(&weights.at)) {
            let Some(about) = weights.about() else {
                continue;
            };
            for path in survey::disagreements(about, &weights.home, loaded) {
                let mut all = weights.checkpoints().iter();
                match all.find(|saved| *saved.path() == path) {
                    // Where both can be read, the manifest wins: it has a digest, and is written first.
                    Some(saved) => described.push(saved),
                    // It was taken out first, and the database never heard of it.
                    None => self.describe_again(&path, loaded)?,
                }
            }
        }
        let is_there = |saved: &SavedCheckpoint| root.join(&saved.folder).exists();
        let (there, gone): (Vec<_>, Vec<_>) =
            loaded.checkpoints.iter().partition(|saved| is_there(saved));
        let path = |saved: &SavedCheckpoint| saved.path().clone();
        let listed: BTreeSet<_> = there.into_iter().map(path).collect();
        let is_lost = |id: &ModelId| {
            let run = loaded.runs.iter().find(|run| run.record.id == *id);
            run.is_none_or(|run| run.record.closed.is_some() && run.record.corrupted)
        };
        let mut recovered = newest_snapshots(whole.iter().copied(), is_lost);
        recovered.retain(|(path, _)| !listed.contains(path));
        let is_sampler = |weights: &&Saved| matches!(weights.about(), Some(About::Sampler(_)));
        Ok(Plan {
            gone: gone.into_iter().map(path).collect(),
            described,
            adopted: newest(whole.iter().copied(), &root, &listed),
            // What was in quarantine stays there: weights of a session are deleted when it ends.
            samplers: unknown()
                .filter(|weights| weights.is_whole())
                .filter(is_sampler)
                .collect(),
            recovered,
            listed,
            has_unknown: unknown().next().is_some(),
        })
    }

    fn carry_out(&mut self, plan: Plan<'_>, on: &Transaction<'_>) -> Result<(), RepairError> {
        let mut listed = plan.listed;
        for path in &plan.gone {
            records::CHECKPOINTS.delete(on, &path.to_string())?;
            self.done
                .push(format!("{path} has no files and is not listed any more"));
        }
        for saved in plan.described {
            self.list(on, saved, &mut listed)?;
            self.done
                .push(format!("{} is listed as its manifest says", saved.path()));
        }
        self.adopt_samplers(on, plan.samplers.into_iter())?;
        self.adopt(on, plan.adopted, &mut listed)?;
        self.recover(on, plan.recovered, &mut listed)
    }

    /// Writes a manifest for weights that have none, as those of earlier versions.
    fn describe(&mut self, at: &Path, loaded: &Loaded) {
        let home = at.strip_prefix(self.files.root()).unwrap_or(at);
        match about(home, loaded) {
            Some(About::Snapshot { run, seq_id }) => legacy::describe_snapshot(at, run, seq_id),
            Some(about) => legacy::describe(at, about),
            None => return,
        }
        self.done.push(format!(
            "described {} as it is now; whether it was damaged before cannot be told",
            at.display()
        ));
    }

    /// Adds a checkpoint of the database to the manifest of its folder.
    fn describe_again(&mut self, path: &TinkerPath, loaded: &Loaded) -> Result<(), OpenError> {
        let mut all = loaded.checkpoints.iter();
        if let Some(saved) = all.find(|saved| saved.path() == path) {
            manifest::put(self.files.root(), saved)?;
            self.done
                .push(format!("described {path} as the database does"));
        }
        Ok(())
    }
}

impl Plan<'_> {
    fn is_empty(&self) -> bool {
        self.gone.is_empty()
            && self.described.is_empty()
            && self.adopted.is_empty()
            && self.samplers.is_empty()
            && self.recovered.is_empty()
            && !self.has_unknown
    }
}

/// Returns what the database says of a folder or snapshot.
fn about(home: &Path, loaded: &Loaded) -> Option<About> {
    let checkpoints = loaded.checkpoints.iter();
    let checkpoints: Vec<_> = checkpoints
        .filter(|saved| saved.folder == home)
        .cloned()
        .collect();
    if !checkpoints.is_empty() {
        return Some(About::Checkpoints(checkpoints));
    }
    let mut samplers = loaded.samplers.iter();
    if let Some(sampler) =
        samplers.find(|sampler| sampler.own_folder().is_some_and(|own| own == home))
    {
        return Some(About::Sampler(sampler.clone()));
    }
    loaded.runs.iter().find_map(|run| {
        let mut seq_ids = run.snapshot.into_iter().chain(run.fallback.snapshot());
        let is_it = |seq_id: &i64| files::snapshot_path(&run.record.id, *seq_id) == home;
        let seq_id = seq_ids.find(is_it)?;
        let run = run.record.clone();
        Some(About::Snapshot { run, seq_id })
    })
}
