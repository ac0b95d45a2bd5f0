//! Keeping a model's requests in the order of the calls.
//!
//! A call takes its sequence numbers and enters the queue under one lock, so the queue is in
//! their order. One task takes jobs from the queue and submits them one at a time; it waits for
//! the server to take a request, not for its result. A job that fails, or whose result was dropped,
//! ends its turn like any other, so that later ones go out. A job that needs fewer
//! numbers than it took gives the rest back in its turn, and later ones move up: a server may
//! wait for a number that never comes.

use crate::Error;
use crate::future::Pending;
use crate::lock::lock;
use crate::otel::OperationSpan;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tinkrs_types::RequestId;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A request that the server has taken.
#[derive(Clone, Debug)]
pub(crate) struct Submitted {
    pub(crate) request_id: RequestId,
    pub(crate) roundtrip: Duration,
    /// The longest result that fits the request.
    pub(crate) max_result_bytes: usize,
}

/// Called with each error that reaches a caller.
pub(crate) type OnError = Arc<dyn Fn(&Error) + Send + Sync>;

pub(crate) struct Sequencer {
    entrance: Mutex<Entrance>,
    /// How many numbers were given back. Only the job whose turn it is reads or changes it.
    given_back: Arc<AtomicI32>,
    runtime: Handle,
    on_error: OnError,
}

impl fmt::Debug for Sequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequencer")
            .field("entrance", &self.entrance)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Entrance {
    last_seq_id: i32,
    jobs: mpsc::UnboundedSender<Job>,
}

impl Sequencer {
    /// Starts the task that submits jobs. It ends when the queue is dropped and empty.
    pub(crate) fn start(runtime: &Handle, on_error: OnError) -> Self {
        let (jobs, mut waiting) = mpsc::unbounded_channel::<Job>();
        runtime.spawn(async move {
            while let Some(job) = waiting.recv().await {
                job.await;
            }
        });
        Self {
            entrance: Mutex::new(Entrance {
                last_seq_id: 0,
                jobs,
            }),
            given_back: Arc::default(),
            runtime: runtime.clone(),
            on_error,
        }
    }

    /// Takes `slots` sequence numbers and queues a job.
    ///
    /// The job gets the first of the numbers. Its first part, the submission, runs in its turn;
    /// the second part, which that returns, runs beside whatever comes next.
    pub(crate) fn enqueue<T, S, F>(
        &self,
        operation: &'static str,
        slots: i32,
        job: impl FnOnce(i32) -> S + Send + 'static,
    ) -> Pending<T>
    where
        T: Send + 'static,
        S: Future<Output = Result<F, Error>> + Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (sender, pending) = Pending::new(operation);
        let mut entrance = lock(&self.entrance);
        let Some(last_seq_id) = entrance.last_seq_id.checked_add(slots) else {
            let message = "the model has no sequence numbers left".to_owned();
            return Pending::ready(operation, Err(Error::Setup { message }));
        };
        let first_seq_id = entrance.last_seq_id + 1;
        let (given_back, runtime) = (Arc::clone(&self.given_back), self.runtime.clone());
        let on_error = Arc::clone(&self.on_error);
        let span = OperationSpan::start(operation);
        let result_span = span.clone();
        let job = span.run(async move {
            let first_seq_id = first_seq_id - given_back.load(Ordering::Acquire);
            match job(first_seq_id).await {
                Err(error) => {
                    on_error(&error);
                    // It fails if the caller has dropped the `Pending`.
                    drop(sender.send(Err(error)));
                }
                Ok(result) => {
                    let result = async move { result.await.inspect_err(|error| on_error(error)) };
                    runtime.spawn(result_span.run(send_result(sender, result)));
                }
            }
        });
        entrance.last_seq_id = last_seq_id;
        // The task only ends before the queue if its runtime does; then the job's end of
        // `pending` is dropped with the job, which reads as "closed".
        let _ = entrance.jobs.send(Box::pin(job));
        pending
    }

    /// Gives back the last `slots` numbers of the job whose turn it is, which were not sent.
    pub(crate) fn give_back(&self, slots: i32) {
        self.given_back.fetch_add(slots, Ordering::AcqRel);
    }
}

/// Waits for a result until the caller drops its `Pending`; the server finishes the work either way.
async fn send_result<T>(
    mut sender: oneshot::Sender<Result<T, Error>>,
    result: impl Future<Output = Result<T, Error>>,
) {
    let result = tokio::select! {
        biased;
        result = result => result,
        () = sender.closed() => return,
    };
    // It fails if the caller has dropped the `Pending`.
    drop(sender.send(result));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_result_that_was_dropped_is_not_waited_for() {
        let sequencer = Sequencer::start(&Handle::current(), Arc::new(|_| {}));
        let (running, ended) = oneshot::channel::<()>();
        let (started, submitted) = oneshot::channel();
        let pending = sequencer.enqueue("forward", 1, |_| async move {
            let _ = started.send(());
            Ok(async move {
                let _running = running;
                std::future::pending::<Result<(), Error>>().await
            })
        });
        submitted.await.unwrap();
        drop(pending);
        assert!(ended.await.is_err(), "the task that waits has ended");
    }

    #[tokio::test]
    async fn a_submission_goes_out_even_if_its_result_was_dropped() {
        let sequencer = Sequencer::start(&Handle::current(), Arc::new(|_| {}));
        let (sent, arrived) = oneshot::channel();
        let job = |seq_id| async move {
            let _ = sent.send(seq_id);
            Ok(async { Ok(()) })
        };
        drop(sequencer.enqueue("forward", 2, job));
        let later = sequencer.enqueue("optim_step", 1, |seq_id| async move {
            Ok(async move { Ok(seq_id) })
        });
        assert_eq!(arrived.await.unwrap(), 1);
        assert_eq!(later.await.unwrap(), 3);
    }
}
