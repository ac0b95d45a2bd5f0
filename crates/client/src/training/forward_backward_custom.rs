//! Training with a loss of the caller's own.
//!
//! This takes two passes (see [`custom_loss`](super::custom_loss)), and the caller's function
//! runs between them. Both passes take their places in the model's order at the call, next to
//! each other, so that nothing comes between them; later operations wait for the second one to
//! go out.

use super::chunk;
use super::client::Inner;
use super::custom_loss::{self, CustomLoss, Reported};
use super::forward_backward::{Pass, check, fetch_chunks, submit_chunks};
use super::request::{Operation, Request};
use crate::error::BoxError;
use crate::future::Pending;
use crate::{Error, TrainingClient};
use std::fmt;
use std::sync::Arc;
use tinkrs_types::{Datum, ForwardBackwardOutput, LossFn};

const NAME: &str = "forward_backward_custom";

/// A loss of the caller's own: from the data and the log-probabilities of each datum's targets.
type LossFunction = Box<dyn FnOnce(&[Datum], &[&[f32]]) -> Result<CustomLoss, BoxError> + Send>;

/// Computes a custom loss and its gradients.
pub struct ForwardBackwardCustom {
    batch: Vec<Datum>,
    loss: LossFunction,
}

impl fmt::Debug for ForwardBackwardCustom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardBackwardCustom")
            .field("batch", &self.batch.len())
            .finish_non_exhaustive()
    }
}

impl TrainingClient {
    /// Computes a loss of your own over `batch` and accumulates its gradients.
    ///
    /// The function gets the data and, for each datum, the log-probabilities of its target
    /// tokens. It returns the loss and its derivative by each of them. It runs on a thread where
    /// it may take its time.
    ///
    /// ```no_run
    /// # async fn run(client: tinkrs::TrainingClient, batch: Vec<tinkrs::Datum>) -> Result<(), tinkrs::Error> {
    /// use tinkrs::training::CustomLoss;
    /// use tinkrs::BoxError;
    ///
    /// let output = client
    ///     .forward_backward_custom(batch, |_data, logprobs| {
    ///         // The squared error of each log-probability to -1.
    ///         let error = |lp: &f32| f64::from(lp + 1.0);
    ///         let loss = logprobs.iter().copied().flatten().map(|lp| error(lp).powi(2)).sum();
    ///         let gradient = |lps: &&[f32]| lps.iter().map(|lp| 2.0 * (lp + 1.0)).collect();
    ///         Ok::<_, BoxError>(CustomLoss::new(loss, logprobs.iter().map(gradient).collect()))
    ///     })
    ///     .await?;
    /// println!("loss {:?}", output.loss());
    /// # Ok(()) }
    /// ```
    pub fn forward_backward_custom<F, E>(
        &self,
        batch: impl Into<Vec<Datum>>,
        loss: F,
    ) -> Request<ForwardBackwardCustom>
    where
        F: FnOnce(&[Datum], &[&[f32]]) -> Result<CustomLoss, E> + Send + 'static,
        E: Into<BoxError>,
    {
        let loss: LossFunction =
            Box::new(move |data, logprobs| loss(data, logprobs).map_err(Into::into));
        self.request(ForwardBackwardCustom {
            batch: batch.into(),
            loss,
        })
    }
}

impl Operation for ForwardBackwardCustom {
    type Output = ForwardBackwardOutput;

    fn submit(self, client: &TrainingClient) -> Pending<ForwardBackwardOutput> {
        let Self { batch, loss } = self;
        let forward = match check(&batch).and_then(|()| custom_loss::forward_data(&batch)) {
            Ok(forward) => forward,
            Err(error) => return Pending::ready(NAME, Err(error.into())),
        };
        let config = &client.inner.session.connection.server.config;
        let chunks = chunk::split(
            forward,
            config.fwdbwd_max_chunk_len,
            config.fwdbwd_max_chunk_bytes_count,
        );
        let sizes: Vec<usize> = chunks.iter().map(Vec::len).collect();
        let slots = i32::try_from(2 * sizes.len()).unwrap_or(i32::MAX);
        let inner = Arc::clone(&client.inner);
        client
            .inner
            .sequencer
            .enqueue(NAME, slots, move |first_seq_id| async move {
                let first = first_pass(&inner, batch, chunks, first_seq_id, loss).await;
                // Without a second pass its numbers are not used.
                let (surrogate, custom) =
                    first.inspect_err(|_| inner.sequencer.give_back(sizes.len() as i32))?;
                let backward = Pass {
                    operation: NAME,
                    loss: LossFn::CrossEntropy,
                    forward_only: false,
                };
                let second_seq_id = first_seq_id + sizes.len() as i32;
                let chunks = cut(surrogate, &sizes);
                let submitted = submit_chunks(&inner, &backward, chunks, second_seq_id).await?;
                Ok(async move {
                    let output = fetch_chunks(inner, backward, submitted).await?;
                    Ok(custom_loss::finish(output, custom))
                })
            })
    }
}

/// Computes the log-probabilities and the caller's loss of them. The result is the data of the
/// second pass, and what to report of the first.
async fn first_pass(
    inner: &Arc<Inner>,
    batch: Vec<Datum>,
    chunks: Vec<Vec<Datum>>,
    first_seq_id: i32,
    loss: LossFunction,
) -> Result<(Vec<Datum>, Reported), Error> {
    let forward = Pass {
        operation: NAME,
        loss: LossFn::CrossEntropy,
        forward_only: true,
    };
    let submitted = submit_chunks(inner, &forward, chunks, first_seq_id).await?;
    let output = fetch_chunks(Arc::clone(inner), forward, submitted).await?;

    let evaluate = move || evaluate(batch, &output, loss);
    let runtime = &inner.session.connection.runtime;
    let evaluated = runtime.spawn_blocking(evaluate).await;
    // The function panicked, or the runtime is gone.
    let failed = |error: tokio::task::JoinError| Error::CustomLoss(error.into());
    evaluated.map_err(failed)?
}

fn evaluate(
    batch: Vec<Datum>,
    output: &ForwardBackwardOutput,
    loss: LossFunction,
) -> Result<(Vec<Datum>, Reported), Error> {
    let logprobs =
        custom_loss::logprobs(&batch, output).map_err(|error| Error::answer(NAME, error))?;
    let custom = loss(&batch, &logprobs).map_err(Error::CustomLoss)?;
    let reported = Reported {
        loss: custom.loss,
        metrics: custom.metrics,
        surrogate_loss: custom_loss::surrogate_loss(&custom.gradients, &logprobs),
    };
    Ok((
        custom_loss::surrogate_data(batch, custom.gradients)?,
        reported,
    ))
}

/// Cuts data into runs of these sizes.
fn cut(data: Vec<Datum>, sizes: &[usize]) -> Vec<Vec<Datum>> {
    let mut data = data.into_iter();
    sizes
        .iter()
        .map(|size| data.by_ref().take(*size).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdamParams, ServiceClient};
    use tinkrs_testkit::ScriptedServer;
    use tinkrs_testkit::scripted::{API_KEY, BASE_MODEL};

    #[tokio::test]
    async fn a_loss_that_fails_leaves_no_gap_that_a_server_would_wait_for() {
        let server = ScriptedServer::start().await;
        let service = ServiceClient::builder()
            .base_url(server.url())
            .api_key(API_KEY)
            .telemetry(false)
            .build();
        let client = service
            .create_lora_training_client(BASE_MODEL)
            .await
            .unwrap();
        let batch = || vec![Datum::supervised(vec![1_u32], [2], [1.0]).unwrap()];
        let failing = client.forward_backward_custom(batch(), |_, _| Err("no such column"));
        let failing = failing.submit();
        let panicking = client.forward_backward_custom(batch(), |_, _| -> Result<_, BoxError> {
            panic!("a fault of the caller's")
        });
        let panicking = panicking.submit();
        let update = client.optim_step(AdamParams::new(1e-4)).submit();
        assert!(matches!(failing.await, Err(Error::CustomLoss(_))));
        assert!(matches!(panicking.await, Err(Error::CustomLoss(_))));
        update.await.unwrap();
        let numbers: Vec<_> = server.executions().iter().map(|e| e.seq_id).collect();
        assert_eq!(numbers, [1, 2, 3]);
    }
}
