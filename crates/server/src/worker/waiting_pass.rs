//! Passes that wait for their turn.

use std::fmt;

use bytes::Bytes;
use tinkrs_backend::{Objective, PassRequest};
use tinkrs_types::{Datum, RequestId};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;

use crate::error::ApiError;
use crate::store::{Digest, Store};
use crate::waiting::{self, Waiting};

/// Decodes the body of a pass.
pub(crate) type DecodePass = fn(&Bytes) -> Result<ForwardBackwardRequest, ApiError>;

/// A pass that waits for its turn.
pub(crate) struct WaitingPass {
    pub(crate) objective: Objective,
    pub(crate) backward: bool,
    pub(crate) size: PassSize,
    pub(crate) data: Waiting<Vec<Datum>>,
    /// Of its body in the journal, and how that is read.
    pub(crate) digest: Digest,
    pub(crate) decode: DecodePass,
}

/// How large a pass is, which is known also while its data are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassSize {
    /// The tokens of all datums.
    pub(crate) tokens: usize,
    /// The tokens of the longest one.
    pub(crate) longest: usize,
    /// What the data take in memory.
    pub(crate) data_bytes: usize,
    /// What the body takes while the data are decoded again.
    body_bytes: usize,
}

impl PassSize {
    pub(crate) fn of(data: &[Datum], body: &Bytes) -> Self {
        let lengths = data.iter().filter_map(|datum| datum.model_input().len());
        Self {
            tokens: lengths.clone().sum(),
            longest: lengths.max().unwrap_or(0),
            data_bytes: waiting::bytes_of(data),
            body_bytes: body.len(),
        }
    }
}

impl WaitingPass {
    /// Returns how much memory its data take while they are taken, of which its body may be a part.
    pub(super) fn reading_bytes(&self) -> usize {
        match &self.data {
            Waiting::InMemory(..) => self.size.data_bytes,
            Waiting::InJournal => self.size.data_bytes + self.size.body_bytes,
        }
    }

    /// Returns what is to be computed, from the journal if it is not in memory.
    pub(super) fn into_request(
        self,
        store: &Store,
        id: &RequestId,
    ) -> Result<PassRequest, ApiError> {
        let data = match self.data {
            Waiting::InMemory(data, _) => data,
            Waiting::InJournal => {
                let body = waiting::read_body(store, id, &self.digest)?;
                (self.decode)(&body)?.data
            }
        };
        Ok(PassRequest {
            data,
            objective: self.objective,
            backward: self.backward,
        })
    }
}

impl fmt::Debug for WaitingPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingPass")
            .field("backward", &self.backward)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
