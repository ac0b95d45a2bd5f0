//! What queries hold.

use super::content::Documented;
use serde::Deserializer;
use serde::de::value::Error as Stop;
use serde::de::{DeserializeOwned, Error, Visitor};
use serde::forward_to_deserialize_any;

/// The parameters of a query, as a struct that is read from it.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    names: fn() -> &'static [&'static str],
    #[cfg(feature = "schema")]
    schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
}

impl Query {
    pub(super) const fn of<T: DeserializeOwned + Documented>() -> Self {
        Self {
            names: field_names::<T>,
            #[cfg(feature = "schema")]
            schema: T::json_schema,
        }
    }

    /// Returns the schema of the struct.
    #[cfg(feature = "schema")]
    pub(crate) fn schema(&self, schemas: &mut schemars::SchemaGenerator) -> serde_json::Value {
        (self.schema)(schemas).to_value()
    }

    /// Returns the names of the parameters.
    pub fn names(&self) -> &'static [&'static str] {
        (self.names)()
    }
}

/// Asks a struct for its fields: it names them when it is read, before anything else.
fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Fields<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Fields<'_> {
        type Error = Stop;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
            Err(Stop::custom("not a struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Stop> {
            *self.0 = fields;
            Err(Stop::custom("the names are all that is wanted"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
            unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    // The error is how the reading ends.
    let _ = T::deserialize(Fields(&mut names));
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[test]
    fn a_query_has_the_parameters_that_its_struct_has_fields() {
        #[derive(Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only its names are read")]
        struct Sample {
            limit: Option<u64>,
            #[serde(rename = "access_scope")]
            scope: String,
        }
        assert_eq!(Query::of::<Sample>().names(), ["limit", "access_scope"]);
        assert!(Query::of::<u64>().names().is_empty());
    }
}
