//! Qwen3: ChatML with thinking.
//!
//! Only answers behind the last question show their thinking; older ones lose it, and the last
//! answer has a `<think>` block even if nothing was thought. With thinking turned off, the empty
//! block is part of the prompt, so the model goes straight to its answer.

use super::chatml::{self, START};
use super::turns::split_thinking;
use super::{Format, RenderOptions};
use crate::{Conversation, Error, Message, Response, Role, Script};

/// ChatML with thinking.
#[derive(Clone, Copy, Debug)]
pub struct Qwen3 {
    /// Whether the model may think before it answers.
    pub thinking: bool,
}

impl Format for Qwen3 {
    fn name(&self) -> &'static str {
        "Qwen3"
    }

    fn needs(&self) -> &'static [&'static str] {
        &[START, chatml::END]
    }

    fn stop_spellings(&self) -> &'static [&'static str] {
        &[chatml::END]
    }

    fn write(
        &self,
        script: &mut Script<'_>,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<(), Error> {
        options.refuse_effort(self.name())?;
        options.refuse_preserve(self.name())?;
        let thinking = options.thinking.unwrap_or(self.thinking);
        write(script, conversation, options.open, thinking);
        Ok(())
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        Response::from_tagged_text(text, finished)
    }
}

fn write(script: &mut Script<'_>, conversation: &Conversation, open: bool, thinking: bool) {
    let messages = &conversation.messages;
    let last_question = last_question(messages).unwrap_or(messages.len().saturating_sub(1));
    chatml::write_with(script, conversation, |script, index| {
        let (thought, said) = split_thinking(&messages[index]);
        let last = index + 1 == messages.len();
        if index > last_question && (last || !thought.is_empty()) {
            if thinking || !thought.is_empty() {
                script.answer(Some(index));
            }
            chatml::think(script, thought);
            script
                .answer(Some(index))
                .text(said.trim_start_matches('\n'));
        } else {
            script.answer(Some(index)).text(said);
        }
    });
    if open {
        script.tag(START).text("assistant\n");
        if !thinking {
            chatml::think(script, "");
        }
    }
}

/// Returns where the last message is that asks something: a user's, unless it only spells out a
/// tool's result.
pub(super) fn last_question(messages: &[Message]) -> Option<usize> {
    let asks = |message: &Message| {
        let content = &message.content;
        let result =
            content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
        message.role == Role::User && !result
    };
    messages.iter().rposition(asks)
}
