//! `POST /cancel_future`: gives up on a sample.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::RequestId;

/// Gives up on a sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CancelFutureRequest {
    /// Which request.
    pub request_id: RequestId,
}

body!(CancelFutureRequest);
