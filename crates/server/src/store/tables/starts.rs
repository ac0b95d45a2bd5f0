//! The number of starts: what sets the ids of one process apart from those of another.

use rusqlite::{Connection, Transaction};

/// Counts a start, and returns how many there were.
pub(in crate::store) fn count(on: &Connection) -> rusqlite::Result<u64> {
    let sql = "UPDATE starts SET epoch = epoch + 1 RETURNING epoch";
    let epoch: i64 = on.query_row(sql, [], |row| row.get("epoch"))?;
    Ok(epoch.cast_unsigned())
}

/// Changes something, so that there is something to commit, and to sync with all that came before. SQLite
/// neither writes nor syncs where the same is written again.
pub(in crate::store) fn touch(on: &Transaction<'_>) -> rusqlite::Result<()> {
    on.prepare_cached("UPDATE starts SET syncs = syncs + 1")?
        .execute([])?;
    Ok(())
}
