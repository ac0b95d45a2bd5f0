//! `tinker://` paths: which run, what kind of checkpoint, which name.

use crate::{InvalidInput, ModelId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

pub(crate) const SCHEME: &str = "tinker://";

/// What a checkpoint can be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckpointKind {
    /// Full training state, made by `save_state`.
    Training,
    /// Weights to sample from, made by `save_weights_for_sampler`.
    Sampler,
    /// Files to download, made by `save_weights_external`.
    External,
}

impl CheckpointKind {
    /// Returns the path segment of this kind: `weights`, `sampler_weights`, `external_weights`.
    pub fn segment(self) -> &'static str {
        match self {
            Self::Training => "weights",
            Self::Sampler => "sampler_weights",
            Self::External => "external_weights",
        }
    }

    /// Reads a path segment.
    pub fn from_segment(segment: &str) -> Option<Self> {
        [Self::Training, Self::Sampler, Self::External]
            .into_iter()
            .find(|kind| kind.segment() == segment)
    }

    fn made_by(self) -> &'static str {
        match self {
            Self::Training => "save_state",
            Self::Sampler => "save_weights_for_sampler",
            Self::External => "save_weights_external",
        }
    }
}

impl fmt::Display for CheckpointKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Training => "training",
            Self::Sampler => "sampler",
            Self::External => "external",
        })
    }
}

/// The path of a checkpoint: `tinker://{run}/{kind}/{name}`.
///
/// ```
/// use tinkrs_types::{CheckpointKind, TinkerPath};
///
/// let path: TinkerPath = "tinker://s1:train:0/sampler_weights/step-10".parse()?;
/// assert_eq!(path.kind(), CheckpointKind::Sampler);
/// assert_eq!(path.checkpoint_id(), "sampler_weights/step-10");
///
/// let error = path.require(CheckpointKind::Training).unwrap_err();
/// assert!(error.to_string().contains("made by `save_state`"));
/// # Ok::<(), tinkrs_types::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct TinkerPath {
    run: ModelId,
    kind: CheckpointKind,
    name: String,
}

impl TinkerPath {
    /// Builds the path of a checkpoint.
    ///
    /// # Errors
    /// If the run or the name is empty or contains a `/`.
    pub fn new(
        run: ModelId,
        kind: CheckpointKind,
        name: impl Into<String>,
    ) -> Result<Self, InvalidInput> {
        let name = name.into();
        for (field, value) in [
            ("training run id", run.as_str()),
            ("checkpoint name", &name),
        ] {
            if value.is_empty() || value.contains('/') {
                let found = format!("`{value}`");
                return Err(InvalidInput::new(
                    field,
                    found,
                    "text without `/`, not empty",
                ));
            }
        }
        Ok(Self { run, kind, name })
    }

    /// Returns the training run that the checkpoint belongs to.
    pub fn run(&self) -> &ModelId {
        &self.run
    }

    /// Returns what the checkpoint can be used for.
    pub fn kind(&self) -> CheckpointKind {
        self.kind
    }

    /// Returns the name that the checkpoint was saved under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the id within the run: `{kind}/{name}`.
    pub fn checkpoint_id(&self) -> String {
        format!("{}/{}", self.kind.segment(), self.name)
    }

    /// Checks that this is a path of the kind an operation needs.
    ///
    /// # Errors
    /// If it is of another kind; the error says which operation makes the needed one.
    pub fn require(&self, kind: CheckpointKind) -> Result<&Self, InvalidInput> {
        if self.kind == kind {
            return Ok(self);
        }
        Err(InvalidInput::new(
            "path",
            format_args!("the {} checkpoint path `{self}`", self.kind),
            format!(
                "a {kind} checkpoint path (`{SCHEME}<run>/{}/<name>`), as made by `{}`",
                kind.segment(),
                kind.made_by()
            ),
        ))
    }
}

impl fmt::Display for TinkerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{SCHEME}{}/{}/{}",
            self.run,
            self.kind.segment(),
            self.name
        )
    }
}

impl FromStr for TinkerPath {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let refused = || {
            InvalidInput::new(
                "path",
                format_args!("`{text}`"),
                "`tinker://<run>/<kind>/<name>` with kind `weights`, `sampler_weights` or `external_weights`",
            )
        };
        let mut segments = text.strip_prefix(SCHEME).ok_or_else(refused)?.split('/');
        let (run, kind, name) = match (segments.next(), segments.next(), segments.next()) {
            (Some(run), Some(kind), Some(name)) if segments.next().is_none() => (run, kind, name),
            _ => return Err(refused()),
        };
        let kind = CheckpointKind::from_segment(kind).ok_or_else(refused)?;
        Self::new(ModelId::new(run), kind, name).map_err(|_| refused())
    }
}

impl TryFrom<String> for TinkerPath {
    type Error = InvalidInput;

    fn try_from(text: String) -> Result<Self, InvalidInput> {
        text.parse()
    }
}

impl From<TinkerPath> for String {
    fn from(path: TinkerPath) -> Self {
        path.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_parses_and_prints_the_same_text() {
        for kind in ["weights", "sampler_weights", "external_weights"] {
            let text = format!("tinker://s:train:0/{kind}/step-1");
            let path: TinkerPath = text.parse().unwrap();
            assert_eq!(path.to_string(), text);
            assert_eq!(path.checkpoint_id(), format!("{kind}/step-1"));
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_form_that_is_allowed() {
        let cases = [
            "",
            "tinker://",
            "tinker://run/weights",
            "tinker://run/weights/",
            "tinker:///weights/a",
            "tinker://run/weights/a/b",
            "tinker://run/checkpoints/a",
            "http://run/weights/a",
            "run/weights/a",
        ];
        for text in cases {
            let error = text.parse::<TinkerPath>().unwrap_err();
            assert!(
                error.to_string().contains("tinker://<run>/<kind>/<name>"),
                "{text}: {error}"
            );
        }
    }
}
