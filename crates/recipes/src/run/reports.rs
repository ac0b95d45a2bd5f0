//! The numbers of a run, told to the server as well, which shows them beside its own.
//!
//! It happens beside the training: a report that cannot be sent is dropped, and the run goes on. What is in
//! `metrics.jsonl` is what counts.

use super::Numbers;
use std::time::Duration;
use tinkrs::TrainingClient;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How many reports may wait. Beyond that they are dropped.
const WAITING: usize = 1024;
/// How many numbers a report has.
const NUMBERS: usize = 64;
/// How long a run that ends waits for its last reports.
const LAST: Duration = Duration::from_secs(5);

/// Tells the server of a run's numbers.
#[derive(Debug)]
pub(super) struct Reports {
    reports: mpsc::Sender<(u64, Numbers)>,
    task: JoinHandle<()>,
    /// How many steps the run had when its server began to count.
    first: usize,
}

impl Reports {
    /// Begins, for a run whose server counts its steps from this one.
    pub(super) fn start(training: TrainingClient, first: usize) -> Self {
        let (reports, mut inbox) = mpsc::channel::<(u64, Numbers)>(WAITING);
        let task = tokio::spawn(async move {
            while let Some((step, numbers)) = inbox.recv().await {
                let numbers: Vec<_> = numbers.into_iter().collect();
                for part in numbers.chunks(NUMBERS) {
                    let part = part.iter().map(|(name, value)| (name.as_str(), *value));
                    // The server's refusal of one is no reason to keep the others from it.
                    let _ = training.log_metrics(step, part).await;
                }
            }
        });
        Self {
            reports,
            task,
            first,
        }
    }

    /// Tells of the numbers after this many steps of the run.
    pub(super) fn send(&self, steps: usize, numbers: &Numbers) {
        let finite = numbers.iter().filter(|(_, value)| value.is_finite());
        let numbers: Numbers = finite.map(|(name, value)| (name.clone(), *value)).collect();
        if !numbers.is_empty() {
            let step = steps.saturating_sub(self.first) as u64;
            let _ = self.reports.try_send((step, numbers));
        }
    }

    /// Waits for what was sent, but not for long.
    pub(super) async fn finish(self) {
        drop(self.reports);
        let _ = tokio::time::timeout(LAST, self.task).await;
    }
}
