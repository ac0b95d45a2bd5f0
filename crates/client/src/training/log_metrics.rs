//! Reporting what a program has measured of its own run.

use super::client::TrainingClient;
use crate::Error;
use crate::connection::call::Call;
use std::sync::atomic::Ordering;
use tinkrs_types::InvalidInput;
use tinkrs_wire::endpoint;
use tinkrs_wire::json::Empty;
use tinkrs_wire::op::metrics::LogMetricsRequest;

impl TrainingClient {
    /// Reports what the program has measured at a step, such as a reward, so that it is shown beside what the server
    /// measures. A metric that was reported of the step before is replaced.
    ///
    /// The server counts the steps of the optimizer from 1. A server that takes no reports, such as the hosted one, is
    /// asked once, and nothing is sent after that.
    ///
    /// ```no_run
    /// # async fn run(client: tinkrs::TrainingClient) -> Result<(), tinkrs::Error> {
    /// client.log_metrics(1, [("reward", 0.5), ("answers/right", 12.0)]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If a number is not finite, the server takes the report for wrong, or it cannot be reached.
    pub async fn log_metrics<N: Into<String>>(
        &self,
        step: u64,
        metrics: impl IntoIterator<Item = (N, f64)>,
    ) -> Result<(), Error> {
        let metrics = metrics
            .into_iter()
            .map(|(name, value)| (name.into(), value));
        let request = LogMetricsRequest {
            step,
            metrics: metrics.collect(),
        };
        for (name, value) in &request.metrics {
            if !value.is_finite() {
                let field = format!("metrics.{name}");
                return Err(InvalidInput::new(field, value, "a finite number").into());
            }
        }
        if self.inner.is_unreported.load(Ordering::Relaxed) {
            return Ok(());
        }
        let call = Call::at(&endpoint::LOG_RUN_METRICS, &self.inner.model_id).json(&request);
        let connection = &self.inner.session.connection;
        match connection.json::<Empty>(call).await {
            Ok(Empty {}) => Ok(()),
            // The run is there, so what is missing is the endpoint.
            Err(error) if matches!(error.status(), Some(404 | 405 | 501)) => {
                self.inner.is_unreported.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
