//! The queue of training operations: in order, exactly once, durable and bounded.
//!
//! A request that names its model and its sequence id is always promised a result, even if something
//! else is wrong with it: its future then fails at once. A refusal would leave a gap in the sequence,
//! and the official client never recovers when one of several chunks is refused.
//!
//! Its way is that of every request ([`accept`](crate::accept)): the sequence id is claimed, the request
//! goes into the journal, and then into the run's order.
//!
//! Every operation holds one of its owner's [places](crate::places) from here until it ends; without one
//! left, the request is answered by 429. One operation needs none: the one that others wait for. Refusing it
//! would keep the queue full. There is at most one of these for each model.

use bytes::Bytes;
use tinkrs_types::protocol::Promise;
use tinkrs_types::{ModelId, RequestId};
use tinkrs_wire::DecodeError;
use tinkrs_wire::op::forward_backward::{Address, ForwardBackwardRequest};

use crate::Server;
use crate::accept::{AcceptOnce, Claimed, Submission};
use crate::auth::Owner;
use crate::body::json_bytes;
use crate::error::ApiError;
use crate::intake::Upload;
use crate::operations::forward_backward::FORWARD_BACKWARD;
use crate::operations::order::Place;
use crate::operations::{OfModel, OperationKind, Prepare};
use crate::places::QueuePlace;
use crate::registry::Registry;
use crate::results::{OperationResult, Responder};
use crate::store::Change;
use crate::studio::waits::WaitClock;
use crate::waiting::Room;
use crate::worker::{Command, Operation, TrainJob};

/// Operations that are no passes have their bodies' bytes in memory while they wait. Those up to this size are
/// bounded by the number of places alone.
const SMALL: usize = 4 << 10;

/// Finds the model and the sequence id of a request in its body.
pub(crate) type ReadAddress = fn(&Bytes) -> Result<Address, DecodeError>;

/// A request for an operation of a model.
struct OperationRequest {
    submission: Submission,
    model_id: ModelId,
    kind: &'static OperationKind,
    /// 0 if the client left it out.
    seq_id: i64,
    /// What was read, or what is wrong with it.
    request: Result<Box<dyn Prepare>, ApiError>,
    /// The place of a body that is not small, or that there is none.
    memory: Option<Option<QueuePlace>>,
}

/// An operation whose sequence id is claimed.
pub(crate) struct ClaimedOperation {
    pub(crate) submission: Submission,
    pub(crate) model_id: ModelId,
    pub(crate) seq_id: i64,
    pub(crate) responder: Responder,
    /// What is to be done, or the failure that is its result at once.
    pub(crate) operation: Result<Operation, OperationResult>,
    pub(crate) place: Option<QueuePlace>,
    pub(crate) memory: Option<QueuePlace>,
}

impl Server {
    /// Queues an operation of a model, unless it was queued before.
    ///
    /// Without a sequence id, as older clients may send it, the operation comes after all that have
    /// arrived.
    pub(crate) async fn submit(
        &self,
        owner: Owner,
        kind: &'static OperationKind,
        address: &Address,
        body: Bytes,
    ) -> Result<Promise, ApiError> {
        let room = self.shared().room(owner);
        let bytes = body.len();
        let mut request = OperationRequest::read(room, kind, address, body);
        request.memory = (bytes > SMALL).then(|| room.places.take(owner, bytes));
        self.accept_once(request).await
    }

    /// Queues an operation whose body may be large, as [`submit`](Self::submit) does.
    pub(crate) async fn submit_upload(
        &self,
        owner: Owner,
        kind: &'static OperationKind,
        address: ReadAddress,
        body: Upload,
    ) -> Result<Promise, ApiError> {
        let estimate = match kind.name {
            name if name == FORWARD_BACKWARD.name => ForwardBackwardRequest::decoded_bytes,
            _ => json_bytes,
        };
        let server = self.clone();
        let read = move |body| {
            let address = address(&body)?;
            let room = server.shared().room(owner);
            Ok(OperationRequest::read(room, kind, &address, body))
        };
        let (mut request, held) = body.decode(self, estimate, read).await?;
        request.submission.held = held;
        self.accept_once(request).await
    }

    /// Gives up on operations that have not come in time, and on those that wait for them.
    pub(crate) fn abandon_gaps(&self) {
        let timeout = self.shared().settings.gap_timeout;
        let mut registry = self.registry();
        for run in registry.runs.values_mut() {
            if run.gap_since.is_none_or(|since| since.elapsed() < timeout) {
                continue;
            }
            run.gap_since = None;
            let missing = run.order.next();
            let jobs = run.order.abandon();
            self.shared().store.note(Change::Abandoned {
                run: run.record.id.clone(),
                next: run.order.next(),
            });
            for responder in jobs.into_iter().filter_map(|job| job.responder) {
                responder.finish(OperationResult::user_error(format!(
                    "seq_id {missing} did not arrive within {} s, and later operations must not \
                     run without it",
                    timeout.as_secs_f64()
                )));
            }
        }
    }
}

impl OperationRequest {
    fn read(room: Room<'_>, kind: &'static OperationKind, address: &Address, body: Bytes) -> Self {
        let seq_id = i64::from(address.seq_id);
        let mut submission = Submission::new(room.owner, kind.name, address.model_id.clone(), body);
        submission.seq_id = Some(seq_id);
        Self {
            request: (kind.read)(&submission.body, room),
            submission,
            model_id: ModelId::new(address.model_id.as_str()),
            kind,
            seq_id,
            memory: None,
        }
    }
}

impl AcceptOnce for OperationRequest {
    type Reply = Promise;
    type Claimed = ClaimedOperation;

    fn check(&self, _: &Server, registry: &mut Registry) -> Result<(), ApiError> {
        let run = registry.open_run(self.submission.owner, &self.model_id)?;
        run.last_request = self.submission.accepted;
        Ok(())
    }

    fn seen(&self, _: &Server, registry: &mut Registry) -> Result<Option<Promise>, ApiError> {
        if self.seq_id == 0 {
            return Ok(None);
        }
        let run = registry.run(self.submission.owner, &self.model_id)?;
        let first = run.requests.get(&self.seq_id);
        let id = match first.filter(|_| self.kind.repeats_vary) {
            Some(first) => Some(first.id.clone()),
            None => self.submission.repeats(first)?,
        };
        Ok(id.map(|id| promise(id, &self.model_id)))
    }

    fn claim(
        self,
        server: &Server,
        registry: &mut Registry,
    ) -> Result<(Change, ClaimedOperation), ApiError> {
        let (mut submission, model_id) = (self.submission, self.model_id);
        let owner = submission.owner;
        let run = registry.run(owner, &model_id)?;
        let seq_id = if self.seq_id == 0 {
            run.end()
        } else {
            self.seq_id
        };
        submission.seq_id = Some(seq_id);
        if seq_id < 1 {
            return Err(ApiError::bad_request(format!(
                "`seq_id`: found {seq_id}, expected 1 or more"
            )));
        }
        let place = run.order.place(seq_id);
        if place == Place::Past {
            return Err(ApiError::bad_request(format!(
                "`seq_id`: {seq_id} came too late: the model is at {}",
                run.order.next()
            )));
        }
        let fills_gap = place == Place::Next && run.order.has_gap();
        let base = server.base(&run.record.base_model)?;
        let queue_place = match base.operation_place(owner) {
            Ok(place) => Some(place),
            Err(_) if fills_gap => None,
            Err(refusal) => return Err(refusal),
        };
        let memory = match self.memory {
            Some(None) if !fills_gap => {
                let why = "too many bytes of training operations of this key are waiting";
                return Err(ApiError::busy(why));
            }
            memory => memory.flatten(),
        };
        let responder = server.shared().results.promise(owner, None);
        run.promise(seq_id, submission.promised(&responder));
        let operation = self.request.and_then(|request| {
            request.prepare(&mut OfModel {
                server,
                registry,
                owner,
                model_id: &model_id,
                digest: submission.digest,
            })
        });
        let operation = operation.map_err(|refusal| OperationResult::user_error(refusal.detail()));
        let failed = operation.as_ref().err().cloned();
        let change = submission.journal(&responder, failed, Vec::new());
        let claimed = ClaimedOperation {
            submission,
            model_id,
            seq_id,
            responder,
            operation,
            place: queue_place,
            memory,
        };
        Ok((change, claimed))
    }
}

impl Claimed for ClaimedOperation {
    type Reply = Promise;

    /// Puts the operation in its run's order.
    fn commit(self, server: &Server, registry: &mut Registry) -> Result<Promise, ApiError> {
        let Submission {
            owner, accepted, ..
        } = self.submission;
        let promise = promise(self.responder.id().clone(), &self.model_id);
        let run = registry.run(owner, &self.model_id)?;
        let place = run.order.place(self.seq_id);
        let job = match self.operation {
            Ok(_) if place == Place::Past => {
                let why = "it was given up as missing while it was stored";
                self.responder.finish(OperationResult::user_error(why));
                return Ok(promise);
            }
            Ok(operation) => {
                let activity = &server.shared().activity;
                let pending = activity.enter(owner, &self.model_id);
                if place == Place::Later {
                    let reason = format!("waits for seq_id {}", run.order.next());
                    self.responder.waits(Some(reason));
                }
                Some(TrainJob {
                    request: self.responder.id().clone(),
                    model_id: self.model_id,
                    owner,
                    session: run.record.session.clone(),
                    seq_id: self.seq_id,
                    operation,
                    responder: Some(self.responder),
                    place: self.place,
                    memory: self.memory,
                    clock: WaitClock::new(accepted),
                    pending,
                })
            }
            Err(failed) => {
                self.responder.show_stored(failed);
                None
            }
        };
        let base = server.base(&run.record.base_model)?;
        // Sent under the lock: the order of the channel is the order of the sequence ids.
        for mut job in run.insert(self.seq_id, job) {
            job.clock.release();
            if let Some(responder) = &job.responder {
                responder.waits(None);
            }
            base.send(Command::Train(job));
        }
        Ok(promise)
    }

    fn roll_back(self, server: &Server, registry: &mut Registry) {
        server.shared().results.withdraw(self.responder.id());
        if let Ok(run) = registry.run(self.submission.owner, &self.model_id) {
            run.requests.remove(&self.seq_id);
        }
    }
}

pub(crate) fn promise(request_id: RequestId, model_id: &ModelId) -> Promise {
    Promise {
        request_id,
        model_id: Some(model_id.clone()),
        sample_sequence_ids: None,
    }
}
