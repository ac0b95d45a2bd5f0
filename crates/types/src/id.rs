//! Identifiers as newtypes, so that a model cannot be sampled from by its session's id.
//!
//! All are opaque text except for two shapes that the API defines: a model is
//! `{session}:train:{n}` and a sampling session `{session}:sample:{n}`.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps the text of an id.
            pub fn new(id: impl Into<String>) -> Self {
                Self(id.into())
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Returns the id as owned text.
            pub fn into_string(self) -> String {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self(id.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                Self(id)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

id! {
    /// A session: what one client process does, with its models and samplers.
    SessionId
}
id! {
    /// A model under training, which is also its training run.
    ModelId
}
id! {
    /// A sampling session, also called a sampler.
    SamplingSessionId
}
id! {
    /// A submitted request whose result can be fetched.
    RequestId
}
id! {
    /// One sampled sequence; names it in provenance spans.
    SequenceId
}
id! {
    /// An uploaded custom loss.
    LossId
}
id! {
    /// A project that sessions belong to.
    ProjectId
}

impl ModelId {
    /// Builds the id that the model with this number has in a session.
    pub fn in_session(session: &SessionId, model_seq_id: u64) -> Self {
        Self(format!("{session}:train:{model_seq_id}"))
    }

    /// Splits an id of the form `{session}:train:{n}`.
    pub fn session(&self) -> Option<(SessionId, u64)> {
        let (session, number) = split_numbered(&self.0, ":train:")?;
        Some((SessionId(session.to_owned()), number))
    }
}

impl SamplingSessionId {
    /// Builds the id that the sampling session with this number has in a session.
    pub fn in_session(session: &SessionId, sampling_session_seq_id: u64) -> Self {
        Self(format!("{session}:sample:{sampling_session_seq_id}"))
    }

    /// Splits an id of the form `{session}:sample:{n}`.
    pub fn session(&self) -> Option<(SessionId, u64)> {
        let (session, number) = split_numbered(&self.0, ":sample:")?;
        Some((SessionId(session.to_owned()), number))
    }
}

fn split_numbered<'a>(id: &'a str, separator: &str) -> Option<(&'a str, u64)> {
    let (session, number) = id.rsplit_once(separator)?;
    Some((session, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_id_names_its_session_and_number() {
        let session = SessionId::new("a:train:b");
        let model = ModelId::in_session(&session, 3);
        assert_eq!(model.as_str(), "a:train:b:train:3");
        assert_eq!(model.session(), Some((session, 3)));
        assert_eq!(ModelId::new("opaque").session(), None);
    }

    #[test]
    fn ids_are_plain_text_in_json() {
        assert_eq!(
            serde_json::to_string(&RequestId::new("r1")).unwrap(),
            "\"r1\""
        );
        assert!(
            serde_json::from_str::<RequestId>("7").is_err(),
            "a number is not an id"
        );
    }
}
