//! What to write besides a conversation itself.

use crate::Error;
use std::fmt;
use std::str::FromStr;
use tinkrs_types::InvalidInput;

/// What to write besides the conversation itself.
///
/// A format refuses by name what it has no way to write.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RenderOptions {
    /// Whether to end with the beginning of an assistant's message: a prompt for an answer.
    pub open: bool,
    /// The first words of the answer that the prompt asks for. They are text: no control token can
    /// come out of them.
    pub prefill: Option<String>,
    /// Whether the model may think before it answers. The default is the format's own.
    pub thinking: Option<bool>,
    /// How much the model is to think.
    pub reasoning_effort: Option<Effort>,
    /// Whether earlier answers keep their thinking. The default is the format's own.
    pub preserve_thinking: Option<bool>,
    /// Most bytes of text, of all that the format writes: names, tools and thinking, too. More is refused before any of it
    /// is turned into tokens, which takes seconds and memory for megabytes.
    pub max_text_bytes: Option<usize>,
}

impl RenderOptions {
    /// Asks for a prompt: the conversation and the beginning of an answer.
    pub fn prompt() -> Self {
        Self {
            open: true,
            ..Self::default()
        }
    }

    /// Sets the first words of the answer.
    #[must_use]
    pub fn prefill(mut self, text: impl Into<String>) -> Self {
        self.prefill = Some(text.into());
        self
    }

    /// Sets whether the model may think before it answers.
    #[must_use]
    pub fn thinking(mut self, thinking: bool) -> Self {
        self.thinking = Some(thinking);
        self
    }

    /// Sets how much the model is to think.
    #[must_use]
    pub fn reasoning_effort(mut self, effort: Effort) -> Self {
        self.reasoning_effort = Some(effort);
        self
    }

    /// Sets whether earlier answers keep their thinking.
    #[must_use]
    pub fn preserve_thinking(mut self, preserve: bool) -> Self {
        self.preserve_thinking = Some(preserve);
        self
    }

    /// Refuses all options about thinking, for formats without it.
    pub(crate) fn refuse_thinking(&self, format: &'static str) -> Result<(), Error> {
        self.refuse_switch(format)?;
        self.refuse_effort(format)?;
        self.refuse_preserve(format)
    }

    /// Refuses a thinking switch, for formats without one.
    pub(crate) fn refuse_switch(&self, format: &'static str) -> Result<(), Error> {
        refuse(self.thinking.is_some(), format, "switch for thinking")
    }

    /// Refuses an effort, for formats without it.
    pub(crate) fn refuse_effort(&self, format: &'static str) -> Result<(), Error> {
        refuse(self.reasoning_effort.is_some(), format, "reasoning effort")
    }

    /// Refuses to keep or drop earlier thinking, for formats with one way only.
    pub(crate) fn refuse_preserve(&self, format: &'static str) -> Result<(), Error> {
        let what = "choice of whether earlier answers keep their thinking";
        refuse(self.preserve_thinking.is_some(), format, what)
    }
}

fn refuse(asked: bool, format: &'static str, what: &'static str) -> Result<(), Error> {
    if asked {
        return Err(Error::Option { format, what });
    }
    Ok(())
}

/// How much a model is to think before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[non_exhaustive]
pub enum Effort {
    /// As little as possible.
    Low,
    /// As the model does by itself.
    Medium,
    /// As much as it takes.
    High,
    /// As much as the model can.
    Max,
}

impl Effort {
    /// Returns the name that chat formats write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Max => "max",
        }
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Effort {
    type Err = InvalidInput;

    fn from_str(name: &str) -> Result<Self, InvalidInput> {
        match name {
            "low" => Ok(Self::Low),
            "medium" => Ok(Self::Medium),
            "high" => Ok(Self::High),
            "max" | "xhigh" => Ok(Self::Max),
            _ => Err(InvalidInput::new(
                "reasoning_effort",
                name,
                "low, medium, high or max",
            )),
        }
    }
}
