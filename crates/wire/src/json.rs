//! JSON bodies: every default present, nulls left out, a `type` tag where the API has one.
//!
//! Decoding is more tolerant than encoding, because clients to 0.16 send neither tags nor
//! defaults, and write nulls for what they leave out.

use crate::DecodeError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A request body in JSON.
pub trait Body: Serialize + DeserializeOwned {
    /// The value of the `type` member, if the body has one.
    const TYPE: Option<&'static str>;

    /// Writes the body with its tag.
    fn encode(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Tagged<'a, B> {
            #[serde(flatten)]
            body: &'a B,
            #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
            tag: Option<&'static str>,
        }
        serde_json::to_vec(&Tagged {
            body: self,
            tag: Self::TYPE,
        })
        .expect("bodies have text keys, and numbers that JSON can write")
    }

    /// Reads a body of this or an older client.
    ///
    /// # Errors
    /// If the bytes are not JSON, or a required member is missing or of the wrong type.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(bytes)
    }
}

/// Reads JSON in which a null means that a member was not given.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    match serde_json::from_slice(bytes) {
        Ok(body) => Ok(body),
        // Only older clients write nulls, so only they pay for the second reading, and only they get it:
        // it would pass over a member that is there twice. The first error is the one to report: it
        // has a line and a column.
        Err(error) => Some(bytes)
            .filter(|bytes| bytes.windows(4).any(|word| word == b"null"))
            .and_then(without_nulls)
            .and_then(|value| serde_json::from_value(value).ok())
            .ok_or_else(|| DecodeError::json(bytes, error)),
    }
}

/// Members whose nulls are the user's own.
const FREE_FORM: [&str; 4] = ["user_metadata", "event_data", "args", "kwargs"];

fn without_nulls(bytes: &[u8]) -> Option<Value> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.retain(|_, member| !member.is_null());
                let typed = members
                    .iter_mut()
                    .filter(|(name, _)| !FREE_FORM.contains(&name.as_str()));
                typed.for_each(|(_, member)| strip(member));
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut value = serde_json::from_slice(bytes).ok()?;
    strip(&mut value);
    Some(value)
}

/// Implements [`Body`] for a type, with its tag.
macro_rules! body {
    ($name:ty) => {
        impl $crate::json::Body for $name {
            const TYPE: Option<&'static str> = None;
        }
    };
    ($name:ty, $tag:literal) => {
        impl $crate::json::Body for $name {
            const TYPE: Option<&'static str> = Some($tag);
        }
    };
}
pub(crate) use body;

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        #[serde(default)]
        count: u32,
        #[serde(default)]
        user_metadata: serde_json::Map<String, Value>,
    }

    body!(Sample, "sample");

    #[test]
    fn the_tag_is_written_and_not_required() {
        let body = Sample {
            count: 2,
            user_metadata: serde_json::Map::new(),
        };
        assert_eq!(
            body.encode(),
            br#"{"count":2,"user_metadata":{},"type":"sample"}"#
        );
        assert_eq!(Sample::decode(br#"{"count": 2}"#).unwrap(), body);
    }

    #[test]
    fn a_null_means_not_given_except_in_what_users_write() {
        let body = Sample::decode(br#"{"count": null, "user_metadata": {"mine": null}}"#).unwrap();
        assert_eq!(body.count, 0);
        assert_eq!(body.user_metadata["mine"], Value::Null);
    }

    #[test]
    fn a_member_that_is_there_twice_is_refused() {
        let error = Sample::decode(br#"{"count": 2, "count": 3}"#).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("duplicate field `count`"), "{source}");
    }

    #[test]
    fn an_error_tells_where_it_is() {
        let error = Sample::decode(b"{\n\"count\": \"two\"}").unwrap_err();
        let DecodeError::Member { member, source } = error else {
            panic!("{error}")
        };
        assert_eq!(member, "count");
        assert!(source.to_string().contains("line 2"), "{source}");
        let broken = Sample::decode(b"{\"count\": ").unwrap_err();
        assert!(matches!(broken, DecodeError::Json(_)), "{broken:?}");
    }
}
