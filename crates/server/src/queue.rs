//! The queue of training operations: in order, exactly once, and bounded.
//!
//! A request that names its model and its number is always promised a result, even if something
//! else is wrong with it: its future then fails at once. A refusal would leave a gap in the
//! numbers, and the official client never recovers when one of several chunks is refused.
//!
//! Every operation holds a permit from here until it ends; without one left, the request is
//! answered by 429. One operation needs none: the one that others wait for. Refusing it would keep
//! the queue full. There is at most one of these for each model.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tinkrs_types::{ModelId, Promise, RequestId};
use tinkrs_wire::op::forward_backward::Address;

use crate::Server;
use crate::error::Refusal;
use crate::futures::Outcome;
use crate::order::Place;
use crate::registry::Registry;
use crate::worker::{Command, Operation, TrainJob};

impl Server {
    /// Queues an operation of a model, unless it was queued before.
    ///
    /// `prepare` is called for a new operation only; its error is the operation's result. Without
    /// a number, as older clients may send it, the operation comes after all that have arrived.
    pub(crate) fn submit(
        &self,
        address: &Address,
        prepare: impl FnOnce(&mut Registry) -> Result<Operation, Refusal>,
    ) -> Result<Promise, Refusal> {
        let model_id = &ModelId::new(address.model_id.as_str());
        let mut registry = self.registry();
        let run = registry.open_run(model_id)?;
        run.last_request_time = Timestamp::now();
        let number = match address.seq_id {
            0 => run.order.end(),
            number => i64::from(number),
        };
        if let Some(id) = run.requests.get(&number) {
            return Ok(promise(id.clone(), model_id));
        }
        if number < 1 {
            return Err(Refusal::bad_request(format!(
                "`seq_id`: found {number}, expected 1 or more"
            )));
        }
        let place = run.order.place(number);
        if place == Place::Past {
            let message = format!(
                "seq_id {number} came too late: the model is at {}",
                run.order.next()
            );
            let id = self.inner().futures.finished(Outcome::user_error(message));
            return Ok(promise(id, model_id));
        }
        let fills_gap = place == Place::Next && run.order.has_gap();
        let base = Arc::clone(&run.base);
        let permit = match base.operation_permit() {
            Ok(permit) => Some(permit),
            Err(_) if fills_gap => None,
            Err(refusal) => return Err(refusal),
        };

        let answer = self.inner().futures.promise();
        let id = answer.id().clone();
        let operation = prepare(&mut registry);
        let run = registry.run(model_id)?;
        run.requests.insert(number, id.clone());
        let job = match operation {
            Ok(operation) => {
                if place == Place::Later {
                    let reason = format!("waits for seq_id {}", run.order.next());
                    answer.waits(Some(reason));
                    self.watch_gap(model_id, number);
                }
                Some(TrainJob {
                    model_id: model_id.clone(),
                    operation,
                    answer,
                    permit,
                })
            }
            Err(refusal) => {
                answer.finish(Outcome::user_error(refusal.detail()));
                None
            }
        };
        // Sent under the lock: the order of the channel is the order of the numbers.
        for job in run.order.insert(number, job) {
            job.answer.waits(None);
            base.send(Command::Train(job));
        }
        Ok(promise(id, model_id))
    }

    /// Gives up on the operations that come before `number`, if they do not come in time.
    fn watch_gap(&self, model_id: &ModelId, number: i64) {
        let (server, model_id) = (self.downgrade(), model_id.clone());
        let patience = self.inner().settings.gap_patience;
        tokio::spawn(async move {
            tokio::time::sleep(patience).await;
            if let Some(inner) = server.upgrade() {
                Self::from(inner).abandon_gap(&model_id, number, patience);
            }
        });
    }

    fn abandon_gap(&self, model_id: &ModelId, number: i64, patience: Duration) {
        let mut registry = self.registry();
        let Ok(run) = registry.run(model_id) else {
            return;
        };
        if !run.order.holds(number) {
            return;
        }
        let missing = run.order.next();
        for job in run.order.abandon() {
            job.answer.finish(Outcome::user_error(format!(
                "seq_id {missing} did not arrive within {} s, and later operations must not run \
                 without it",
                patience.as_secs_f64()
            )));
        }
    }
}

fn promise(request_id: RequestId, model_id: &ModelId) -> Promise {
    Promise {
        request_id,
        model_id: Some(model_id.clone()),
        sample_sequence_ids: None,
    }
}
