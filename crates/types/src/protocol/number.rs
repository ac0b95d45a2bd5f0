//! Numbers in JSON, where NaN and the infinities have no form of their own.

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// A number as JSON, whatever it is.
///
/// A loss that diverges makes NaN, and a client should then see NaN. JSON writers make it a
/// null, for which the official clients refuse the whole answer. They do read `"NaN"`, `"inf"`
/// and `"-inf"` as numbers, so that is what is written and read here.
///
/// ```
/// use tinkrs_types::protocol::JsonNumber;
///
/// let written = serde_json::to_string(&[JsonNumber(1.5), JsonNumber(f64::NAN)])?;
/// assert_eq!(written, r#"[1.5,"NaN"]"#);
/// let read: Vec<JsonNumber> = serde_json::from_str(&written)?;
/// assert!(read[1].0.is_nan());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JsonNumber(pub f64);

impl From<f32> for JsonNumber {
    fn from(number: f32) -> Self {
        Self(number.into())
    }
}

impl Serialize for JsonNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            number if number.is_finite() => serializer.serialize_f64(number),
            number => serializer.collect_str(&number),
        }
    }
}

impl<'de> Deserialize<'de> for JsonNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl Visitor<'_> for Read {
            type Value = JsonNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, `NaN`, `inf` or `-inf`")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<JsonNumber, E> {
                Ok(JsonNumber(number as f64))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<JsonNumber, E> {
                Ok(JsonNumber(number as f64))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<JsonNumber, E> {
                Ok(JsonNumber(number))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<JsonNumber, E> {
                let number = not_finite(name);
                number
                    .map(JsonNumber)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
            }
        }

        deserializer.deserialize_any(Read)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for JsonNumber {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "JsonNumber".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A number; those that are not finite are text.",
            "anyOf": [{"type": "number"}, {"enum": ["NaN", "inf", "-inf"]}],
        })
    }
}

/// Reads the name of a number that is not finite.
pub(crate) fn not_finite(name: &str) -> Option<f64> {
    match name {
        "NaN" => Some(f64::NAN),
        "inf" => Some(f64::INFINITY),
        "-inf" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// For `Option<Metrics>`.
pub(crate) mod metrics {
    use super::*;
    use crate::training::Metrics;
    use std::collections::BTreeMap;

    pub(crate) fn serialize<S: Serializer>(
        metrics: &Option<Metrics>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match metrics {
            Some(metrics) => {
                serializer.collect_map(metrics.iter().map(|(k, v)| (k, JsonNumber(*v))))
            }
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Metrics>, D::Error> {
        let metrics = Option::<BTreeMap<String, JsonNumber>>::deserialize(deserializer)?;
        Ok(metrics.map(|metrics| metrics.into_iter().map(|(k, v)| (k, v.0)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_that_are_not_finite_are_written_by_name_and_read_again() {
        for (number, written) in [
            (-0.5, json!(-0.5)),
            (f64::INFINITY, json!("inf")),
            (f64::NEG_INFINITY, json!("-inf")),
        ] {
            assert_eq!(serde_json::to_value(JsonNumber(number)).unwrap(), written);
            let read: JsonNumber = serde_json::from_value(written).unwrap();
            assert_eq!(read.0, number);
        }
        assert_eq!(serde_json::to_value(JsonNumber(f64::NAN)).unwrap(), "NaN");
        for other in [json!("1.5"), json!(null), json!([]), json!("nan ")] {
            assert!(serde_json::from_value::<JsonNumber>(other).is_err());
        }
    }
}
