//! The table of weights that are to be removed: a row stays until its files are gone.
//!
//! It tells what was deleted, and could not be removed in time, from what the database has lost.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Transaction};

use super::list;

/// Notes a file or folder of the data folder that is to be removed after the commit.
pub(in crate::store) fn insert(on: &Transaction<'_>, path: &Path) -> rusqlite::Result<()> {
    on.prepare_cached("INSERT OR IGNORE INTO removals (path) VALUES (?)")?
        .execute([path.to_string_lossy()])?;
    Ok(())
}

/// Notes that all of them were removed.
pub(in crate::store) fn clear(on: &Transaction<'_>) -> rusqlite::Result<()> {
    on.prepare_cached("DELETE FROM removals")?.execute([])?;
    Ok(())
}

pub(in crate::store) fn all(on: &Connection) -> rusqlite::Result<Vec<PathBuf>> {
    list(on, "SELECT path FROM removals", [], |row| {
        row.get::<_, String>("path").map(PathBuf::from)
    })
}
