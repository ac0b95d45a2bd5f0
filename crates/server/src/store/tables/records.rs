//! The tables of sessions, samplers, checkpoints and losses: each has an id and a JSON record.

use rusqlite::{Connection, OptionalExtension, Transaction, named_params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{from_json, list, to_json};

/// A table of records: its name, and that of the column with the id.
pub(in crate::store) struct Records {
    table: &'static str,
    id: &'static str,
}

pub(in crate::store) const SESSIONS: Records = Records::new("sessions", "id");
pub(in crate::store) const SAMPLERS: Records = Records::new("samplers", "id");
pub(in crate::store) const CHECKPOINTS: Records = Records::new("checkpoints", "path");
pub(in crate::store) const LOSSES: Records = Records::new("losses", "id");

impl Records {
    const fn new(table: &'static str, id: &'static str) -> Self {
        Self { table, id }
    }

    /// Stores a record in place of the one that the id had.
    pub(in crate::store) fn put(
        &self,
        on: &Transaction<'_>,
        id: &str,
        record: &impl Serialize,
    ) -> rusqlite::Result<()> {
        self.put_text(on, id, &to_json(record))
    }

    /// As [`put`](Self::put), for a record that was written before.
    pub(in crate::store) fn put_text(
        &self,
        on: &Transaction<'_>,
        id: &str,
        record: &str,
    ) -> rusqlite::Result<()> {
        let sql = format!(
            "INSERT OR REPLACE INTO {} ({}, record) VALUES (:id, :record)",
            self.table, self.id
        );
        on.prepare_cached(&sql)?
            .execute(named_params! {":id": id, ":record": record})?;
        Ok(())
    }

    /// Removes a record and returns what it was.
    pub(in crate::store) fn remove<T: DeserializeOwned>(
        &self,
        on: &Transaction<'_>,
        id: &str,
    ) -> rusqlite::Result<Option<T>> {
        let found = self.find(on, id)?;
        self.delete(on, id)?;
        Ok(found)
    }

    pub(in crate::store) fn delete(&self, on: &Transaction<'_>, id: &str) -> rusqlite::Result<()> {
        let sql = format!("DELETE FROM {} WHERE {} = ?", self.table, self.id);
        on.prepare_cached(&sql)?.execute([id])?;
        Ok(())
    }

    pub(in crate::store) fn find<T: DeserializeOwned>(
        &self,
        on: &Connection,
        id: &str,
    ) -> rusqlite::Result<Option<T>> {
        let sql = format!("SELECT record FROM {} WHERE {} = ?", self.table, self.id);
        let mut query = on.prepare_cached(&sql)?;
        let found = query.query_row([id], |row| from_json(row, "record"));
        found.optional()
    }

    pub(in crate::store) fn all<T: DeserializeOwned>(
        &self,
        on: &Connection,
    ) -> rusqlite::Result<Vec<T>> {
        let sql = format!("SELECT record FROM {}", self.table);
        list(on, &sql, [], |row| from_json(row, "record"))
    }

    /// Returns all ids with their records as they are written.
    pub(in crate::store) fn all_texts(
        &self,
        on: &Connection,
    ) -> rusqlite::Result<Vec<(String, String)>> {
        let sql = format!("SELECT {} AS id, record FROM {}", self.id, self.table);
        list(on, &sql, [], |row| Ok((row.get("id")?, row.get("record")?)))
    }

    /// Returns the records that have this owner in them.
    pub(in crate::store) fn of_owner<T: DeserializeOwned>(
        &self,
        on: &Connection,
        owner: &str,
    ) -> rusqlite::Result<Vec<T>> {
        let sql = format!(
            "SELECT record FROM {} WHERE record ->> '$.owner' = ?",
            self.table
        );
        list(on, &sql, [owner], |row| from_json(row, "record"))
    }

    /// Returns the ids that begin with a session's and this word.
    pub(in crate::store) fn ids_in_session(
        &self,
        on: &Connection,
        session: &str,
        word: &str,
    ) -> rusqlite::Result<Vec<String>> {
        super::ids_in_session(on, self.table, session, word)
    }
}
