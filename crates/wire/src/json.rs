//! JSON bodies: every default present, nulls left out, a `type` tag where the API has one.
//!
//! Decoding is more tolerant than encoding, because clients to 0.16 send neither tags nor
//! defaults, and write nulls for what they leave out. A null for a number that always has a value is
//! no such thing: it is what JSON writers make of NaN, and a default in its place would be a surprise.

use crate::{DecodeError, strict};
use serde::de::{DeserializeOwned, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt;

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

    /// Reads a body as [`decode`](Self::decode) does, and refuses members that nothing reads.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), and [`DecodeError::Unread`].
    fn decode_strict(bytes: &[u8]) -> Result<Self, DecodeError> {
        strict::decode(bytes)
    }
}

/// A JSON object without members, as the answer of requests whose success is all there is to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

/// Reads JSON in which a null means that a member was not given.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    match serde_json::from_slice(bytes) {
        Ok(body) => Ok(body),
        Err(error) => decode_without_nulls(bytes, error, |value| T::deserialize(value)),
    }
}

/// Reads JSON again whose first reading ended with this error, without the nulls that mean "not given".
///
/// Only older clients write those, so only they pay for this. If it fails too, the first error is the one to
/// report, because it has a line and a column; unless it is about such a null itself.
pub(crate) fn decode_without_nulls<T: DeserializeOwned>(
    bytes: &[u8],
    first: serde_json::Error,
    read: impl FnOnce(&Value) -> Result<T, serde_json::Error>,
) -> Result<T, DecodeError> {
    let Ok(WithoutNulls(value)) = serde_json::from_slice(bytes) else {
        return Err(DecodeError::json(bytes, first));
    };
    read(&value).map_err(|second| {
        let found = DecodeError::json(bytes, first);
        let text = value.to_string();
        let placed = serde_json::from_str::<T>(&text).err();
        let placed = placed.map(|error| DecodeError::json(text.as_bytes(), error));
        match placed.as_ref().and_then(DecodeError::member) {
            Some(member) if found.member() != Some(member) => DecodeError::Member {
                member: member.to_owned(),
                source: second,
            },
            None if found.member().is_none() => found.in_member(member_at_fault::<T>(&text)),
            _ => found,
        }
    })
}

/// Finds the member that is wrong by reading a text once more. A value that may have several forms is known to have none
/// only behind its end, where the place of the error says nothing any more.
fn member_at_fault<T: DeserializeOwned>(text: &str) -> Option<String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let error = serde_path_to_error::deserialize::<_, T>(&mut json).err()?;
    let member = error.path().to_string();
    // The text is JSON: whatever the error is called, a value is of the wrong kind.
    (member != ".").then_some(member)
}

/// Members whose nulls are the user's own, or that have numbers by names of their own.
const FREE_FORM: [&str; 6] = [
    "user_metadata",
    "metrics",
    "event_data",
    "args",
    "kwargs",
    "loss_fn_config",
];

/// The numbers in requests that have a default, and so always a value: a null for one of them is not left out.
const NUMBERS: [&str; 17] = [
    "beta1",
    "beta2",
    "cloned_sampler_id",
    "eps",
    "format",
    "grad_clip_norm",
    "learning_rate",
    "limit",
    "num_samples",
    "prev_cursor",
    "prompt_alt_tokens_k",
    "temperature",
    "top_k",
    "top_p",
    "topk_prompt_logprobs",
    "topk_sample_logprobs",
    "weight_decay",
];

/// A value whose members are there once each, and are not null unless that is for the reader to judge.
pub(crate) struct WithoutNulls(pub(crate) Value);

impl<'de> Deserialize<'de> for WithoutNulls {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut names = HashSet::new();
        let mut members = Map::new();
        while let Some(name) = from.next_key::<String>()? {
            let member = if FREE_FORM.contains(&name.as_str()) {
                from.next_value()?
            } else {
                from.next_value::<WithoutNulls>()?.0
            };
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            if !member.is_null() || NUMBERS.contains(&name.as_str()) {
                members.insert(name, member);
            }
        }
        Ok(members.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(WithoutNulls(item)) = from.next_element()? {
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
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
    fn a_null_for_a_number_that_always_has_a_value_is_refused_by_name() {
        #[derive(Debug, Deserialize, Serialize)]
        struct Step {
            #[serde(default)]
            count: u32,
            #[serde(default)]
            learning_rate: f64,
            #[serde(default)]
            beta1: Option<f64>,
        }
        body!(Step);
        // The first null is one that may be left out.
        let body = br#"{"count": null, "learning_rate": null}"#;
        for read in [Step::decode, Step::decode_strict] {
            let DecodeError::Member { member, source } = read(body).unwrap_err() else {
                panic!("no member is named")
            };
            assert_eq!(member, "learning_rate");
            assert!(source.to_string().contains("null"), "{source}");
        }
        // It may be absent, or null where nothing stands for nothing.
        let body = Step::decode(br#"{"count": null, "beta1": null}"#).unwrap();
        assert_eq!((body.learning_rate, body.beta1), (0.0, None));
    }

    #[test]
    fn a_member_that_is_there_twice_is_refused() {
        let error = Sample::decode(br#"{"count": 2, "count": 3}"#).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("duplicate field `count`"), "{source}");
        // Nor where older clients write nulls.
        let with_null = br#"{"count": null, "user_metadata": {}, "count": 3}"#;
        assert!(Sample::decode(with_null).is_err());
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
