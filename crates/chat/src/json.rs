//! JSON that remembers the order of its members.
//!
//! Chat templates write tool definitions and arguments into the prompt as JSON text. Models were
//! trained on the text that Python's `json.dumps` makes: members in their given order, a space
//! behind each `,` and `:`. Another order or spacing means other tokens, so it has to be kept.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt;
use std::io;

/// A JSON value whose objects keep their members' order.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Json {
    /// `null`
    #[default]
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(serde_json::Number),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// An object, in the order in which it was written.
    Object(Vec<(String, Self)>),
}

impl Json {
    /// Reads JSON text.
    ///
    /// # Errors
    /// If the text is not exactly one JSON value.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns a member of an object.
    pub fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.iter().find(|(key, _)| key == name).map(|(_, v)| v),
            _ => None,
        }
    }

    /// Returns the text of a text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Makes an object of these members.
    pub fn object<const N: usize>(members: [(&str, Self); N]) -> Self {
        Self::Object(members.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Writes the text that `json.dumps(value, ensure_ascii=False)` makes.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_python_text(self).map_err(|_| fmt::Error)?)
    }
}

/// Returns the text that `json.dumps(value, ensure_ascii=False)` makes.
pub(crate) fn to_python_text(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(
        &mut bytes,
        PythonSpacing,
    ))?;
    Ok(String::from_utf8(bytes).expect("JSON text is UTF-8"))
}

/// Returns the text that `json.dumps(value, indent=width, ensure_ascii=False)` makes.
pub(crate) fn to_indented_text(
    value: &impl Serialize,
    width: usize,
) -> Result<String, serde_json::Error> {
    let (mut bytes, indent) = (Vec::new(), " ".repeat(width));
    let spacing = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    value.serialize(&mut serde_json::Serializer::with_formatter(
        &mut bytes, spacing,
    ))?;
    Ok(String::from_utf8(bytes).expect("JSON text is UTF-8"))
}

/// Returns the text that `json.dumps(value, separators=(",", ":"), ensure_ascii=False)` makes.
pub(crate) fn to_compact_text(value: &Json) -> String {
    serde_json::to_string(value).expect("a JSON value can be written")
}

/// Returns the compact text of a value whose objects are sorted by name.
pub(crate) fn to_sorted_text(value: &Json) -> String {
    let mut value = value.clone();
    sort(&mut value);
    to_compact_text(&value)
}

fn sort(value: &mut Json) {
    match value {
        Json::Object(members) => {
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            members.iter_mut().for_each(|(_, value)| sort(value));
        }
        Json::List(items) => items.iter_mut().for_each(sort),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) => {}
    }
}

/// The spacing of Python's `json.dumps`.
struct PythonSpacing;

impl serde_json::ser::Formatter for PythonSpacing {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Object(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, value) in members {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(Json::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(Json::Number(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(Json::Number(value.into()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
                Ok(serde_json::Number::from_f64(value).map_or(Json::Null, Json::Number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Json, E> {
                Ok(Json::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Json, E> {
                Ok(Json::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Json::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
                let mut members: Vec<(String, Json)> = Vec::new();
                while let Some((name, value)) = entries.next_entry::<String, Json>()? {
                    // A name that comes twice keeps its first place and its last value, as in Python.
                    match members.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, known)) => *known = value,
                        None => members.push((name, value)),
                    }
                }
                Ok(Json::Object(members))
            }
        }

        deserializer.deserialize_any(Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_order_it_was_read_in_and_the_spacing_of_python() {
        let text = r#"{"b":[1,-2.5,true,null],"a":{"é":"\"<x>\n"},"b2":{},"c":[]}"#;
        let written = Json::parse(text).unwrap().to_string();
        let expected = r#"{"b": [1, -2.5, true, null], "a": {"é": "\"<x>\n"}, "b2": {}, "c": []}"#;
        assert_eq!(written, expected);
        assert_eq!(Json::parse(&written).unwrap().to_string(), expected);
    }

    #[test]
    fn a_member_that_comes_twice_has_its_last_value() {
        let json = Json::parse(r#"{"a": 1, "b": 2, "a": 3}"#).unwrap();
        assert_eq!(json.to_string(), r#"{"a": 3, "b": 2}"#);
    }
}
