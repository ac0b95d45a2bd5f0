//! `PUT …/ttl`: says how long a checkpoint is kept.

use crate::json::body;
use serde::{Deserialize, Serialize};

/// Says how long a checkpoint is kept. Unlike elsewhere, null is written: it means "for ever".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SetCheckpointTtlRequest {
    /// How long from now. It must be there: an empty body shall not make anything last for ever.
    #[serde(deserialize_with = "Option::deserialize")]
    pub ttl_seconds: Option<u64>,
}

body!(SetCheckpointTtlRequest);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Body;

    #[test]
    fn a_body_without_a_time_is_refused() {
        let forever = SetCheckpointTtlRequest::decode(br#"{"ttl_seconds": null}"#).unwrap();
        assert_eq!(forever.ttl_seconds, None);
        assert!(SetCheckpointTtlRequest::decode(b"{}").is_err());
    }
}
