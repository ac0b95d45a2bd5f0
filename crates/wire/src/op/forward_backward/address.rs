use crate::DecodeError;
use bytes::Bytes;
use prost::Message;
use serde::{Deserialize, Deserializer};

/// The beginning of a request: which model, and which place in its order.
///
/// It can be read where the rest of a request is not good, so that a server knows what failed.
#[derive(Clone, PartialEq, Message, Deserialize)]
pub struct Address {
    /// Which model.
    #[prost(string, tag = "1")]
    pub model_id: String,
    /// The request's place in the model's order; 0 means that the client gave none.
    #[prost(int32, tag = "2")]
    #[serde(default, deserialize_with = "null_is_zero")]
    pub seq_id: i32,
}

impl Address {
    /// Reads the address of a message.
    ///
    /// # Errors
    /// If the bytes are not a message.
    pub fn of_message(body: Bytes) -> Result<Self, DecodeError> {
        Ok(Self::decode(body)?)
    }

    /// Reads the address of the JSON of a client to 0.24, also that of `/forward`.
    ///
    /// # Errors
    /// If the bytes are not JSON, or name no model.
    pub fn of_json(body: &[u8]) -> Result<Self, DecodeError> {
        serde_json::from_slice(body).map_err(|error| DecodeError::json(body, error))
    }
}

fn null_is_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::forward_backward::ForwardBackwardRequest;
    use crate::proto;

    #[test]
    fn an_address_is_read_where_the_rest_is_wrong() {
        let bad = proto::ForwardBackwardRequest {
            model_id: "m".to_owned(),
            seq_id: 7,
            data: vec![proto::Datum {
                loss_fn_inputs: [("weights".to_owned(), proto::Tensor::default())].into(),
                ..proto::Datum::default()
            }],
            ..proto::ForwardBackwardRequest::default()
        };
        let bytes = Bytes::from(bad.encode_to_vec());
        assert!(ForwardBackwardRequest::decode(bytes.clone()).is_err());
        let address = Address::of_message(bytes).unwrap();
        assert_eq!((address.model_id.as_str(), address.seq_id), ("m", 7));

        let json = br#"{"forward_input": 1, "model_id": "m", "seq_id": null}"#;
        assert_eq!(Address::of_json(json).unwrap().seq_id, 0);
        assert!(Address::of_json(b"{}").is_err());
    }
}
