//! What the studio asks of the database.
//!
//! It has a connection of its own, which is opened when somebody first asks: a long curve keeps nobody else waiting.

use std::sync::MutexGuard;

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use tinkrs_types::{ModelId, RequestId};

use super::tables::metrics::{self, CurvePoint, Series};
use super::tables::spans::{self, RunSpan};
use super::tables::{list, runs};
use super::{LoadedRun, Store};
use crate::auth::Owner;
use crate::lock::lock;
use crate::results::ResultFormat;
use crate::studio::measure::Progress;

/// A request of a run that is in the journal.
#[derive(Clone, Debug)]
pub(crate) struct JournalEntry {
    pub(crate) id: RequestId,
    pub(crate) kind: String,
    pub(crate) seq_id: i64,
    pub(crate) accepted: i64,
    pub(crate) has_body: bool,
    pub(crate) outcome: Option<ResultFormat>,
    pub(crate) has_result: bool,
}

/// The database as it is at one moment, while something is asked of it.
pub(crate) struct Reading<'a>(MutexGuard<'a, Option<Connection>>);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Some(on) = self.0.as_ref() {
            // Nothing was written. A connection that cannot even end this is of no use any more.
            if on.execute_batch("COMMIT").is_err() {
                *self.0 = None;
            }
        }
    }
}

impl Store {
    /// Begins to read. It takes as long as whoever else reads for the studio, so not on a thread that serves requests.
    pub(crate) fn read_for_studio(&self) -> rusqlite::Result<Reading<'_>> {
        let mut reader = lock(&self.studio_reader);
        if reader.is_none() {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(self.files().database(), flags)?;
            connection.busy_timeout(std::time::Duration::from_secs(5))?;
            *reader = Some(connection);
        }
        let reading = Reading(reader);
        // One state for all questions, and one lock of the files.
        reading.on()?.execute_batch("BEGIN")?;
        Ok(reading)
    }
}

impl Reading<'_> {
    fn on(&self) -> rusqlite::Result<&Connection> {
        self.0.as_ref().ok_or(rusqlite::Error::InvalidQuery)
    }

    /// Lists an owner's runs that have a text in their id, name, base model, labels, tags or the checkpoint that they
    /// started from, and counts all of them: the run that has it as its id first, then the one used last.
    pub(crate) fn runs(
        &self,
        owner: Owner,
        text: &str,
        (offset, limit): (i64, i64),
    ) -> rusqlite::Result<(Vec<LoadedRun>, u64)> {
        let (on, owner) = (self.on()?, owner.to_string());
        let matches = "record ->> '$.owner' = ?1 AND (?2 = '' OR instr(lower(
                           id || ' ' || coalesce(record ->> '$.name', '') || ' ' || (record ->> '$.base_model')
                           || ' ' || coalesce(record -> '$.user_metadata', '')
                           || ' ' || coalesce(record ->> '$.started_from', '')
                           || ' ' || coalesce((SELECT s.record -> '$.tags' FROM sessions s
                                               WHERE s.id = runs.record ->> '$.session'), '')
                       ), lower(?2)) > 0)";
        let count = format!("SELECT count(*) FROM runs WHERE {matches}");
        let total: i64 = on
            .prepare_cached(&count)?
            .query_row((&owner, text), |row| row.get(0))?;
        let found = runs::page(on, matches, (&owner, text, limit, offset))?;
        Ok((found, total.cast_unsigned()))
    }

    /// Finds a run.
    pub(crate) fn run(&self, id: &ModelId) -> rusqlite::Result<Option<LoadedRun>> {
        runs::find(self.on()?, id)
    }

    /// Returns how far a run has come.
    pub(crate) fn progress(&self, run: &ModelId) -> rusqlite::Result<Progress> {
        metrics::progress(self.on()?, run.as_str())
    }

    /// Lists the series of a run.
    pub(crate) fn series(&self, run: &ModelId) -> rusqlite::Result<Vec<Series>> {
        metrics::series(self.on()?, run.as_str())
    }

    /// Returns the curve of a series.
    pub(crate) fn curve(
        &self,
        series: &Series,
        range: (i64, i64),
        most: i64,
    ) -> rusqlite::Result<Vec<CurvePoint>> {
        metrics::curve(self.on()?, series.id, range, most)
    }

    /// Returns the points of a run behind one step and up to another.
    pub(crate) fn points_between(
        &self,
        run: &ModelId,
        steps: (i64, i64),
        with_clients: bool,
        most: usize,
    ) -> rusqlite::Result<Vec<metrics::NewPoint>> {
        metrics::between(self.on()?, run.as_str(), steps, with_clients, most)
    }

    /// Lists operations of a run that have ended, the latest first.
    pub(crate) fn spans_before(
        &self,
        run: &ModelId,
        before: i64,
        most: usize,
    ) -> rusqlite::Result<Vec<RunSpan>> {
        spans::of_run_before(self.on()?, run.as_str(), before, most)
    }

    /// Lists operations of a run that have ended, behind one number and up to another, the earliest first.
    pub(crate) fn spans_between(
        &self,
        run: &ModelId,
        numbers: (i64, i64),
        most: usize,
    ) -> rusqlite::Result<Vec<RunSpan>> {
        spans::of_run_between(self.on()?, run.as_str(), numbers, most)
    }

    /// Returns the number of the newest span.
    pub(crate) fn newest_span(&self) -> rusqlite::Result<i64> {
        spans::newest(self.on()?)
    }

    /// Lists the runs of an owner that had spans after this one.
    pub(crate) fn runs_since(&self, owner: Owner, since: i64) -> rusqlite::Result<Vec<ModelId>> {
        let sql = "SELECT DISTINCT spans.subject FROM spans JOIN runs ON runs.id = spans.subject
                   WHERE spans.number > ?1 AND runs.record ->> '$.owner' = ?2 LIMIT 200";
        list(self.on()?, sql, (since, owner.to_string()), |row| {
            row.get::<_, String>(0).map(ModelId::new)
        })
    }

    /// Lists the requests of a run that the journal has, the latest first.
    pub(crate) fn journal(
        &self,
        run: &ModelId,
        most: usize,
    ) -> rusqlite::Result<Vec<JournalEntry>> {
        let sql =
            "SELECT id, kind, seq_id, accepted, has_body, outcome, size IS NOT NULL AS has_result
                   FROM requests WHERE subject = ?1 AND seq_id IS NOT NULL
                   ORDER BY seq_id DESC LIMIT ?2";
        list(self.on()?, sql, (run.as_str(), most as i64), |row| {
            let outcome: Option<String> = row.get("outcome")?;
            Ok(JournalEntry {
                id: RequestId::new(row.get::<_, String>("id")?),
                kind: row.get("kind")?,
                seq_id: row.get("seq_id")?,
                accepted: row.get("accepted")?,
                has_body: row.get("has_body")?,
                outcome: outcome.as_deref().and_then(ResultFormat::from_name),
                has_result: row.get("has_result")?,
            })
        })
    }

    /// Finds the session of a run.
    pub(crate) fn session_of(
        &self,
        session: &str,
    ) -> rusqlite::Result<Option<crate::registry::records::SessionRecord>> {
        super::tables::records::SESSIONS.find(self.on()?, session)
    }

    /// Returns how large the database is, in bytes.
    pub(crate) fn bytes(&self) -> rusqlite::Result<u64> {
        let sql = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()";
        let bytes: Option<i64> = self
            .on()?
            .prepare_cached(sql)?
            .query_row([], |row| row.get(0))
            .optional()?;
        Ok(bytes.unwrap_or_default().cast_unsigned())
    }
}
