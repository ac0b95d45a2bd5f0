//! Chat formats: how models want conversations written, and how they write their answers.
//!
//! A format is a value behind the trait [`Format`]. To add one, write a file beside this one with its
//! type and a [`Known`] entry, and put that entry into [`KNOWN`]: the tests of all formats then run
//! for it too.

mod chatml;
mod llama3;
mod qwen3;
mod role_colon;
#[cfg(feature = "templates")]
mod template;

pub use chatml::ChatMl;
pub use llama3::Llama3;
pub use qwen3::Qwen3;
pub use role_colon::RoleColon;
#[cfg(feature = "templates")]
pub use template::ChatTemplate;

use crate::response::{THINK, TOOL_CALL};
use crate::{Conversation, Error, Response, Script, Vocabulary};
use std::fmt;
use std::sync::Arc;

/// How a model wants conversations written, and how it writes its answers.
pub trait Format: fmt::Debug + Send + Sync {
    /// Returns the name that messages use, such as `ChatML`.
    fn name(&self) -> &'static str;

    /// Returns the control tokens that the format is made of; a tokenizer without them is refused.
    fn needs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the control tokens that end an answer.
    ///
    /// By default these are the tokens of [`stop_spellings`](Self::stop_spellings).
    ///
    /// # Errors
    /// If the tokenizer lacks them.
    fn stop_tokens(&self, vocabulary: &Vocabulary) -> Result<Vec<u32>, Error> {
        let spellings = self.stop_spellings().iter();
        Ok(spellings
            .filter_map(|spelling| vocabulary.control(spelling))
            .collect())
    }

    /// Returns the spellings of the control tokens that end an answer.
    fn stop_spellings(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the text that ends an answer, for formats without control tokens.
    fn stop_text(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether a token ends an answer; `stops` are the format's stop tokens.
    fn ends_answer(&self, token: u32, stops: &[u32], vocabulary: &Vocabulary) -> bool {
        let _ = vocabulary;
        stops.contains(&token)
    }

    /// Writes a conversation, its tools and the beginning of an answer if the options ask for one.
    ///
    /// What messages say goes through [`Script::text`], so that it cannot become control tokens, and
    /// what the model has to write itself is marked with [`Script::answer`].
    ///
    /// # Errors
    /// If the format has no way to write something in the conversation or the options.
    fn write(
        &self,
        script: &mut Script<'_>,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<(), Error>;

    /// Reads the text of an answer up to what ended it: thinking, words and tool calls.
    ///
    /// Models make mistakes, so reading never fails. `finished` says whether the model ended the
    /// answer by itself.
    fn parse(&self, text: &str, finished: bool) -> Response;

    /// Returns the part of an answer that a prompt with this end has begun already, such as `<think>`.
    fn begun(&self, end_of_prompt: &str) -> &'static str {
        if end_of_prompt.trim_end().ends_with(THINK) {
            THINK
        } else {
            ""
        }
    }

    /// Returns what may begin in the middle of an answer and is not said in it. While an answer is
    /// streamed, text that may be the beginning of such a mark is held back.
    fn marks(&self) -> &'static [&'static str] {
        &[TOOL_CALL, THINK]
    }

    /// Returns whether an answer that begins like this may be a tool call as a whole, and so must not
    /// be shown before it is complete.
    fn may_be_call(&self, content: &str) -> bool {
        let _ = content;
        false
    }
}

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

    /// Refuses a thinking switch and an effort, for formats without them.
    pub(crate) fn refuse_thinking(&self, format: &'static str) -> Result<(), Error> {
        if self.thinking.is_some() {
            let what = "switch for thinking";
            return Err(Error::Option { format, what });
        }
        self.refuse_effort(format)
    }

    /// Refuses an effort, for formats without it.
    pub(crate) fn refuse_effort(&self, format: &'static str) -> Result<(), Error> {
        if self.reasoning_effort.is_some() {
            let what = "reasoning effort";
            return Err(Error::Option { format, what });
        }
        Ok(())
    }
}

/// How much a model is to think before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Effort {
    /// As little as possible.
    Low,
    /// As the model does by itself.
    Medium,
    /// As much as it takes.
    High,
}

impl Effort {
    /// Returns the name that chat formats write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A format that can be asked for by name.
#[derive(Clone, Copy)]
pub struct Known {
    /// The name to ask for it by, in lower case.
    pub id: &'static str,
    /// Makes the format with its own settings.
    pub make: fn() -> Arc<dyn Format>,
    /// Whether a model of this name, in lower case, uses it, if no entry before it does.
    fits: fn(&str) -> bool,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Known").field(&self.id).finish()
    }
}

/// All formats with a name, in the order in which a model's name is tried on them.
pub const KNOWN: &[Known] = &[
    role_colon::KNOWN,
    llama3::KNOWN,
    qwen3::KNOWN,
    chatml::KNOWN,
];

/// Returns the format of a model of a family that we know, from the name that the hosted service has
/// for it.
///
/// Base models get [`RoleColon`]. For a family that is not known there is no good guess: use the
/// model's own template ([`Renderer::from_path`](crate::Renderer::from_path)).
pub fn of_model(name: &str) -> Option<Arc<dyn Format>> {
    let name = name.to_ascii_lowercase();
    let known = KNOWN.iter().find(|known| (known.fits)(&name));
    known.map(|known| (known.make)())
}
