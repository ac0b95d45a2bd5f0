//! Delivering a result to the polls that wait for it.

use std::sync::Arc;

use tinkrs_types::RequestId;

use super::{Entry, Results};
use crate::accept::Submission;
use crate::lock::lock;
use crate::results::{OperationResult, ResultFormat};
use crate::store::{Change, Ending};
use crate::studio::activity::Pending;

/// The right and the duty to finish an operation.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(super) id: RequestId,
    pub(super) entry: Arc<Entry>,
    pub(super) results: Arc<Results>,
    /// What shows that the operation has not ended, until its result can be read.
    pub(super) pending: Option<Pending>,
}

impl Responder {
    /// Returns the id under which the result is fetched.
    pub(crate) fn id(&self) -> &RequestId {
        &self.id
    }

    /// Ends the operation. The result is seen once it is stored; one that the disk refuses is seen
    /// from memory.
    pub(crate) fn finish(mut self, ending: impl Into<Ending>) {
        let ending = ending.into();
        let mut unseen = Some(ending.outcome.clone());
        let change = self.ended(ending);
        let store = Arc::clone(&self.results.store);
        store.keep(change, move |written| {
            if let Err(error) = &written {
                tracing::error!(request.id = %self.id, %error, "could not store a result at once");
            }
            drop(self.pending.take());
            if let Some(outcome) = unseen.take() {
                self.results.show(&self.id, &self.entry, outcome);
            }
            if written.is_ok() {
                self.results.settle(&self.id, &self.entry);
            }
        });
    }

    /// Ends the operation, and returns when its result is durable.
    pub(crate) fn try_finish(self, ending: Ending) -> Result<(), Box<Unstored>> {
        let outcome = ending.outcome.clone();
        let (of_run, begun) = (ending.of_run.clone(), ending.begun.clone());
        match self.results.store.write_blocking(self.ended(ending)) {
            Ok(()) => {
                self.show_stored(outcome);
                Ok(())
            }
            Err(error) => Err(Box::new(Unstored {
                responder: self,
                ending: Ending {
                    of_run,
                    begun,
                    ..OperationResult::server_error(error.to_string()).into()
                },
            })),
        }
    }

    /// Shows a result that is in the journal already.
    pub(crate) fn show_stored(mut self, outcome: OperationResult) {
        drop(self.pending.take());
        self.results.show(&self.id, &self.entry, outcome);
        self.results.settle(&self.id, &self.entry);
    }

    /// Has those who watch hear of the end once the result is stored: before that there is nothing to read.
    pub(crate) fn shows_end_of(&mut self, pending: Pending) {
        self.pending = Some(pending);
    }

    /// Tells polls why the operation waits; `None` takes that back.
    pub(crate) fn waits(&self, reason: Option<String>) {
        *lock(&self.entry.reason) = reason;
    }

    /// Says what the operation is, for traces.
    pub(crate) fn describe(&self, submission: &Submission) {
        self.entry.accepted.describe(&self.id, submission);
    }

    fn ended(&self, ending: Ending) -> Change {
        let begun = ending.begun.as_ref().map(|(_, begun)| *begun);
        let failed = ending.outcome.kind == ResultFormat::Failed;
        self.entry.accepted.end(begun, failed);
        let (id, ending) = (self.id.clone(), Box::new(ending));
        Change::Ended { id, ending }
    }
}

/// An operation that could not be stored with all that it brings about.
#[derive(Debug)]
#[must_use = "the operation has not ended"]
pub(crate) struct Unstored {
    responder: Responder,
    ending: Ending,
}

impl Unstored {
    /// Ends the operation as a failure, once what it did has been taken back.
    pub(crate) fn fail(self) {
        self.responder.finish(self.ending);
    }
}
