//! Making a data folder whole again.
//!
//! A database that can be read gets the rows that are missing. One that cannot is replaced: by the rows that
//! are still readable, and by what the saved weights say of themselves, which wins where both speak. Runs that
//! were open are closed then, for their journal is gone, and the newest snapshot of each becomes a checkpoint.
//!
//! Nothing is deleted. The database as it was is kept beside the new one, and what has no use goes to
//! `quarantine/`. A repair that is interrupted can be done again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rusqlite::{Connection, Transaction};
use tinkrs_types::rest::Checkpoint;
use tinkrs_types::session::SessionStatus;
use tinkrs_types::{CheckpointKind, ModelId, SessionId, TinkerPath};

use super::files::{self, Files, file_name};
use super::load::{self, Loaded};
use super::manifest::{self, About, Manifest};
use super::survey::{self, Saved};
use super::tables::{records, runs};
use super::{OpenError, legacy, lock_folder, orphans, salvage, schema};
use crate::auth::Owner;
use crate::data::DataReport;
use crate::registry::records::{RunRecord, SavedCheckpoint, SessionRecord};
use crate::worker::STATE_FILE;

/// Why a run cannot be trained after its journal was lost.
const CLOSED: &str = "the server's database was repaired; load a checkpoint of it into a new model";

/// A repair under way.
struct Repair {
    files: Files,
    /// What is set aside goes under this name.
    dated: String,
    done: Vec<String>,
}

pub(crate) fn repair(root: &Path) -> Result<DataReport, OpenError> {
    let scratch = root
        .join("partial")
        .join(format!("repair-{}", files::dated()));
    // Says first whether this is a data folder, and that nobody uses it.
    fs::metadata(root)?;
    let guard = lock_folder(root)?;
    let files = Files::open(root)?;
    fs::create_dir_all(&scratch)?;
    let copy = survey::copy_database(&files, &scratch)?;
    let found = survey::read_database(&files, &copy);
    let mut repair = Repair {
        files,
        dated: files::dated(),
        done: Vec::new(),
    };
    match found {
        Ok(Some(loaded)) => repair.complete(&loaded)?,
        Ok(None) if repair.has_weights() => repair.rebuild(&copy, &scratch)?,
        // A folder that was never used.
        Ok(None) => {}
        Err(OpenError::Damaged { .. } | OpenError::NotOurs(_)) => {
            repair.rebuild(&copy, &scratch)?
        }
        Err(error) => return Err(error),
    }
    files::remove(&scratch);
    drop(guard);
    let (folder, done) = (root.to_owned(), repair.done);
    fs::create_dir_all(&scratch)?;
    let checked = survey::check(root, &scratch);
    files::remove(&scratch);
    Ok(DataReport {
        folder,
        done,
        ..checked?
    })
}

impl Repair {
    fn has_weights(&self) -> bool {
        !self.files.weights().is_empty() || !survey::all_quarantined(&self.files).is_empty()
    }

    fn path(&self, name: &str) -> PathBuf {
        files::with_ending(&self.files.database(), name)
    }

    /// Adds what is missing to a database that can be read.
    fn complete(&mut self, loaded: &Loaded) -> Result<(), OpenError> {
        let (saved, quarantined) = (
            survey::all_saved(&self.files),
            survey::all_quarantined(&self.files),
        );
        let known = orphans::known(&self.files, loaded);
        let removals: HashSet<_> = loaded.removals.iter().collect();
        let unknown: Vec<_> = saved
            .iter()
            .filter(|weights| !known.contains(&weights.at) && !removals.contains(&weights.home))
            .chain(&quarantined)
            .filter(|weights| weights.is_whole())
            .collect();
        // Where both can be read, the manifest wins: it has a digest, and is written first.
        let described = saved
            .iter()
            .filter(|weights| known.contains(&weights.at))
            .filter(|weights| match &weights.manifest {
                Ok(manifest) => {
                    !survey::disagreements(&manifest.about, &weights.home, loaded).is_empty()
                }
                Err(_) => false,
            })
            .collect::<Vec<_>>();
        let is_there = |saved: &&SavedCheckpoint| self.files.root().join(&saved.folder).exists();
        let listed = loaded.checkpoints.iter().filter(is_there);
        let mut listed: BTreeSet<_> = listed.map(|saved| saved.path().clone()).collect();
        let gone: Vec<_> = loaded
            .checkpoints
            .iter()
            .filter(|saved| !is_there(saved))
            .map(|saved| saved.path().clone())
            .collect();
        let undescribed = saved
            .iter()
            .filter(|weights| known.contains(&weights.at))
            .filter(|weights| weights.manifest.as_ref().is_err_and(survey::is_missing));
        let mut done = Vec::new();
        for weights in undescribed {
            if let Some(about) = about(&weights.home, loaded) {
                legacy::describe(&weights.at, about);
                done.push(format!(
                    "described {} as it is now; whether it was damaged before cannot be told",
                    weights.at.display()
                ));
            }
        }
        let adopted = newest(unknown.iter().copied(), &listed);
        let lost = |id: &ModelId| {
            let run = loaded.runs.iter().find(|run| run.record.id == *id);
            run.is_none_or(|run| run.record.closed.is_some() && run.record.corrupted)
        };
        let snapshots = newest_snapshots(unknown.iter().copied(), lost);
        let recovered: Vec<_> = snapshots
            .into_iter()
            .filter(|(path, _)| !listed.contains(path))
            .collect();
        let nothing =
            adopted.is_empty() && recovered.is_empty() && gone.is_empty() && described.is_empty();
        self.done.append(&mut done);
        if nothing {
            return Ok(());
        }

        let path = self.files.database();
        let failed = |error| OpenError::of_database(error, &path);
        let mut connection = Connection::open(&path).map_err(failed)?;
        let copy = self.path(&format!(".before-repair-{}", self.dated));
        connection
            .execute("VACUUM INTO ?", [copy.to_string_lossy()])
            .map_err(failed)?;
        let transaction = connection.transaction().map_err(failed)?;
        let add = || -> Result<(), RepairError> {
            for path in &gone {
                records::CHECKPOINTS.delete(&transaction, &path.to_string())?;
                self.done
                    .push(format!("{path} has no files and is not listed any more"));
            }
            for weights in described {
                for saved in weights.checkpoints() {
                    self.list(&transaction, saved, &mut listed)?;
                }
            }
            self.adopt(&transaction, adopted, &mut listed)?;
            self.recover(&transaction, recovered, &mut listed)
        };
        add().map_err(|error| error.into_open_error(&path))?;
        transaction.commit().map_err(failed)?;
        self.done
            .push(format!("the database as it was is {}", copy.display()));
        Ok(())
    }

    /// Writes a new database in place of one that is missing or damaged.
    fn rebuild(&mut self, copy: &Path, scratch: &Path) -> Result<(), OpenError> {
        let new = scratch.join("new");
        fs::create_dir_all(&new)?;
        let path = self.files.database();
        let new_files = Files::at(&new);
        let mut connection = schema::open(&new_files)?;
        let failed = |error| OpenError::of_database(error, &path);
        let transaction = connection.transaction().map_err(failed)?;
        // Request ids begin with the number of the start, and none may be used twice.
        let now = Timestamp::now().as_second();
        transaction
            .execute("UPDATE starts SET epoch = max(epoch, ?)", [now])
            .map_err(failed)?;
        let old = Connection::open(copy).map_err(failed)?;
        let rows = salvage::take_rows(&old, &transaction).map_err(failed)?;
        drop(old);
        if rows > 0 {
            self.done
                .push(format!("took over {rows} rows that can be read"));
        }
        let mut fill = || -> Result<(), RepairError> {
            let loaded = load::read(&transaction)?;
            self.close_runs(&transaction, &loaded)?;
            let (saved, quarantined) = (
                survey::all_saved(&self.files),
                survey::all_quarantined(&self.files),
            );
            // Of files that are damaged some may still be of use, and the rest is an error by name.
            let usable = saved.iter().filter(|weights| weights.manifest.is_ok());
            let usable: Vec<_> = usable
                .chain(quarantined.iter().filter(|weights| weights.is_whole()))
                .collect();
            let mut listed = BTreeSet::new();
            let adopted = newest(usable.iter().copied(), &listed);
            self.adopt(&transaction, adopted, &mut listed)?;
            self.adopt_samplers(&transaction, &saved)?;
            self.unlist(&transaction, &loaded, &listed)?;
            let lost = |_: &ModelId| true;
            let whole = usable.iter().copied().filter(|weights| weights.is_whole());
            let snapshots = newest_snapshots(whole, lost);
            self.recover(&transaction, snapshots, &mut listed)
        };
        fill().map_err(|error| error.into_open_error(&path))?;
        let loaded = load::read(&transaction).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        connection.close().map_err(|(_, error)| failed(error))?;
        self.set_aside(&loaded)?;
        self.replace_database(&new_files.database())
    }

    /// Puts the new database in the place of the old one, which is kept.
    fn replace_database(&mut self, new: &Path) -> Result<(), OpenError> {
        let old = self.files.database();
        let kept = self.path(&format!(".damaged-{}", self.dated));
        if old.exists() {
            fs::copy(&old, &kept)?;
            fs::File::open(&kept)?.sync_all()?;
        }
        for ending in ["-wal", "-shm"] {
            let log = files::with_ending(&old, ending);
            if log.exists() {
                fs::rename(&log, files::with_ending(&kept, ending))?;
            }
        }
        fs::File::open(new)?.sync_all()?;
        fs::rename(new, &old)?;
        files::sync_folder(self.files.root())?;
        if kept.exists() {
            self.done
                .push(format!("the database as it was is {}", kept.display()));
        }
        Ok(())
    }

    /// Moves away what the new database has no use for: snapshots, and requests whose journal is gone.
    fn set_aside(&mut self, loaded: &Loaded) -> io::Result<()> {
        let known = orphans::known(&self.files, loaded);
        let mut unknown = self.files.weights();
        unknown.retain(|path| !known.contains(path));
        for folder in ["bodies", "results"] {
            let entries = fs::read_dir(self.files.root().join(folder))?;
            unknown.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
        }
        for path in &unknown {
            self.files.quarantine(path, &self.dated)?;
        }
        self.files.remove_empty_folders();
        if !unknown.is_empty() {
            self.done.push(format!(
                "moved {} that are not needed, or not described, to {}",
                counted(unknown.len(), "file or folder", "files and folders"),
                self.files
                    .root()
                    .join("quarantine")
                    .join(&self.dated)
                    .display()
            ));
        }
        Ok(())
    }

    /// Closes the runs that were open: what they did after their snapshots is lost.
    fn close_runs(&mut self, on: &Transaction<'_>, loaded: &Loaded) -> Result<(), RepairError> {
        for run in &loaded.runs {
            let mut record = run.record.clone();
            if record.closed.is_none() {
                record.closed = Some(CLOSED.to_owned());
                record.corrupted = true;
                runs::set_record(on, &record)?;
            }
            runs::set_snapshots(on, &record.id, None, runs::Fallback::Nothing)?;
        }
        Ok(())
    }

    /// Takes checkpoints off the list whose files are not there.
    fn unlist(
        &mut self,
        on: &Transaction<'_>,
        loaded: &Loaded,
        listed: &BTreeSet<TinkerPath>,
    ) -> Result<(), RepairError> {
        for saved in &loaded.checkpoints {
            let path = saved.path();
            if !listed.contains(path) && !self.files.root().join(&saved.folder).exists() {
                records::CHECKPOINTS.delete(on, &path.to_string())?;
                self.done
                    .push(format!("{path} has no files and is not listed any more"));
            }
        }
        Ok(())
    }

    /// Lists checkpoints that the database does not know, after they are back in their places.
    fn adopt(
        &mut self,
        on: &Transaction<'_>,
        adopted: Vec<(&Saved, &SavedCheckpoint)>,
        listed: &mut BTreeSet<TinkerPath>,
    ) -> Result<(), RepairError> {
        for (weights, saved) in adopted {
            let home = self.files.root().join(&weights.home);
            if weights.at != home && !home.exists() {
                fs::create_dir_all(home.parent().unwrap_or(&home))?;
                fs::rename(&weights.at, &home)?;
            }
            let mut saved = saved.clone();
            saved.folder.clone_from(&weights.home);
            self.list(on, &saved, listed)?;
            self.done
                .push(format!("listed {} of {}", saved.path(), saved.owner));
        }
        Ok(())
    }

    fn list(
        &mut self,
        on: &Transaction<'_>,
        saved: &SavedCheckpoint,
        listed: &mut BTreeSet<TinkerPath>,
    ) -> Result<(), RepairError> {
        let (path, time) = (saved.path(), saved.checkpoint.time);
        let run = RunRecord {
            id: path.run().clone(),
            created_at: time,
            ..run_of(path.run(), saved, time)
        };
        self.add_run(on, &run)?;
        records::CHECKPOINTS.put(on, &path.to_string(), saved)?;
        listed.insert(path.clone());
        Ok(())
    }

    /// Adds a run and its session, unless they are there.
    fn add_run(&self, on: &Transaction<'_>, run: &RunRecord) -> Result<(), RepairError> {
        runs::insert(on, run)?;
        add_session(on, &run.session, run.owner, run.created_at, None)
    }

    /// Lists the adapters of sampling sessions, for as long as their clients are heard of.
    fn adopt_samplers(&mut self, on: &Transaction<'_>, saved: &[Saved]) -> Result<(), RepairError> {
        for weights in saved {
            if let Ok(Manifest {
                about: About::Sampler(sampler),
                ..
            }) = &weights.manifest
            {
                let active = Some(SessionStatus::Active);
                add_session(
                    on,
                    &sampler.session,
                    sampler.owner,
                    Timestamp::now(),
                    active,
                )?;
                records::SAMPLERS.put(on, sampler.id.as_str(), sampler)?;
                self.done.push(format!("listed the sampler {}", sampler.id));
            }
        }
        Ok(())
    }

    /// Makes checkpoints of the snapshots of runs that are lost.
    fn recover(
        &mut self,
        on: &Transaction<'_>,
        snapshots: Vec<(TinkerPath, &Saved)>,
        listed: &mut BTreeSet<TinkerPath>,
    ) -> Result<(), RepairError> {
        for (path, weights) in snapshots {
            let Ok(Manifest {
                about: About::Snapshot { run, .. },
                ..
            }) = &weights.manifest
            else {
                continue;
            };
            let name = format!("{}.{:016x}", file_name(path.name()), fastrand::u64(..));
            let folder = Path::new("checkpoints")
                .join(file_name(run.id.as_str()))
                .join(path.kind().segment())
                .join(name);
            let place = self.files.root().join(&folder);
            fs::create_dir_all(&place)?;
            // A link: the snapshot stays what it is until the new database is there.
            let state = place.join(STATE_FILE);
            if fs::hard_link(&weights.at, &state).is_err() {
                fs::copy(&weights.at, &state)?;
            }
            let mut saved = SavedCheckpoint {
                owner: run.owner,
                checkpoint: Checkpoint::new(path, Timestamp::now()),
                info: run.weights_info(),
                folder,
            };
            let described = Manifest::of_folder(&place, |size_bytes| {
                saved.checkpoint.size_bytes = Some(size_bytes);
                About::Checkpoints(vec![saved.clone()])
            })?;
            described.write(&place.join(manifest::FILE))?;
            let mut record = run.clone();
            record.closed = Some(CLOSED.to_owned());
            record.corrupted = true;
            self.add_run(on, &record)?;
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

/// Why a repair failed.
enum RepairError {
    Database(rusqlite::Error),
    Io(io::Error),
}

impl RepairError {
    fn into_open_error(self, database: &Path) -> OpenError {
        match self {
            Self::Database(error) => OpenError::of_database(error, database),
            Self::Io(error) => error.into(),
        }
    }
}

impl From<rusqlite::Error> for RepairError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<io::Error> for RepairError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Chooses what is listed under each path that is free: the newest.
fn newest<'s>(
    saved: impl Iterator<Item = &'s Saved>,
    taken: &BTreeSet<TinkerPath>,
) -> Vec<(&'s Saved, &'s SavedCheckpoint)> {
    let mut chosen = BTreeMap::<TinkerPath, (&Saved, &SavedCheckpoint)>::new();
    for weights in saved {
        for checkpoint in weights.checkpoints() {
            let path = checkpoint.path();
            let is_newer = chosen
                .get(path)
                .is_none_or(|(_, other)| other.checkpoint.time < checkpoint.checkpoint.time);
            if !taken.contains(path) && is_newer {
                chosen.insert(path.clone(), (weights, checkpoint));
            }
        }
    }
    chosen.into_values().collect()
}

/// Finds the last snapshot of each run that is lost, and what it is to be called.
fn newest_snapshots<'s>(
    saved: impl Iterator<Item = &'s Saved>,
    is_lost: impl Fn(&ModelId) -> bool,
) -> Vec<(TinkerPath, &'s Saved)> {
    let mut newest = BTreeMap::<ModelId, (i64, &Saved)>::new();
    for weights in saved {
        if let Ok(Manifest {
            about: About::Snapshot { run, seq_id },
            ..
        }) = &weights.manifest
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

/// Returns what the database says of a folder.
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
    let sampler = samplers.find(|sampler| sampler.own_folder().is_some_and(|own| own == home));
    sampler.cloned().map(About::Sampler)
}

fn session_of(run: &ModelId) -> SessionId {
    let session = run.session().map(|(session, _)| session);
    session.unwrap_or_else(|| run.as_str().into())
}

fn run_of(id: &ModelId, saved: &SavedCheckpoint, time: Timestamp) -> RunRecord {
    let mut session = SessionRecord::holding(session_of(id), saved.owner, String::new());
    session.created_at = time;
    RunRecord::holding(&session, &saved.info, CLOSED)
}

fn add_session(
    on: &Transaction<'_>,
    id: &SessionId,
    owner: Owner,
    created_at: Timestamp,
    status: Option<SessionStatus>,
) -> Result<(), RepairError> {
    let there: Option<SessionRecord> = records::SESSIONS.find(on, id.as_str())?;
    let mut session = match there {
        Some(_) if status.is_none() => return Ok(()),
        Some(session) => session,
        None => {
            let mut session = SessionRecord::holding(id.clone(), owner, "repaired".to_owned());
            session.created_at = created_at;
            session
        }
    };
    if let Some(status) = status {
        session.status = status;
    }
    Ok(records::SESSIONS.put(on, id.as_str(), &session)?)
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
