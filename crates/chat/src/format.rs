//! Chat formats: how models want conversations written, and how they write their answers.
//!
//! A format is a value behind the trait [`Format`]. To add one, write a file beside this one with its
//! type, and put an entry with its name into [`KNOWN`]: the tests of all formats then run for it too.

mod known;
mod options;

mod chatml;
mod completion;
mod deepseek_v3;
mod deepseek_v4;
mod function_tags;
mod glm;
mod gpt_oss;
mod kimi;
mod llama3;
mod nemotron3;
mod qwen3;
mod qwen3_5;
mod role_colon;
#[cfg(feature = "templates")]
mod template;
mod tml_v0;
mod turns;
mod typescript;

pub use chatml::ChatMl;
pub use completion::Completion;
pub use deepseek_v3::DeepSeekV3;
pub use deepseek_v4::DeepSeekV4;
pub use glm::Glm5;
pub use gpt_oss::GptOss;
pub use kimi::{KimiK2, KimiVersion};
pub use known::{KNOWN, Known, by_name, known_of_model, of_model};
pub use llama3::Llama3;
pub use nemotron3::{Nemotron3, NemotronVersion};
pub use options::{Effort, RenderOptions};
pub use qwen3::Qwen3;
pub use qwen3_5::{Qwen35, QwenVersion};
pub use role_colon::RoleColon;
#[cfg(feature = "templates")]
pub use template::ChatTemplate;
pub use tml_v0::TmlV0;

use crate::response::{THINK, TOOL_CALL, TOOL_CALL_END};
use crate::{Conversation, Error, Response, Script, Vocabulary};
use std::fmt;

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

    /// Returns what a block of tool calls begins and ends with. While an answer is streamed, what
    /// follows a beginning is held back until its end.
    fn call_block(&self) -> (&'static str, &'static str) {
        (TOOL_CALL, TOOL_CALL_END)
    }

    /// Returns what of a conversation would not be written, as the message and what it has, or as what the whole
    /// conversation has. Nothing can be learned from what is left out.
    fn leaves_out(&self, _: &Conversation) -> Option<(Option<usize>, &'static str)> {
        None
    }

    /// Returns whether a prompt and the answer to it are the beginning of the next prompt, token by
    /// token: then all answers of a conversation can be trained in one example.
    ///
    /// Formats that drop or rewrite the thinking of earlier answers are not like this.
    fn extends(&self) -> bool {
        false
    }

    /// Returns whether an answer that begins like this may be a tool call as a whole, and so must not
    /// be shown before it is complete.
    fn may_be_call(&self, content: &str) -> bool {
        let _ = content;
        false
    }
}
