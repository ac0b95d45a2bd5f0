//! The queue of training operations: in order, exactly once, durable and bounded.
//!
//! A request that names its model and its number is always promised a result, even if something
//! else is wrong with it: its future then fails at once. A refusal would leave a gap in the
//! numbers, and the official client never recovers when one of several chunks is refused.
//!
//! Its way: the number is taken, the request goes into the journal, and then into the run's order.
//! From the first step on it does not depend on the connection that brought it.
//!
//! Every operation holds a permit from here until it ends; without one left, the request is
//! answered by 429. One operation needs none: the one that others wait for. Refusing it would keep
//! the queue full. There is at most one of these for each model.

use bytes::Bytes;
use jiff::Timestamp;
use tinkrs_types::protocol::Promise;
use tinkrs_types::{ModelId, RequestId};
use tinkrs_wire::op::forward_backward::Address;
use tokio::sync::OwnedSemaphorePermit;

use crate::Server;
use crate::api::{training, weights};
use crate::auth::Owner;
use crate::error::ApiError;
use crate::order::Place;
use crate::outcome::Outcome;
use crate::registry::{Promised, Registry, in_milliseconds};
use crate::request::{Kind, Request};
use crate::results::Answer;
use crate::store::{Change, Digest, NewRequest};
use crate::worker::{Command, Operation, TrainJob};

/// A request with a number of a run.
#[derive(Debug)]
pub(crate) struct Numbered {
    pub(crate) owner: Owner,
    pub(crate) kind: Kind,
    pub(crate) model_id: ModelId,
    pub(crate) number: i64,
    pub(crate) body: Bytes,
    pub(crate) digest: Digest,
    pub(crate) accepted: Timestamp,
}

/// A number that was taken.
#[derive(Debug)]
pub(crate) enum Taken {
    /// By this request.
    New(Box<NewOperation>),
    /// By the same request, earlier.
    Before(RequestId),
}

#[derive(Debug)]
pub(crate) struct NewOperation {
    pub(crate) answer: Answer,
    /// What is to be done, or why it cannot be done.
    pub(crate) operation: Result<Operation, ApiError>,
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// What comes into being with the request.
    pub(crate) also: Vec<Change>,
}

impl Server {
    /// Queues an operation of a model, unless it was queued before.
    ///
    /// Without a number, as older clients may send it, the operation comes after all that have
    /// arrived.
    pub(crate) async fn submit(
        &self,
        owner: Owner,
        kind: Kind,
        address: &Address,
        body: Bytes,
    ) -> Result<Promise, ApiError> {
        let request = kind.read(&body);
        let model_id = ModelId::new(address.model_id.as_str());
        let mut numbered = Numbered {
            owner,
            kind,
            digest: digest(&body),
            model_id,
            number: i64::from(address.seq_id),
            body,
            accepted: in_milliseconds(Timestamp::now()),
        };
        let taken = self.take_number(&mut numbered, request)?;
        self.accept(numbered, taken).await
    }

    fn take_number(
        &self,
        numbered: &mut Numbered,
        request: Result<Request, ApiError>,
    ) -> Result<Taken, ApiError> {
        let mut registry = self.registry();
        let run = registry.open_run(numbered.owner, &numbered.model_id)?;
        run.last_request = numbered.accepted;
        if numbered.number == 0 {
            numbered.number = run.end();
        }
        let numbered = &*numbered;
        let (owner, model_id, number) = (numbered.owner, &numbered.model_id, numbered.number);
        if let Some(known) = run.requests.get(&number) {
            return same(known, numbered).map(Taken::Before);
        }
        if number < 1 {
            return Err(ApiError::bad_request(format!(
                "`seq_id`: found {number}, expected 1 or more"
            )));
        }
        let place = run.order.place(number);
        if place == Place::Past {
            return Err(ApiError::bad_request(format!(
                "`seq_id`: {number} came too late: the model is at {}",
                run.order.next()
            )));
        }
        let fills_gap = place == Place::Next && run.order.has_gap();
        let permit = match self.base(&run.record.base_model)?.operation_permit() {
            Ok(permit) => Some(permit),
            Err(_) if fills_gap => None,
            Err(refusal) => return Err(refusal),
        };
        let answer = self.shared().results.promise(owner, None);
        run.promise(
            number,
            Promised {
                id: answer.id().clone(),
                digest: numbered.digest,
            },
        );
        let operation =
            request.and_then(|request| self.prepare(&mut registry, owner, model_id, request));
        Ok(Taken::New(Box::new(NewOperation {
            answer,
            operation,
            permit,
            also: Vec::new(),
        })))
    }

    /// Checks an operation against what is known, and returns what is to be done.
    pub(crate) fn prepare(
        &self,
        registry: &mut Registry,
        owner: Owner,
        model_id: &ModelId,
        request: Request,
    ) -> Result<Operation, ApiError> {
        match request {
            Request::Pass(request) => training::prepare_pass(request, self, owner),
            Request::OptimStep(request) => training::prepare_step(&request),
            Request::SaveWeights(request) => {
                weights::prepare_save(registry, owner, model_id, request)
            }
            Request::SaveWeightsForSampler(request) => {
                weights::prepare_save_for_sampler(registry, owner, model_id, request)
            }
            Request::SaveWeightsExternal(request) => {
                weights::prepare_save_external(registry, owner, model_id, request)
            }
            Request::LoadWeights(request) => self.prepare_load(registry, owner, model_id, &request),
            Request::UnloadModel => Ok(Operation::Unload),
            Request::CreateModel => {
                let run = registry.run(owner, model_id)?;
                Ok(Operation::Create(run.record.lora.clone()))
            }
            Request::Sample(_) | Request::CreateCustomLoss => {
                unreachable!("not an operation of a run")
            }
        }
    }

    /// Journals an operation whose number was taken, and puts it in its run's order. Goes on if
    /// the caller is dropped.
    pub(crate) async fn accept(
        &self,
        numbered: Numbered,
        taken: Taken,
    ) -> Result<Promise, ApiError> {
        let server = self.clone();
        let model_id = numbered.model_id.clone();
        let accepting = async move {
            match taken {
                Taken::New(new) => server.accept_new(numbered, *new).await,
                Taken::Before(id) => server.confirm(numbered, id).await,
            }
        };
        let id = tokio::spawn(accepting)
            .await
            .map_err(|_| ApiError::unavailable("the server is stopping"))??;
        Ok(promise(id, &model_id))
    }

    async fn accept_new(
        &self,
        numbered: Numbered,
        new: NewOperation,
    ) -> Result<RequestId, ApiError> {
        let id = new.answer.id().clone();
        let failed = new.operation.as_ref().err();
        let failed = failed.map(|refusal| Outcome::user_error(refusal.detail()));
        let change = Change::Request(Box::new(NewRequest {
            id: id.clone(),
            owner: numbered.owner,
            kind: numbered.kind.name(),
            subject: numbered.model_id.to_string(),
            number: Some(numbered.number),
            digest: numbered.digest,
            seed: 0,
            accepted: numbered.accepted,
            body: numbered.body.clone(),
            outcome: failed.clone(),
            also: new.also,
        }));
        let written = self.shared().store.write(change).await;
        let mut registry = self.registry();
        let run = registry.run(numbered.owner, &numbered.model_id)?;
        if let Err(error) = written {
            run.requests.remove(&numbered.number);
            self.shared().results.withdraw(&id);
            if numbered.number == 0 {
                registry.runs.remove(&numbered.model_id);
            }
            return Err(ApiError::unavailable(error.to_string()));
        }
        let is_late = run.order.place(numbered.number) == Place::Past;
        let job = match (new.operation, failed) {
            (Ok(_), _) if is_late => {
                let why = "its turn was given up while it was stored";
                new.answer.finish(Outcome::user_error(why));
                return Ok(id);
            }
            (Ok(operation), _) => {
                if run.order.place(numbered.number) == Place::Later {
                    let reason = format!("waits for seq_id {}", run.order.next());
                    new.answer.waits(Some(reason));
                }
                Some(TrainJob {
                    model_id: numbered.model_id,
                    owner: numbered.owner,
                    session: run.record.session.clone(),
                    number: numbered.number,
                    operation,
                    answer: Some(new.answer),
                    permit: new.permit,
                })
            }
            (Err(_), Some(outcome)) => {
                new.answer.show_stored(outcome);
                None
            }
            (Err(_), None) => unreachable!("a refusal has an outcome"),
        };
        let base = self.base(&run.record.base_model)?;
        // Sent under the lock: the order of the channel is the order of the numbers.
        for job in run.insert(numbered.number, job) {
            if let Some(answer) = &job.answer {
                answer.waits(None);
            }
            base.send(Command::Train(job));
        }
        Ok(id)
    }

    /// Waits until the first request of this number is durable.
    async fn confirm(&self, numbered: Numbered, id: RequestId) -> Result<RequestId, ApiError> {
        let written = self.shared().store.write(Change::Nothing).await;
        written.map_err(|error| ApiError::unavailable(error.to_string()))?;
        let mut registry = self.registry();
        let run = registry.run(numbered.owner, &numbered.model_id)?;
        match run.requests.get(&numbered.number) {
            Some(known) if known.id == id => Ok(id),
            _ => Err(ApiError::unavailable(
                "the first request of this number could not be stored",
            )),
        }
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
            for answer in jobs.into_iter().filter_map(|job| job.answer) {
                answer.finish(Outcome::user_error(format!(
                    "seq_id {missing} did not arrive within {} s, and later operations must not \
                     run without it",
                    timeout.as_secs_f64()
                )));
            }
        }
    }
}

/// Returns the id of a request that has this number, if it is the same request.
pub(crate) fn same(known: &Promised, numbered: &Numbered) -> Result<RequestId, ApiError> {
    if known.digest == numbered.digest || numbered.kind.may_vary() {
        return Ok(known.id.clone());
    }
    // Not 409: the official client repeats that for minutes, and no repeat can help.
    Err(ApiError::bad_request(format!(
        "`seq_id`: {} was used for a request with another body",
        numbered.number
    )))
}

/// Returns the SHA-256 of a body.
pub(crate) fn digest(body: &[u8]) -> Digest {
    let digest = ring::digest::digest(&ring::digest::SHA256, body);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

pub(crate) fn promise(request_id: RequestId, model_id: &ModelId) -> Promise {
    Promise {
        request_id,
        model_id: Some(model_id.clone()),
        sample_sequence_ids: None,
    }
}
