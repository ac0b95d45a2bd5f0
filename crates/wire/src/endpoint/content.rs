//! What bodies hold.

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
    /// Bytes with this content type.
    Bytes(&'static str),
    /// Text with this content type.
    Text(&'static str),
}

impl Content {
    pub(super) const fn json<T: Documented>() -> Self {
        Self::Json(JsonType::of::<T>())
    }

    pub(super) const fn message<T: Documented>(message: &'static str) -> Self {
        let json = JsonType::of::<T>();
        Self::Message { message, json }
    }

    /// Returns the type of the body as JSON, if it has one.
    pub fn json_type(&self) -> Option<&JsonType> {
        match self {
            Self::Json(json) | Self::Message { json, .. } => Some(json),
            Self::None | Self::Bytes(_) | Self::Text(_) => None,
        }
    }
}

/// A type with a JSON form.
#[derive(Clone, Copy, Debug)]
pub struct JsonType {
    name: fn() -> &'static str,
}

impl JsonType {
    pub(super) const fn of<T: Documented>() -> Self {
        Self {
            name: std::any::type_name::<T>,
        }
    }

    /// Returns whether it is this type.
    pub fn is<T>(&self) -> bool {
        (self.name)() == std::any::type_name::<T>()
    }
}

/// Types that can stand in a declaration.
pub(super) trait Documented {}
impl<T> Documented for T {}
