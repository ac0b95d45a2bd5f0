//! How a caller watches and stops a run.

use super::metrics::Numbers;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tinkrs::training::LossSource;

/// Asks a run to stop at the next step. It then saves a checkpoint and can be resumed.
///
/// A clone is the same switch, so that a signal handler can hold one.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks the run to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether the run was asked to stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What a run tells after each step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Which step, from 0.
    pub step: usize,
    /// How many the run takes in all.
    pub steps: usize,
    /// Its numbers, as in `metrics.jsonl`.
    pub numbers: Numbers,
    /// What the loss was read from, if the recipe had to look for it.
    pub loss_source: Option<LossSource>,
}

/// What a run tells after each evaluation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EvalReport {
    /// How many steps the weights have seen.
    pub steps: usize,
    /// The numbers, as in `metrics.jsonl`.
    pub numbers: Numbers,
    /// Whether no evaluation of the run was better.
    pub is_best: bool,
}

type Listener<'a, R> = Box<dyn FnMut(&R) + Send + 'a>;

/// How a caller watches and stops a run. The default does neither.
#[derive(Default)]
pub struct Hooks<'a> {
    /// Stops the run.
    pub interrupt: Interrupt,
    on_step: Option<Listener<'a, StepReport>>,
    on_eval: Option<Listener<'a, EvalReport>>,
    on_failure: Option<Listener<'a, str>>,
}

impl<'a> Hooks<'a> {
    /// Calls a function after each step.
    #[must_use]
    pub fn on_step(mut self, listener: impl FnMut(&StepReport) + Send + 'a) -> Self {
        self.on_step = Some(Box::new(listener));
        self
    }

    /// Calls a function after each evaluation.
    #[must_use]
    pub fn on_eval(mut self, listener: impl FnMut(&EvalReport) + Send + 'a) -> Self {
        self.on_eval = Some(Box::new(listener));
        self
    }

    /// Calls a function with the reason why an episode failed, in steps that went on without it: the last reason
    /// of the step. Distillation says here how many of the teacher's answers it left out.
    #[must_use]
    pub fn on_failure(mut self, listener: impl FnMut(&str) + Send + 'a) -> Self {
        self.on_failure = Some(Box::new(listener));
        self
    }

    pub(crate) fn failure(&mut self, reason: &str) {
        if let Some(listener) = &mut self.on_failure {
            listener(reason);
        }
    }

    pub(crate) fn eval(&mut self, report: &EvalReport) {
        if let Some(listener) = &mut self.on_eval {
            listener(report);
        }
    }

    pub(crate) fn step(&mut self, report: &StepReport) {
        if let Some(listener) = &mut self.on_step {
            listener(report);
        }
    }
}

impl fmt::Debug for Hooks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("interrupt", &self.interrupt)
            .finish_non_exhaustive()
    }
}
