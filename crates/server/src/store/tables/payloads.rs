//! Bodies of requests and results of operations.
//!
//! A small one lies in the database, where the sync of a commit covers it. A large one is a file, which is
//! synced before, so that the write-ahead log does not carry megabytes twice.

use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension, Transaction};
use tinkrs_types::RequestId;

use crate::store::change::ApplyError;
use crate::store::files::{self, Files};

/// The most bytes that lie in the database.
pub(in crate::store) const INLINE_BYTES: usize = 64 * 1024;

/// A table of small ones, and where the large ones are.
pub(in crate::store) struct Payloads {
    table: &'static str,
    file: fn(&Files, &RequestId) -> PathBuf,
}

pub(in crate::store) const BODIES: Payloads = Payloads {
    table: "bodies",
    file: Files::body,
};

pub(in crate::store) const RESULTS: Payloads = Payloads {
    table: "results",
    file: Files::result,
};

impl Payloads {
    pub(in crate::store) fn put(
        &self,
        on: &Transaction<'_>,
        files: &Files,
        id: &RequestId,
        bytes: &[u8],
    ) -> Result<(), ApplyError> {
        if bytes.len() > INLINE_BYTES {
            let path = (self.file)(files, id);
            let written = files::write_durably(&path, bytes);
            return written.map_err(|error| ApplyError::File(error, path));
        }
        let sql = format!("INSERT INTO {} (id, bytes) VALUES (?, ?)", self.table);
        on.prepare_cached(&sql)?.execute((id.as_str(), bytes))?;
        Ok(())
    }

    /// Drops one. If it is a file, that is removed after the commit.
    pub(in crate::store) fn drop(
        &self,
        on: &Transaction<'_>,
        files: &Files,
        id: &RequestId,
        unneeded: &mut Vec<PathBuf>,
    ) -> rusqlite::Result<()> {
        let sql = format!("DELETE FROM {} WHERE id = ?", self.table);
        if on.prepare_cached(&sql)?.execute([id.as_str()])? == 0 {
            unneeded.push((self.file)(files, id));
        }
        Ok(())
    }

    /// Finds one that is in the database.
    pub(in crate::store) fn find(
        &self,
        on: &Connection,
        id: &RequestId,
    ) -> rusqlite::Result<Option<Vec<u8>>> {
        let sql = format!("SELECT bytes FROM {} WHERE id = ?", self.table);
        let mut query = on.prepare_cached(&sql)?;
        query.query_row([id.as_str()], |row| row.get(0)).optional()
    }

    /// Returns where one is that is not in the database.
    pub(in crate::store) fn file(&self, files: &Files, id: &RequestId) -> PathBuf {
        (self.file)(files, id)
    }
}
