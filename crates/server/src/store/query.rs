//! What is asked of the database while the server runs.

use std::{fs, io};

use jiff::Timestamp;
use serde_json::{Map, Value};
use tinkrs_types::{ModelId, RequestId, RunName, SamplingSessionId, SessionId, TinkerPath};

use super::tables::audit::{self, AuditRow};
use super::tables::payloads::{self, Payloads};
use super::tables::runs::{self, LoadedRun};
use super::tables::usage::{self, UsageRow};
use super::tables::{records, requests, spans};
use super::{AuditEntry, Store};
use crate::auth::Owner;
use crate::lock::lock;
use crate::registry::Promised;
use crate::registry::records::{SamplerRecord, SessionRecord};
use crate::trace::Span;

/// A run that is not in memory, with the requests that are still known, by their sequence ids.
pub(crate) type StoredRun = (LoadedRun, Vec<(i64, Promised)>);

impl Store {
    /// Finds a session.
    pub(crate) fn session(&self, id: &SessionId) -> rusqlite::Result<Option<SessionRecord>> {
        records::SESSIONS.find(&lock(&self.reader), id.as_str())
    }

    /// Finds a sampling session.
    pub(crate) fn sampler(
        &self,
        id: &SamplingSessionId,
    ) -> rusqlite::Result<Option<SamplerRecord>> {
        records::SAMPLERS.find(&lock(&self.reader), id.as_str())
    }

    /// Finds a run, with the requests that are still known.
    pub(crate) fn run(&self, id: &ModelId) -> rusqlite::Result<Option<StoredRun>> {
        let reader = lock(&self.reader);
        let Some(found) = runs::find(&reader, id)? else {
            return Ok(None);
        };
        Ok(Some((found, requests::promised(&reader, id)?)))
    }

    /// Reads the body of a request.
    pub(crate) fn body(&self, id: &RequestId) -> io::Result<Vec<u8>> {
        self.payload(&payloads::BODIES, id)
    }

    /// Reads the result of a request.
    pub(crate) fn result(&self, id: &RequestId) -> io::Result<Vec<u8>> {
        self.payload(&payloads::RESULTS, id)
    }

    fn payload(&self, payloads: &Payloads, id: &RequestId) -> io::Result<Vec<u8>> {
        let found = payloads.find(&lock(&self.reader), id);
        match found.map_err(io::Error::other)? {
            Some(bytes) => Ok(bytes),
            None => fs::read(payloads.file(&self.files, id)),
        }
    }

    /// Lists an owner's sessions.
    pub(crate) fn sessions_of(&self, owner: Owner) -> rusqlite::Result<Vec<SessionRecord>> {
        records::SESSIONS.of_owner(&lock(&self.reader), &owner.to_string())
    }

    /// Lists an owner's runs.
    pub(crate) fn runs_of(&self, owner: Owner) -> rusqlite::Result<Vec<LoadedRun>> {
        runs::of_owner(&lock(&self.reader), &owner.to_string())
    }

    /// Finds an owner's run by the name in its record.
    pub(crate) fn run_named(
        &self,
        owner: Owner,
        name: &RunName,
    ) -> rusqlite::Result<Option<ModelId>> {
        let found = runs::named(&lock(&self.reader), &owner.to_string(), name.as_str())?;
        Ok(found.map(|run| run.record.id))
    }

    /// Lists an owner's runs that an earlier version stored without a name.
    pub(crate) fn unnamed_runs_of(&self, owner: Owner) -> rusqlite::Result<Vec<ModelId>> {
        let ids = runs::unnamed(&lock(&self.reader), &owner.to_string())?;
        Ok(ids.into_iter().map(ModelId::new).collect())
    }

    /// Lists an owner's runs with this label `resume_id`.
    pub(crate) fn runs_resuming(
        &self,
        owner: Owner,
        resume_id: &str,
    ) -> rusqlite::Result<Vec<ModelId>> {
        let ids = runs::resuming(&lock(&self.reader), &owner.to_string(), resume_id)?;
        Ok(ids.into_iter().map(ModelId::new).collect())
    }

    /// Lists the runs and the sampling sessions of a session: their ids begin with the session's.
    pub(crate) fn members_of(
        &self,
        session: &SessionId,
    ) -> rusqlite::Result<(Vec<ModelId>, Vec<SamplingSessionId>)> {
        let reader = lock(&self.reader);
        let runs = runs::ids_in_session(&reader, session.as_str())?;
        let samplers = records::SAMPLERS.ids_in_session(&reader, session.as_str(), "sample")?;
        let runs = runs.into_iter().map(ModelId::new).collect();
        let samplers = samplers.into_iter().map(SamplingSessionId::new).collect();
        Ok((runs, samplers))
    }

    /// Lists what was done for a session, by the time of acceptance.
    pub(crate) fn spans(&self, session: &SessionId) -> rusqlite::Result<Vec<Span>> {
        spans::of_session(&lock(&self.reader), session)
    }

    /// Lists what an owner used in these hours, by hour and then from much to little.
    pub(crate) fn usage(
        &self,
        owner: Owner,
        hours: std::ops::Range<i64>,
    ) -> rusqlite::Result<Vec<UsageRow>> {
        usage::of_owner(&lock(&self.reader), owner, hours)
    }

    /// Lists what an owner did between two times.
    pub(crate) fn audit(
        &self,
        owner: Owner,
        times: std::ops::Range<Timestamp>,
    ) -> rusqlite::Result<Vec<AuditRow>> {
        audit::of_owner(&lock(&self.reader), owner, times)
    }

    /// Adds to the audit log what an owner did with a checkpoint.
    pub(crate) fn remember_checkpoint(&self, owner: Owner, event: &'static str, path: &TinkerPath) {
        let details = [
            ("tinker_path".to_owned(), path.to_string().into()),
            ("model_id".to_owned(), path.run().to_string().into()),
        ];
        self.remember(owner, event, details.into_iter().collect());
    }

    /// Adds to the audit log what an owner did. An entry that cannot be written is lost: reading goes on
    /// while the disk is full, and may go on for long.
    pub(crate) fn remember(&self, owner: Owner, event: &'static str, details: Map<String, Value>) {
        let entry = AuditEntry {
            time: Timestamp::now(),
            owner,
            event,
            details,
        };
        self.send(super::Change::Audit(entry), move |written| {
            if let Err(error) = written {
                tracing::error!(%error, event, "lost a line of the audit log");
            }
        });
    }
}
