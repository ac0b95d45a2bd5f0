//! The operations of a model: how each is read, and checked against what is known.
//!
//! An operation is one file here: its [`OperationKind`], and [`Prepare`] for its request. The request
//! is journaled as it was sent and read again after a restart, by the same code. What comes of it is
//! an [`Operation`](crate::worker::Operation), which the worker executes.
//!
//! What is wrong with the data of an operation is its result, not a refusal: see [`queue`](crate::operations::queue).

pub(crate) mod create_model;
pub(crate) mod forward_backward;
pub(crate) mod load_weights;
pub(crate) mod optim_step;
pub(crate) mod order;
pub(crate) mod queue;
pub(crate) mod sample;
pub(crate) mod save_weights;
pub(crate) mod unload_model;

use bytes::Bytes;
use tinkrs_types::ModelId;

use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::registry::Registry;
use crate::store::Digest;
use crate::waiting::Room;
use crate::worker::Operation;

/// A kind of operation.
#[derive(Debug)]
pub(crate) struct OperationKind {
    /// Its name in the journal and in traces.
    pub(crate) name: &'static str,
    /// Reads a request of this kind, every member of it. Large data stay in memory if there is room.
    pub(crate) read: ReadOperation,
    /// Whether a repeated request may differ from the first one.
    pub(crate) repeats_vary: bool,
}

/// Reads a request for an operation, which waits in this room.
pub(crate) type ReadOperation = fn(&Bytes, Room<'_>) -> Result<Box<dyn Prepare>, ApiError>;

/// Every kind of operation.
const ALL: [&OperationKind; 10] = [
    &create_model::CREATE_MODEL,
    &forward_backward::FORWARD_BACKWARD,
    &forward_backward::FORWARD_BACKWARD_JSON,
    &forward_backward::FORWARD,
    &optim_step::OPTIM_STEP,
    &save_weights::SAVE_WEIGHTS,
    &save_weights::SAVE_WEIGHTS_FOR_SAMPLER,
    &save_weights::SAVE_WEIGHTS_EXTERNAL,
    &load_weights::LOAD_WEIGHTS,
    &unload_model::UNLOAD_MODEL,
];

impl OperationKind {
    const fn new(name: &'static str, read: ReadOperation) -> Self {
        Self {
            name,
            read,
            repeats_vary: false,
        }
    }

    /// Finds a kind by its name in the journal.
    pub(crate) fn from_name(name: &str) -> Option<&'static Self> {
        ALL.into_iter().find(|kind| kind.name == name)
    }
}

/// A request for an operation, as it was read.
pub(crate) trait Prepare: std::fmt::Debug + Send {
    /// Checks the request against what is known, and returns what is to be done.
    fn prepare(self: Box<Self>, model: &mut OfModel<'_>) -> Result<Operation, ApiError>;
}

/// The model that an operation is for.
pub(crate) struct OfModel<'a> {
    pub(crate) server: &'a Server,
    pub(crate) registry: &'a mut Registry,
    pub(crate) owner: Owner,
    pub(crate) model_id: &'a ModelId,
    /// Of the request's body.
    pub(crate) digest: Digest,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in ALL {
            let found = OperationKind::from_name(kind.name).map(|found| found.name);
            assert_eq!(found, Some(kind.name));
        }
        assert!(OperationKind::from_name("juggle").is_none());
    }
}
