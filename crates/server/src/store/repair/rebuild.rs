//! A new database in place of one that is missing or damaged.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rusqlite::{Connection, Transaction};
use tinkrs_types::{ModelId, TinkerPath};

use super::adopt::{newest, newest_snapshots};
use super::{CLOSED, Repair, RepairError};
use crate::store::files::{self, Files};
use crate::store::load::{self, Loaded};
use crate::store::survey::{self, Saved};
use crate::store::tables::{records, runs};
use crate::store::{OpenError, salvage, schema};

/// How the new database is called until it is in its place; the rest of the name says when it was made.
const REPAIRED: &str = "tinkrs.db.repaired-";

impl Repair {
    /// Writes a new database in place of one that is missing or damaged.
    pub(super) fn rebuild(&mut self, copy: &Path, scratch: &Path) -> Result<(), OpenError> {
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
        self.fill(&transaction)
            .map_err(|error| error.into_open_error(&path))?;
        let loaded = load::read(&transaction).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        // All of it in one file, which can be renamed.
        connection
            .pragma_update(None, "journal_mode", "delete")
            .map_err(failed)?;
        connection.close().map_err(|(_, error)| failed(error))?;
        // What was requested can neither be answered nor repeated without the journal.
        let mut besides = Vec::new();
        for folder in ["bodies", "results"] {
            let entries = fs::read_dir(self.files.root().join(folder))?;
            besides.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
        }
        self.set_aside(&loaded, besides)?;
        let new = new_files.database();
        files::sync_file(&new)?;
        fs::rename(
            new,
            self.files.root().join(format!("{REPAIRED}{}", self.dated)),
        )?;
        self.finish_replacing()
    }

    /// Adds what the saved weights say to the rows that were taken over.
    fn fill(&mut self, on: &Transaction<'_>) -> Result<(), RepairError> {
        let loaded = load::read(on)?;
        close_runs(on, &loaded)?;
        let saved = survey::all_saved(&self.files);
        let quarantined = survey::all_quarantined(&self.files);
        // First, because the sessions of samplers are open, and those that are made for checkpoints are not.
        let is_home = |weights: &&Saved| weights.at == self.files.root().join(&weights.home);
        let samplers: Vec<_> = saved.iter().filter(is_home).collect();
        self.adopt_samplers(on, samplers.into_iter())?;
        // Of files that are damaged some may still be of use, and the rest is an error by name.
        let usable: Vec<_> = saved
            .iter()
            .filter(|weights| weights.manifest.is_ok())
            .chain(quarantined.iter().filter(|weights| weights.is_whole()))
            .collect();
        let mut listed = BTreeSet::new();
        let adopted = newest(usable.iter().copied(), self.files.root(), &listed);
        self.adopt(on, adopted, &mut listed)?;
        self.unlist(on, &loaded, &listed)?;
        let whole = usable.iter().copied().filter(|weights| weights.is_whole());
        let snapshots = newest_snapshots(whole, |_: &ModelId| true);
        self.recover(on, snapshots, &mut listed)
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

    /// Puts a new database in the place of the old one, which is kept. This can be interrupted anywhere: while the new one
    /// has its first name, no server starts, and the next repair goes on here. The old write-ahead log must be gone
    /// before the new database is in its place, because it would be taken for the new one's.
    pub(super) fn finish_replacing(&mut self) -> Result<(), OpenError> {
        let Some(new) = unfinished(&self.files) else {
            return Ok(());
        };
        let root = self.files.root();
        files::sync_folder(root)?;
        let name = new.file_name().unwrap_or_default().to_string_lossy();
        let dated = name.trim_start_matches(REPAIRED);
        let kept = self.beside_database(&format!(".damaged-{dated}"));
        for ending in ["", "-wal", "-shm"] {
            let old = self.beside_database(ending);
            if old.exists() {
                fs::rename(&old, files::with_ending(&kept, ending))?;
            }
        }
        files::sync_folder(root)?;
        fs::rename(&new, self.files.database())?;
        files::sync_folder(root)?;
        self.done.push(if kept.exists() {
            format!("the database as it was is {}", kept.display())
        } else {
            "made a new database".to_owned()
        });
        Ok(())
    }
}

/// Returns the database of a repair that was interrupted before it was in its place.
pub(in crate::store) fn unfinished(files: &Files) -> Option<PathBuf> {
    let entries = fs::read_dir(files.root()).ok()?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    names.find(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| name.starts_with(REPAIRED))
    })
}

/// Closes the runs that were open: what they did after their snapshots is lost.
fn close_runs(on: &Transaction<'_>, loaded: &Loaded) -> Result<(), RepairError> {
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
