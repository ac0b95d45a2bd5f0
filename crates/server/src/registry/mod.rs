//! What the server knows of sessions, models and samplers.
//!
//! Everything has an owner; another owner's things do not exist for a caller.
//!
//! In memory is what is in use. Finished sessions and closed models leave it after a while
//! ([`Server::evict`](crate::Server)); a request for one of them reads it from the store again,
//! so the answer is the same. Lists put both together.

mod recent_requests;
pub(crate) mod records;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tinkrs_types::session::SessionStatus;
use tinkrs_types::{ModelId, RequestId, SamplingSessionId, SessionId};

use crate::auth::Owner;
use crate::error::ApiError;
use crate::operations::order::Order;
use crate::store::{Digest, Store};
use crate::worker::TrainJob;
use recent_requests::RecentRequests;
use records::{RunRecord, SamplerRecord, SessionRecord};

/// How many operations of a model are remembered, to recognise a repeated one.
const REMEMBERED_OPERATIONS: usize = 16_384;
/// How many sample requests of a sampler are remembered.
const REMEMBERED_SAMPLES: usize = 65_536;

/// Everything that has an id, except for results and checkpoints.
#[derive(Debug)]
pub(crate) struct Registry {
    store: Arc<Store>,
    pub(crate) sessions: HashMap<SessionId, Session>,
    pub(crate) runs: HashMap<ModelId, Run>,
    pub(crate) samplers: HashMap<SamplingSessionId, Sampler>,
}

/// A request that was promised a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promised {
    pub(crate) id: RequestId,
    pub(crate) digest: Digest,
}

/// One client's work.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) record: SessionRecord,
    /// When its client was last heard of.
    pub(crate) seen: Instant,
    /// Whether that was in the time of this process.
    pub(crate) was_heard: bool,
    /// The requests that uploaded losses, by their sequence ids.
    pub(crate) losses: HashMap<u64, Promised>,
}

impl Session {
    pub(crate) fn new(record: SessionRecord) -> Self {
        Self {
            record,
            seen: Instant::now(),
            was_heard: false,
            losses: HashMap::new(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.record.status == SessionStatus::Active
    }
}

/// A model in training.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) record: RunRecord,
    pub(crate) last_request: Timestamp,
    pub(crate) order: Order<TrainJob>,
    /// Since when operations wait for one that has not come, and no other has come either.
    pub(crate) gap_since: Option<Instant>,
    pub(crate) requests: RecentRequests<i64, Promised>,
    /// The highest sequence id that a request has taken.
    highest: i64,
    /// Why this server cannot go on with it, if another one could.
    pub(crate) refusal: Option<String>,
}

impl Run {
    pub(crate) fn new(record: RunRecord, next: i64) -> Self {
        Self {
            last_request: in_milliseconds(record.created_at),
            record,
            order: Order::new(next),
            gap_since: None,
            requests: RecentRequests::new(REMEMBERED_OPERATIONS),
            highest: next - 1,
            refusal: None,
        }
    }

    /// Returns the first sequence id after all that have been taken.
    pub(crate) fn end(&self) -> i64 {
        self.order.end().max(self.highest.saturating_add(1))
    }

    /// Returns whether nothing can happen to it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.record.closed.is_some() && !self.order.has_gap()
    }

    /// Notes that a request has taken a sequence id.
    pub(crate) fn promise(&mut self, seq_id: i64, promised: Promised) {
        self.highest = self.highest.max(seq_id);
        self.requests.insert(seq_id, promised);
    }

    /// Takes an operation, or the news that there is nothing to run under its sequence id, and returns
    /// what may run now, in order.
    pub(crate) fn insert(&mut self, seq_id: i64, job: Option<TrainJob>) -> Vec<TrainJob> {
        let ready = self.order.insert(seq_id, job);
        // Whatever comes shows that the client is still at it: the chunks of one large pass may be
        // minutes on their way, and the first of them goes last.
        self.gap_since = self.order.has_gap().then(Instant::now);
        ready
    }
}

/// A sampling session.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub(crate) record: SamplerRecord,
    pub(crate) requests: RecentRequests<u64, Promised>,
    /// When it was last asked for.
    pub(crate) last_used: Instant,
}

impl Sampler {
    pub(crate) fn new(record: SamplerRecord) -> Self {
        Self {
            record,
            requests: RecentRequests::new(REMEMBERED_SAMPLES),
            last_used: Instant::now(),
        }
    }
}

/// Returns a time as the store keeps it.
pub(crate) fn in_milliseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).unwrap_or(time)
}

impl Registry {
    /// Counts the sessions of an owner that are open.
    pub(crate) fn open_sessions_of(&self, owner: Owner) -> usize {
        let sessions = self.sessions.values();
        let open = sessions.filter(|session| session.record.owner == owner && session.is_open());
        open.count()
    }

    /// Counts the models of an owner that are open.
    pub(crate) fn open_models_of(&self, owner: Owner) -> usize {
        let runs = self.runs.values().map(|run| &run.record);
        let open = runs.filter(|run| run.owner == owner && run.closed.is_none());
        open.count()
    }

    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            sessions: HashMap::new(),
            runs: HashMap::new(),
            samplers: HashMap::new(),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Finds a run, in memory or not, without taking it into memory.
    pub(crate) fn find_stored_run(
        &self,
        owner: Owner,
        id: &ModelId,
    ) -> Result<Option<RunRecord>, ApiError> {
        let found = match self.runs.get(id) {
            Some(run) => Some(run.record.clone()),
            None => self.store.run(id)?.map(|(stored, _)| stored.record),
        };
        Ok(found.filter(|record| record.owner == owner))
    }

    /// Takes a time out of all waiting in which the server itself did not run: whoever called then was
    /// not heard.
    pub(crate) fn forgive(&mut self, pause: Duration) {
        let later = |time: &mut Instant| *time = (*time + pause).min(Instant::now());
        let sessions = self.sessions.values_mut();
        sessions.for_each(|session| later(&mut session.seen));
        let gaps = self.runs.values_mut();
        gaps.filter_map(|run| run.gap_since.as_mut())
            .for_each(later);
    }

    /// Whether there is or was such a session, of any owner.
    pub(crate) fn has_session(&mut self, id: &SessionId) -> Result<bool, ApiError> {
        self.recall_session(id)?;
        Ok(self.sessions.contains_key(id))
    }

    fn recall_session(&mut self, id: &SessionId) -> Result<(), ApiError> {
        if !self.sessions.contains_key(id)
            && let Some(record) = self.store.session(id)?
        {
            self.sessions.insert(id.clone(), Session::new(record));
        }
        Ok(())
    }

    fn recall_run(&mut self, id: &ModelId) -> Result<(), ApiError> {
        if self.runs.contains_key(id) {
            return Ok(());
        }
        let Some((stored, requests)) = self.store.run(id)? else {
            return Ok(());
        };
        let mut run = Run::new(stored.record, stored.next);
        run.last_request = stored.last_request;
        for (seq_id, promised) in requests {
            run.promise(seq_id, promised);
        }
        self.runs.insert(id.clone(), run);
        Ok(())
    }

    fn recall_sampler(&mut self, id: &SamplingSessionId) -> Result<(), ApiError> {
        if !self.samplers.contains_key(id)
            && let Some(record) = self.store.sampler(id)?
        {
            // With its session: that is what it leaves with.
            self.recall_session(&record.session)?;
            self.samplers.insert(id.clone(), Sampler::new(record));
        }
        Ok(())
    }

    /// Finds a session, finished or not.
    pub(crate) fn session(
        &mut self,
        owner: Owner,
        id: &SessionId,
    ) -> Result<&mut Session, ApiError> {
        self.recall_session(id)?;
        let session = self.sessions.get_mut(id);
        session
            .filter(|session| session.record.owner == owner)
            .ok_or_else(|| ApiError::not_found(format!("there is no session `{id}`")))
    }

    /// Finds a session in which things can still be done, and notes that its client is there.
    pub(crate) fn open_session(
        &mut self,
        owner: Owner,
        id: &SessionId,
    ) -> Result<&mut Session, ApiError> {
        let session = self.session(owner, id)?;
        if !session.is_open() {
            return Err(ApiError::bad_request(format!("session `{id}` is finished")));
        }
        session.seen = Instant::now();
        session.was_heard = true;
        Ok(session)
    }

    /// Finds a model, if there is one.
    pub(crate) fn find_run(
        &mut self,
        owner: Owner,
        id: &ModelId,
    ) -> Result<Option<&mut Run>, ApiError> {
        self.recall_run(id)?;
        let run = self.runs.get_mut(id);
        Ok(run.filter(|run| run.record.owner == owner))
    }

    /// Finds a model.
    pub(crate) fn run(&mut self, owner: Owner, id: &ModelId) -> Result<&mut Run, ApiError> {
        self.find_run(owner, id)?
            .ok_or_else(|| ApiError::not_found(format!("there is no model `{id}`")))
    }

    /// Finds a model that can be trained.
    pub(crate) fn open_run(&mut self, owner: Owner, id: &ModelId) -> Result<&mut Run, ApiError> {
        let session = self.run(owner, id)?.record.session.clone();
        self.open_session(owner, &session)?;
        let run = self.run(owner, id)?;
        match run.record.closed.as_ref().or(run.refusal.as_ref()) {
            None => Ok(run),
            Some(why) => Err(ApiError::bad_request(format!(
                "model `{id}` cannot be trained: {why}"
            ))),
        }
    }

    /// Finds a sampling session, if there is one.
    pub(crate) fn find_sampler(
        &mut self,
        owner: Owner,
        id: &SamplingSessionId,
    ) -> Result<Option<&mut Sampler>, ApiError> {
        self.recall_sampler(id)?;
        let sampler = self.samplers.get_mut(id);
        Ok(sampler.filter(|sampler| sampler.record.owner == owner))
    }

    /// Finds a sampling session.
    pub(crate) fn sampler(
        &mut self,
        owner: Owner,
        id: &SamplingSessionId,
    ) -> Result<&mut Sampler, ApiError> {
        if self.find_sampler(owner, id)?.is_none() {
            return Err(self.missing_sampler(owner, id));
        }
        self.find_sampler(owner, id)?
            .ok_or_else(|| ApiError::not_found(format!("there is no sampling session `{id}`")))
    }

    /// Tells a sampling session that was never there from one whose weights are not kept any longer.
    fn missing_sampler(&mut self, owner: Owner, id: &SamplingSessionId) -> ApiError {
        let parse = |id: &SamplingSessionId| {
            let (session, number) = id.as_str().rsplit_once(":sample:")?;
            Some((SessionId::new(session), number.parse::<u64>().ok()?))
        };
        let is_past = parse(id).is_some_and(|(session, number)| {
            // The newest weights of a run stay, and clients count up.
            let mut newer = self.samplers.values().filter(|sampler| {
                let record = &sampler.record;
                record.session == session && record.owner == owner && record.of_run.is_some()
            });
            newer.any(|sampler| parse(&sampler.record.id).is_some_and(|(_, n)| n > number))
        });
        if !is_past {
            return ApiError::not_found(format!("there is no sampling session `{id}`"));
        }
        ApiError::not_found(format!(
            "there is no sampling session `{id}` any longer: weights without a name go when newer ones of \
             their model are there and nobody has sampled from them for a while (`keep_unnamed` and \
             `unnamed_bytes` of the server); save them under a name to keep them"
        ))
    }

    /// Finds a sampling session whose session is not finished.
    pub(crate) fn open_sampler(
        &mut self,
        owner: Owner,
        id: &SamplingSessionId,
    ) -> Result<&mut Sampler, ApiError> {
        let session = self.sampler(owner, id)?.record.session.clone();
        self.open_session(owner, &session)?;
        let sampler = self.sampler(owner, id)?;
        sampler.last_used = Instant::now();
        Ok(sampler)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        Run::new(RunRecord::example(), 1)
    }

    fn long_ago() -> Instant {
        Instant::now() - Duration::from_secs(50)
    }

    #[test]
    fn a_gap_is_as_old_as_the_last_that_came() {
        let mut run = run();
        run.insert(3, None);
        run.gap_since = Some(long_ago());
        run.insert(2, None);
        assert!(run.gap_since.unwrap().elapsed() < Duration::from_secs(50));
        run.insert(1, None);
        assert_eq!(run.gap_since, None);
    }

    #[test]
    fn nobody_is_blamed_for_the_time_in_which_the_server_was_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let mut registry = Registry::new(Arc::new(store));
        let id = SessionId::new("s");
        let record = SessionRecord::holding(id.clone(), Owner::of_key(b"me"), "test".to_owned());
        let (mut session, mut waiting) = (Session::new(record), run());
        session.seen = long_ago();
        waiting.gap_since = Some(long_ago());
        let model = waiting.record.id.clone();
        registry.sessions.insert(id.clone(), session);
        registry.runs.insert(model.clone(), waiting);

        registry.forgive(Duration::from_secs(40));
        let times = [
            registry.sessions[&id].seen,
            registry.runs[&model].gap_since.unwrap(),
        ];
        for time in times {
            let waited = time.elapsed().as_secs();
            assert!((10..40).contains(&waited), "{waited}");
        }
        // Never into the future.
        registry.forgive(Duration::from_secs(4_000));
        assert!(registry.sessions[&id].seen <= Instant::now());
    }

    #[test]
    fn what_cannot_be_read_is_not_called_missing() {
        let root = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(root.path()).unwrap();
        let mut registry = Registry::new(Arc::new(store));
        let owner = Owner::of_key(b"me");
        let is_unavailable = |registry: &mut Registry| {
            [
                registry.session(owner, &"s".into()).err(),
                registry.run(owner, &"s:train:0".into()).err(),
                registry.sampler(owner, &"s:sample:0".into()).err(),
            ]
            .map(|refusal| refusal.expect("nothing is there").is_unavailable())
        };
        assert_eq!(is_unavailable(&mut registry), [false; 3]);
        let database = rusqlite::Connection::open(root.path().join("tinkrs.db")).unwrap();
        let damage = "DROP TABLE sessions; DROP TABLE runs; DROP TABLE samplers";
        database.execute_batch(damage).unwrap();
        assert_eq!(is_unavailable(&mut registry), [true; 3]);
    }
}
