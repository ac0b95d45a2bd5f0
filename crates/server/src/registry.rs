//! What the server knows of sessions, models and samplers.
//!
//! Everything has an owner; whoever asks for another owner's things is told that they do not exist.

use std::collections::HashMap;
use std::time::Instant;

use jiff::Timestamp;
use tinkrs_types::{ModelId, RequestId, SamplingSessionId, SessionId, SessionStatus};

use crate::auth::Owner;
use crate::error::Refusal;
use crate::order::Order;
use crate::recent::Recent;
use crate::record::{RunRecord, SamplerRecord, SessionRecord};
use crate::store::Digest;
use crate::worker::TrainJob;

/// How many operations of a model are remembered, to recognise a repeated one.
const REMEMBERED_OPERATIONS: usize = 16_384;
/// How many sample requests of a sampler are remembered.
const REMEMBERED_SAMPLES: usize = 65_536;

/// Everything that has an id, except for results and checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Registry {
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
    /// The requests that uploaded losses, by their numbers.
    pub(crate) losses: HashMap<u64, Promised>,
}

impl Session {
    pub(crate) fn new(record: SessionRecord) -> Self {
        Self {
            record,
            seen: Instant::now(),
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
    /// Since when operations wait for one that has not come.
    pub(crate) gap_since: Option<Instant>,
    pub(crate) requests: Recent<i64, Promised>,
    /// The highest number that a request has taken.
    highest: i64,
}

impl Run {
    pub(crate) fn new(record: RunRecord, next: i64) -> Self {
        Self {
            last_request: record.created_at,
            record,
            order: Order::new(next),
            gap_since: None,
            requests: Recent::new(REMEMBERED_OPERATIONS),
            highest: next - 1,
        }
    }

    /// Returns the first number after all that have been taken.
    pub(crate) fn end(&self) -> i64 {
        self.order.end().max(self.highest.saturating_add(1))
    }

    /// Notes that a request has taken a number.
    pub(crate) fn promise(&mut self, number: i64, promised: Promised) {
        self.highest = self.highest.max(number);
        self.requests.insert(number, promised);
    }

    /// Takes an operation, or the news that there is nothing to run under its number, and returns
    /// what may run now, in order.
    pub(crate) fn insert(&mut self, number: i64, job: Option<TrainJob>) -> Vec<TrainJob> {
        let before = self.order.next();
        let ready = self.order.insert(number, job);
        if !self.order.has_gap() {
            self.gap_since = None;
        } else if self.gap_since.is_none() || self.order.next() != before {
            self.gap_since = Some(Instant::now());
        }
        ready
    }
}

/// A sampling session.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub(crate) record: SamplerRecord,
    pub(crate) requests: Recent<u64, Promised>,
}

impl Sampler {
    pub(crate) fn new(record: SamplerRecord) -> Self {
        Self {
            record,
            requests: Recent::new(REMEMBERED_SAMPLES),
        }
    }
}

impl Registry {
    /// Finds a session, finished or not.
    pub(crate) fn session(
        &mut self,
        owner: Owner,
        id: &SessionId,
    ) -> Result<&mut Session, Refusal> {
        let session = self.sessions.get_mut(id);
        session
            .filter(|session| session.record.owner == owner)
            .ok_or_else(|| Refusal::not_found(format!("there is no session `{id}`")))
    }

    /// Finds a session in which things can still be done, and notes that its client is there.
    pub(crate) fn open_session(
        &mut self,
        owner: Owner,
        id: &SessionId,
    ) -> Result<&mut Session, Refusal> {
        let session = self.session(owner, id)?;
        if !session.is_open() {
            return Err(Refusal::bad_request(format!("session `{id}` is finished")));
        }
        session.seen = Instant::now();
        Ok(session)
    }

    /// Finds a model.
    pub(crate) fn run(&mut self, owner: Owner, id: &ModelId) -> Result<&mut Run, Refusal> {
        let run = self.runs.get_mut(id);
        run.filter(|run| run.record.owner == owner)
            .ok_or_else(|| Refusal::not_found(format!("there is no model `{id}`")))
    }

    /// Finds a model that can be trained.
    pub(crate) fn open_run(&mut self, owner: Owner, id: &ModelId) -> Result<&mut Run, Refusal> {
        let session = self.run(owner, id)?.record.session.clone();
        self.open_session(owner, &session)?;
        let run = self.run(owner, id)?;
        match &run.record.closed {
            None => Ok(run),
            Some(why) => Err(Refusal::bad_request(format!(
                "model `{id}` cannot be trained: {why}"
            ))),
        }
    }

    /// Finds a sampling session.
    pub(crate) fn sampler(
        &mut self,
        owner: Owner,
        id: &SamplingSessionId,
    ) -> Result<&mut Sampler, Refusal> {
        let sampler = self.samplers.get_mut(id);
        sampler
            .filter(|sampler| sampler.record.owner == owner)
            .ok_or_else(|| Refusal::not_found(format!("there is no sampling session `{id}`")))
    }

    /// Finds a sampling session whose session is not finished.
    pub(crate) fn open_sampler(
        &mut self,
        owner: Owner,
        id: &SamplingSessionId,
    ) -> Result<&mut Sampler, Refusal> {
        let session = self.sampler(owner, id)?.record.session.clone();
        self.open_session(owner, &session)?;
        self.sampler(owner, id)
    }
}
