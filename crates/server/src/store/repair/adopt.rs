//! Rows made of what saved weights say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use jiff::Timestamp;
use rusqlite::Transaction;
use tinkrs_types::rest::Checkpoint;
use tinkrs_types::session::SessionStatus;
use tinkrs_types::{CheckpointKind, ModelId, SessionId, TinkerPath};

use super::{CLOSED, Repair, RepairError};
use crate::auth::Owner;
use crate::registry::records::{RunRecord, SavedCheckpoint, SessionRecord};
use crate::store::files::{self, file_name};
use crate::store::manifest::{self, About, Manifest};
use crate::store::survey::Saved;
use crate::store::tables::{records, runs};
use crate::worker::STATE_FILE;

impl Repair {
    /// Lists checkpoints that the database does not know, after they are back in their places.
    pub(super) fn adopt(
        &mut self,
        on: &Transaction<'_>,
        adopted: Vec<(&Saved, &SavedCheckpoint)>,
        listed: &mut BTreeSet<TinkerPath>,
    ) -> Result<(), RepairError> {
        for (weights, saved) in adopted {
            self.bring_home(weights)?;
            self.list(on, saved, listed)?;
            self.done
                .push(format!("listed {} of {}", saved.path(), saved.owner));
        }
        Ok(())
    }

    /// Moves weights to where they belong. What is in their place goes to the quarantine.
    fn bring_home(&self, weights: &Saved) -> Result<(), RepairError> {
        let home = self.files.root().join(&weights.home);
        // Several checkpoints share a folder, so it may be there already.
        if weights.at == home || !weights.at.exists() {
            return Ok(());
        }
        if fs::symlink_metadata(&home).is_ok() {
            self.files.quarantine(&home, &self.dated)?;
        }
        let folder = files::parent(&home);
        fs::create_dir_all(folder)?;
        fs::rename(&weights.at, &home)?;
        files::sync_folder(folder)?;
        Ok(())
    }

    /// Lists a checkpoint, with its run and session.
    pub(super) fn list(
        &self,
        on: &Transaction<'_>,
        saved: &SavedCheckpoint,
        listed: &mut BTreeSet<TinkerPath>,
    ) -> Result<(), RepairError> {
        let path = saved.path();
        add_run(on, &run_of(path.run(), saved))?;
        records::CHECKPOINTS.put(on, &path.to_string(), saved)?;
        listed.insert(path.clone());
        Ok(())
    }

    /// Lists the adapters of sampling sessions, for as long as their clients are heard of. Those of a session that is over
    /// are left.
    pub(super) fn adopt_samplers<'s>(
        &mut self,
        on: &Transaction<'_>,
        saved: impl Iterator<Item = &'s Saved>,
    ) -> Result<(), RepairError> {
        for weights in saved {
            let Some(About::Sampler(sampler)) = weights.about() else {
                continue;
            };
            let session = records::SESSIONS.find::<SessionRecord>(on, sampler.session.as_str())?;
            match session {
                Some(session) if session.status != SessionStatus::Active => continue,
                Some(_) => {}
                None => {
                    let mut session = repaired_session(&sampler.session, sampler.owner);
                    session.status = SessionStatus::Active;
                    records::SESSIONS.put(on, session.id.as_str(), &session)?;
                }
            }
            self.bring_home(weights)?;
            records::SAMPLERS.put(on, sampler.id.as_str(), sampler)?;
            self.done.push(format!("listed the sampler {}", sampler.id));
        }
        Ok(())
    }

    /// Makes checkpoints of the snapshots of runs that are lost.
    pub(super) fn recover(
        &mut self,
        on: &Transaction<'_>,
        snapshots: Vec<(TinkerPath, &Saved)>,
        listed: &mut BTreeSet<TinkerPath>,
    ) -> Result<(), RepairError> {
        for (path, weights) in snapshots {
            let Some(About::Snapshot { run, .. }) = weights.about() else {
                continue;
            };
            // An earlier repair may have come as far as this.
            if listed.contains(&path) {
                continue;
            }
            let name = format!("{}.{:016x}", file_name(path.name()), fastrand::u64(..));
            let folder = Path::new("checkpoints")
                .join(file_name(run.id.as_str()))
                .join(path.kind().segment())
                .join(name);
            let partial = self.files.partial();
            fs::create_dir_all(&partial)?;
            // A link: the snapshot stays what it is until the new database is there.
            let state = partial.join(STATE_FILE);
            if fs::hard_link(&weights.at, &state).is_err() {
                fs::copy(&weights.at, &state)?;
            }
            let mut saved = SavedCheckpoint {
                owner: run.owner,
                checkpoint: Checkpoint::new(path, Timestamp::now()),
                info: run.weights_info(),
                folder: folder.clone(),
            };
            let described = Manifest::of_folder(&partial, |size_bytes| {
                saved.checkpoint.size_bytes = Some(size_bytes);
                About::Checkpoints(vec![saved.clone()])
            })?;
            described.write(&partial.join(manifest::FILE))?;
            self.files
                .publish(&partial, &self.files.root().join(folder))?;
            let mut record = run.clone();
            record.closed = Some(CLOSED.to_owned());
            record.corrupted = true;
            add_run(on, &record)?;
            self.list(on, &saved, listed)?;
            self.done.push(format!(
                "made {} of the last snapshot of {}, for {}",
                saved.path(),
                run.id,
                run.owner
            ));
        }
        Ok(())
    }
}

/// Chooses what is listed under each path that is free: what is whole, then the newest, then what is in its place.
pub(super) fn newest<'s>(
    saved: impl Iterator<Item = &'s Saved>,
    root: &Path,
    taken: &BTreeSet<TinkerPath>,
) -> Vec<(&'s Saved, &'s SavedCheckpoint)> {
    let rank = |(weights, saved): &(&Saved, &SavedCheckpoint)| {
        let is_home = weights.at == root.join(&weights.home);
        (weights.is_whole(), saved.checkpoint.time, is_home)
    };
    let mut chosen = BTreeMap::<TinkerPath, (&Saved, &SavedCheckpoint)>::new();
    for weights in saved {
        for checkpoint in weights.checkpoints() {
            let (path, found) = (checkpoint.path(), (weights, checkpoint));
            let is_better = chosen
                .get(path)
                .is_none_or(|other| rank(other) < rank(&found));
            if !taken.contains(path) && is_better {
                chosen.insert(path.clone(), found);
            }
        }
    }
    chosen.into_values().collect()
}

/// Finds the last snapshot of each run that is lost, and what it is to be called.
pub(super) fn newest_snapshots<'s>(
    saved: impl Iterator<Item = &'s Saved>,
    is_lost: impl Fn(&ModelId) -> bool,
) -> Vec<(TinkerPath, &'s Saved)> {
    let mut newest = BTreeMap::<ModelId, (i64, &Saved)>::new();
    for weights in saved {
        if let Some(About::Snapshot { run, seq_id }) = weights.about()
            && is_lost(&run.id)
            && newest.get(&run.id).is_none_or(|(other, _)| other < seq_id)
        {
            newest.insert(run.id.clone(), (*seq_id, weights));
        }
    }
    let named = newest.into_iter().map(|(run, (seq_id, weights))| {
        let path = TinkerPath::new(run, CheckpointKind::Training, format!("recovered-{seq_id}"));
        path.map(|path| (path, weights))
    });
    named.filter_map(Result::ok).collect()
}

/// Adds a run and its session, unless they are there.
fn add_run(on: &Transaction<'_>, run: &RunRecord) -> Result<(), RepairError> {
    runs::insert(on, run)?;
    let there: Option<SessionRecord> = records::SESSIONS.find(on, run.session.as_str())?;
    if there.is_none() {
        let mut session = repaired_session(&run.session, run.owner);
        session.created_at = run.created_at;
        records::SESSIONS.put(on, session.id.as_str(), &session)?;
    }
    Ok(())
}

fn repaired_session(id: &SessionId, owner: Owner) -> SessionRecord {
    SessionRecord::holding(id.clone(), owner, "repaired".to_owned())
}

/// Describes the run of a checkpoint, as far as the checkpoint tells.
fn run_of(id: &ModelId, saved: &SavedCheckpoint) -> RunRecord {
    let session = id.session().map(|(session, _)| session);
    let session = session.unwrap_or_else(|| id.as_str().into());
    let mut session = repaired_session(&session, saved.owner);
    session.created_at = saved.checkpoint.time;
    RunRecord {
        id: id.clone(),
        ..RunRecord::holding(&session, &saved.info, CLOSED)
    }
}
