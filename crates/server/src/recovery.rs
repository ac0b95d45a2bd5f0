//! Taking up the work that an earlier server left in the data folder.
//!
//! A run goes on from its snapshot. The operations after it are repeated, in order: those that have
//! ended for what they did to the run, the others also for their results. A backend that repeats
//! exactly computes the same bits for the same operations, so the interruption does not show. With any
//! other one nothing is repeated: its runs have a snapshot of each operation that has ended.
//!
//! Operations are repeated only by what computes them to the same bits (`numerics.rs`). With the model's weights in another
//! format, or other weights under its name, a run that would have to repeat some waits in the data folder, and requests
//! for it are refused.
//!
//! A snapshot that is damaged is not used. The run then goes on from the one before, or from its creation,
//! if the journal reaches back so far; otherwise it is closed, and the rest goes on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use tinkrs_types::session::SessionStatus;
use tinkrs_types::{ModelId, SamplingSessionId, SessionId};

use crate::Server;
use crate::api::sampling::SampleSource;
use crate::auth::Owner;
use crate::body::read_json;
use crate::error::{ApiError, chain};
use crate::operations::sample::{SAMPLE, WaitingSample};
use crate::operations::{OfModel, OperationKind};
use crate::registry::{Promised, Run, Sampler, Session};
use crate::results::completion_feed::CompletionFeed;
use crate::results::{OperationResult, Responder, ResultFormat};
use crate::state::Base;
use crate::store::manifest::{self, Damage};
use crate::store::{Change, Fallback, Loaded, LoadedRequest, LoadedRun};
use crate::studio::waits::WaitClock;
use crate::waiting;
use crate::worker::{Command, Operation, TrainJob};

/// A run that was put back, whose requests are taken up one after the other.
struct RecoveredRun {
    id: ModelId,
    owner: Owner,
    session: SessionId,
    /// What computes it, or why nothing does.
    base: Result<Arc<Base>, String>,
    /// The sequence number after which operations that have ended are repeated; `None` repeats none.
    repeats_after: Option<i64>,
    /// Why the run was given up while its operations were taken up.
    given_up: Option<String>,
}

impl Server {
    /// Takes up the runs and requests that an earlier server left.
    pub(crate) fn recover(&self, loaded: Loaded) {
        let half_freed = half_freed(&loaded);
        let known = loaded.requests.iter().map(|request| &request.id);
        self.shared().under_way.keep_only(&known.collect());
        let mut registry = self.registry();
        for record in loaded.sessions {
            registry
                .sessions
                .insert(record.id.clone(), Session::new(record));
        }
        for record in loaded.samplers {
            registry
                .samplers
                .insert(record.id.clone(), Sampler::new(record));
        }
        drop(registry);
        for (id, record) in loaded.losses {
            self.recover_loss(id, &record);
        }

        let mut by_run = HashMap::<ModelId, Vec<LoadedRequest>>::new();
        let runs: HashMap<_, _> = loaded
            .runs
            .into_iter()
            .map(|run| (run.record.id.clone(), run))
            .collect();
        let mut others = Vec::new();
        for request in loaded.requests {
            let subject = ModelId::new(request.subject.as_str());
            if runs.contains_key(&subject) {
                by_run.entry(subject).or_default().push(request);
            } else {
                others.push(request);
            }
        }
        for (id, run) in runs {
            self.recover_run(run, by_run.remove(&id).unwrap_or_default());
        }
        for request in others {
            self.recover_request(request);
        }
        for (session, owner) in half_freed {
            self.free(&session, owner);
        }
    }

    /// Puts a run back and takes up its requests.
    fn recover_run(&self, loaded: LoadedRun, mut requests: Vec<LoadedRequest>) {
        let next = loaded.next;
        let mut run = self.recover_state(loaded, &requests);
        requests.sort_by_key(|request| request.seq_id);
        for request in requests {
            let seq_id = request.seq_id.unwrap_or_default();
            let responder = self.promise_again(&request, None);
            if let Some(known) = self.registry().runs.get_mut(&run.id) {
                let (id, digest) = (request.id.clone(), request.digest);
                known.promise(seq_id, Promised { id, digest });
            }
            if let (Err(missing), Some(responder)) = (&run.base, &responder) {
                // It stays in the journal, for a server that has the model.
                responder.waits(Some(missing.clone()));
                continue;
            }
            let job = self.job_again(&mut run, &request, responder);
            self.queue_again(&run.id, next, seq_id, job);
        }
    }

    /// Puts a run back as it was at its last usable snapshot.
    fn recover_state(&self, loaded: LoadedRun, requests: &[LoadedRequest]) -> RecoveredRun {
        let LoadedRun {
            record,
            last_request,
            next,
            snapshot,
            fallback,
        } = loaded;
        let (id, owner) = (record.id.clone(), record.owner);
        let session = record.session.clone();
        let base = self.bases().get(&record.base_model).cloned();
        let mut is_open = record.closed.is_none();
        let mut run = Run::new(record, next);
        run.last_request = last_request;
        self.registry().runs.insert(id.clone(), run);
        let snapshot = match snapshot.filter(|_| is_open) {
            None => None,
            Some(seq_id) => match self.usable_snapshot(&id, seq_id, fallback) {
                Ok(usable) => usable,
                Err(damage) => {
                    let why = format!("it could not be restored: {}", chain(&damage));
                    self.give_up_run(&id, &why);
                    is_open = false;
                    None
                }
            },
        };

        let repeats_exactly = base
            .as_ref()
            .is_none_or(|base| base.description.repeats_exactly);
        if is_open && !repeats_exactly {
            // The folder was used with another backend: there would have been a snapshot.
            let changed =
                |request: &LoadedRequest| self.changed_since(request, snapshot, owner, &id);
            if requests.iter().any(changed) {
                self.give_up_run(&id, "its operations cannot be repeated exactly");
                is_open = false;
            }
        }
        let repeats = is_open && repeats_exactly;
        let base = match base {
            None => Err("the server was restarted without its model".to_owned()),
            Some(base) if repeats => {
                let kept = self.keep_numerics(&id, &base, snapshot, requests);
                kept.map(|()| base)
            }
            Some(base) => Ok(base),
        };
        if let (Ok(base), Some(seq_id), true) = (&base, snapshot, is_open) {
            let model_id = id.clone();
            base.send(Command::Restore {
                model_id,
                owner,
                seq_id,
            });
        }
        RecoveredRun {
            id,
            owner,
            session,
            base,
            repeats_after: repeats.then_some(snapshot.unwrap_or(i64::MIN)),
            given_up: None,
        }
    }

    /// Reads an operation of a run again, if it is to be executed. One that has ended is repeated only for what it
    /// did to the run.
    fn job_again(
        &self,
        run: &mut RecoveredRun,
        request: &LoadedRequest,
        responder: Option<Responder>,
    ) -> Option<TrainJob> {
        let seq_id = request.seq_id.unwrap_or_default();
        let succeeded = !matches!(request.outcome, Some((ResultFormat::Failed, _)));
        let ended = responder.is_none();
        let repeats = succeeded && run.repeats_after.is_some_and(|seen| seq_id > seen);
        let poison = self.shared().under_way.poison(&request.id, ended);
        if run.base.is_err() || (ended && (!repeats || run.given_up.is_some())) {
            return None;
        }
        let operation = if run.given_up.is_some() || poison.is_some() {
            let why = poison.or_else(|| run.given_up.clone()).unwrap_or_default();
            tracing::error!(request.id = %request.id, why, "an operation is not tried again");
            if ended {
                let why = format!("it could not be restored: {why}");
                self.give_up_run(&run.id, &why);
                run.given_up = Some(why);
            }
            Err(ApiError::bad_request(why))
        } else {
            match OperationKind::from_name(&request.kind) {
                None => Err(ApiError::bad_request("an unknown kind of request")),
                Some(kind) => self.operation_of(request, kind, run.owner, &run.id),
            }
        };
        match operation {
            Ok(operation) if ended && !operation.changes_run() => None,
            Ok(operation) => Some(TrainJob {
                request: request.id.clone(),
                model_id: run.id.clone(),
                owner: run.owner,
                session: run.session.clone(),
                seq_id,
                operation,
                responder,
                place: None,
                memory: None,
                clock: WaitClock::after_pause(paused(request.accepted)),
                pending: self.shared().activity.enter(run.owner, &run.id),
            }),
            Err(refusal) => {
                if refusal.is_unavailable() {
                    self.give_up_run(&run.id, refusal.detail());
                }
                if let Some(responder) = responder {
                    responder.finish(OperationResult::user_error(refusal.detail()));
                }
                None
            }
        }
    }

    /// Finds the snapshot that a run goes on from; `None` is its creation.
    fn usable_snapshot(
        &self,
        id: &ModelId,
        seq_id: i64,
        fallback: Fallback,
    ) -> Result<Option<i64>, Damage> {
        let store = &self.shared().store;
        let verify = |seq_id| manifest::verify_snapshot(&store.files().snapshot(id, seq_id));
        let Err(damage) = verify(seq_id) else {
            return Ok(Some(seq_id));
        };
        let before = match fallback {
            Fallback::Nothing => return Err(damage),
            Fallback::Creation => None,
            Fallback::Snapshot(before) => {
                verify(before)?;
                Some(before)
            }
        };
        tracing::error!(
            model.id = %id,
            damage = %chain(&damage),
            from = before.map_or("its creation".to_owned(), |seq_id| format!("the snapshot of {seq_id}")),
            "a snapshot cannot be used; the operations since the one before are repeated"
        );
        store.note(Change::SnapshotLost { run: id.clone() });
        Ok(before)
    }

    /// Reads a journaled operation of a run again.
    fn operation_of(
        &self,
        request: &LoadedRequest,
        kind: &OperationKind,
        owner: Owner,
        model_id: &ModelId,
    ) -> Result<Operation, ApiError> {
        let room = self.shared().room(owner);
        let read = self
            .body_of(request)
            .and_then(|body| (kind.read)(&body, room));
        read.and_then(|read| {
            read.prepare(&mut OfModel {
                server: self,
                registry: &mut self.registry(),
                owner,
                model_id,
                digest: request.digest,
            })
        })
    }

    /// Returns whether a request that has ended has changed its run after the last snapshot.
    fn changed_since(
        &self,
        request: &LoadedRequest,
        snapshot: Option<i64>,
        owner: Owner,
        model_id: &ModelId,
    ) -> bool {
        match self.done_since(request, snapshot, owner, model_id) {
            None => false,
            Some(Ok(operation)) => operation.changes_run(),
            Some(Err(error)) => error.is_unavailable(),
        }
    }

    /// Reads a request that has ended well after the last snapshot.
    pub(crate) fn done_since(
        &self,
        request: &LoadedRequest,
        snapshot: Option<i64>,
        owner: Owner,
        model_id: &ModelId,
    ) -> Option<Result<Operation, ApiError>> {
        let seq_id = request.seq_id.unwrap_or_default();
        let succeeded = matches!(request.outcome, Some((kind, _)) if kind != ResultFormat::Failed);
        let is_later = snapshot.is_none_or(|seen| seq_id > seen);
        let kind = OperationKind::from_name(&request.kind);
        let kind = kind.filter(|_| succeeded && is_later)?;
        Some(self.operation_of(request, kind, owner, model_id))
    }

    /// Closes a run that cannot be brought back to where it was.
    fn give_up_run(&self, id: &ModelId, why: &str) {
        tracing::error!(model.id = %id, why, "lost a model");
        if let Some(run) = self.registry().runs.get_mut(id) {
            run.record.closed = Some(why.to_owned());
            run.record.corrupted = true;
            let change = Change::RunClosed(run.record.clone());
            self.shared().store.note(change);
        }
    }

    /// Sends an operation whose turn has been, and lets the others wait for theirs.
    fn queue_again(&self, id: &ModelId, next: i64, seq_id: i64, job: Option<TrainJob>) {
        let mut registry = self.registry();
        let Some(run) = registry.runs.get_mut(id) else {
            return;
        };
        let ready = if seq_id < next {
            job.into_iter().collect()
        } else {
            run.insert(seq_id, job)
        };
        let Some(base) = self.bases().get(&run.record.base_model) else {
            return;
        };
        for job in ready {
            base.send(Command::Train(job));
        }
    }

    /// Recovers a request that is not a run's.
    fn recover_request(&self, request: LoadedRequest) {
        let sampler = SamplingSessionId::new(request.subject.as_str());
        let seq_id = request.seq_id.map(i64::cast_unsigned);
        let feed = seq_id.map(|seq_id| CompletionFeed::of_request(&sampler, seq_id));
        let promised = Promised {
            id: request.id.clone(),
            digest: request.digest,
        };
        {
            let mut registry = self.registry();
            if let (Some(sampler), Some(seq_id)) = (registry.samplers.get_mut(&sampler), seq_id) {
                sampler.requests.insert(seq_id, promised);
            } else if let (Some(session), Some(seq_id)) = (
                registry.sessions.get_mut(&request.subject.as_str().into()),
                seq_id,
            ) {
                session.losses.insert(seq_id, promised);
            }
        }
        let Some(responder) = self.promise_again(&request, feed) else {
            return;
        };
        if request.kind != SAMPLE {
            responder.finish(OperationResult::server_error(
                "a request of an unexpected kind",
            ));
            return;
        }
        let sample = self.body_of(&request).and_then(|body| {
            let sample = read_json(&body)?;
            let (source, room) = (SampleSource::of(&sample), self.shared().room(request.owner));
            let sample = WaitingSample::new(sample, request.seed, request.digest, room)?;
            Ok((source, sample))
        });
        match sample {
            Ok(sample) => self.sample_again(request.owner, sample, responder),
            Err(refusal) => responder.finish(OperationResult::user_error(refusal.detail())),
        }
    }

    /// Makes room for a result again. Returns who has to bring it, if it is not there yet.
    fn promise_again(
        &self,
        request: &LoadedRequest,
        feed: Option<CompletionFeed>,
    ) -> Option<Responder> {
        let results = &self.shared().results;
        let (id, owner) = (request.id.clone(), request.owner);
        match request.outcome {
            None => Some(results.resume(id, owner, feed)),
            Some((kind, Some(size))) => {
                results.recall(id, owner, feed, (kind, size));
                None
            }
            // Polls are told that it is not kept any longer.
            Some((_, None)) => None,
        }
    }

    /// Reads the body of a request that has to be executed, or executed again.
    fn body_of(&self, request: &LoadedRequest) -> Result<Bytes, ApiError> {
        waiting::read_body(&self.shared().store, &request.id, &request.digest)
    }
}

/// Finds the finished sessions that still hold something: the earlier server ended in between.
fn half_freed(loaded: &Loaded) -> Vec<(SessionId, Owner)> {
    let open_runs = loaded.runs.iter().map(|run| &run.record);
    let open_runs = open_runs.filter(|run| run.closed.is_none());
    let samplers = loaded.samplers.iter();
    let samplers = samplers.filter(|sampler| sampler.own_folder().is_some());
    let holders = open_runs.map(|run| &run.session);
    let holders = holders.chain(samplers.map(|sampler| &sampler.session));
    let holders: HashSet<_> = holders.collect();
    let sessions = loaded.sessions.iter();
    let finished = sessions.filter(|session| session.status != SessionStatus::Active);
    finished
        .filter(|session| holders.contains(&session.id))
        .map(|session| (session.id.clone(), session.owner))
        .collect()
}

/// Returns for how many milliseconds a request has waited for a server.
fn paused(accepted: Timestamp) -> u64 {
    let since = Timestamp::now().as_millisecond() - accepted.as_millisecond();
    u64::try_from(since).unwrap_or(0)
}
