//! What bodies hold.

use crate::Body;

/// What a body holds.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// There is no body, or nothing of interest in it.
    None,
    /// A JSON object.
    Json(JsonType),
    /// A protobuf message, or the same as JSON.
    Message {
        /// The name of the message in `tinker_public.proto`.
        message: &'static str,
        /// Its JSON form.
        json: JsonType,
    },
    /// The fields of a form, as browsers send it.
    Form(JsonType),
    /// Bytes with this content type.
    Bytes(&'static str),
    /// Text with this content type.
    Text(&'static str),
}

impl Content {
    pub(super) const fn json<T: Documented>() -> Self {
        Self::Json(JsonType::of::<T>())
    }

    pub(super) const fn body<T: Documented + Body>() -> Self {
        Self::Json(JsonType::tagged::<T>())
    }

    pub(super) const fn message<T: Documented>(message: &'static str) -> Self {
        let json = JsonType::of::<T>();
        Self::Message { message, json }
    }

    /// Returns the type of the body as JSON, if it has one.
    pub fn json_type(&self) -> Option<&JsonType> {
        match self {
            Self::Json(json) | Self::Message { json, .. } => Some(json),
            Self::None | Self::Form(_) | Self::Bytes(_) | Self::Text(_) => None,
        }
    }
}

/// A type with a JSON form.
#[derive(Clone, Copy, Debug)]
pub struct JsonType {
    name: fn() -> &'static str,
    #[cfg(feature = "schema")]
    tag: Option<&'static str>,
    #[cfg(feature = "schema")]
    schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
}

impl JsonType {
    pub(super) const fn of<T: Documented>() -> Self {
        Self {
            name: std::any::type_name::<T>,
            #[cfg(feature = "schema")]
            tag: None,
            #[cfg(feature = "schema")]
            schema: schemars::SchemaGenerator::subschema_for::<T>,
        }
    }

    /// A type whose body may have a `type`.
    pub(super) const fn tagged<T: Documented + Body>() -> Self {
        Self {
            #[cfg(feature = "schema")]
            tag: T::TYPE,
            ..Self::of::<T>()
        }
    }

    /// Returns whether it is this type.
    pub fn is<T>(&self) -> bool {
        (self.name)() == std::any::type_name::<T>()
    }

    /// Returns a reference to the type's schema, which is among the generator's definitions.
    #[cfg(feature = "schema")]
    pub(crate) fn schema(&self, schemas: &mut schemars::SchemaGenerator) -> serde_json::Value {
        let reference = (self.schema)(schemas).to_value();
        let name = reference["$ref"]
            .as_str()
            .and_then(|path| path.rsplit('/').next());
        let definition = name.and_then(|name| schemas.definitions_mut().get_mut(name));
        if let (Some(tag), Some(definition)) = (self.tag, definition) {
            definition["properties"]["type"] = serde_json::json!({"const": tag});
        }
        reference
    }
}

/// Types that can stand in a declaration.
#[cfg(feature = "schema")]
pub(super) trait Documented: schemars::JsonSchema {}
#[cfg(feature = "schema")]
impl<T: schemars::JsonSchema> Documented for T {}

/// Types that can stand in a declaration.
#[cfg(not(feature = "schema"))]
pub(super) trait Documented {}
#[cfg(not(feature = "schema"))]
impl<T> Documented for T {}
