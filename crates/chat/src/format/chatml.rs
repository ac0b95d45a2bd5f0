//! ChatML, and the way that models which speak it write tools.
//!
//! ```text
//! <|im_start|>user
//! How warm is it?<|im_end|>
//! <|im_start|>assistant
//! ```
//!
//! Tool definitions go into the system message, calls into `<tool_call>` blocks of JSON, and
//! results into `<tool_response>` blocks of a user's message. Qwen3 writes the same and adds
//! rules about thinking; see [`Qwen3`](super::Qwen3).

use super::{Format, Known, RenderOptions};
use crate::{Conversation, Error, Message, Response, Role, Script};
use std::sync::Arc;

pub(super) const START: &str = "<|im_start|>";
pub(super) const END: &str = "<|im_end|>";

/// `<|im_start|>user …`, with tools as Hermes models write them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatMl;

pub(super) const KNOWN: Known = Known {
    id: "chatml",
    make: || Arc::new(ChatMl),
    // Those of Qwen3 that are only instructed have no thinking in their template.
    fits: |model| {
        ["qwen2", "qwen3-", "smollm2", "minimind2"]
            .iter()
            .any(|family| model.contains(family))
    },
};

impl Format for ChatMl {
    fn name(&self) -> &'static str {
        "ChatML"
    }

    fn needs(&self) -> &'static [&'static str] {
        &[START, END]
    }

    fn stop_spellings(&self) -> &'static [&'static str] {
        &[END]
    }

    fn write(
        &self,
        script: &mut Script<'_>,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<(), Error> {
        options.refuse_thinking(self.name())?;
        write_with(script, conversation, |script, index| {
            let message = &conversation.messages[index];
            script.answer(Some(index));
            if let Some(thinking) = &message.thinking {
                think(script, thinking);
            }
            script.text(&message.content);
        });
        if options.open {
            script.tag(START).text("assistant\n");
        }
        Ok(())
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        Response::from_tagged_text(text, finished)
    }
}

/// Writes the parts that all ChatML formats share; `answer` writes what the assistant thinks and
/// says, and marks where its answer begins.
pub(super) fn write_with(
    script: &mut Script<'_>,
    conversation: &Conversation,
    answer: impl Fn(&mut Script<'_>, usize),
) {
    let Conversation { messages, tools } = conversation;
    let first_is_system = messages
        .first()
        .is_some_and(|first| first.role == Role::System);
    if !tools.is_empty() {
        script.tag(START).text("system\n");
        if first_is_system {
            script.text(&messages[0].content).text("\n\n");
        }
        script.trusted(TOOLS_BEFORE);
        for tool in tools {
            script.text("\n").text(&tool.to_string());
        }
        script.trusted(TOOLS_AFTER).tag(END).text("\n");
    }
    for (index, message) in messages.iter().enumerate() {
        match message.role {
            Role::System if index == 0 && !tools.is_empty() => {}
            Role::System | Role::User => {
                script.tag(START).text(message.role.name()).text("\n");
                script.text(&message.content).tag(END).text("\n");
            }
            Role::Assistant => {
                script.tag(START).text("assistant\n");
                answer(script, index);
                calls(script, message);
                script.tag(END).answer(None).text("\n");
            }
            Role::Tool => {
                let is_tool = |index: Option<usize>| {
                    let message = index.and_then(|index| messages.get(index));
                    message.is_some_and(|message| message.role == Role::Tool)
                };
                if !is_tool(index.checked_sub(1)) {
                    script.tag(START).text("user");
                }
                script.text("\n").tag("<tool_response>").text("\n");
                script.text(&message.content);
                script.text("\n").tag("</tool_response>");
                if !is_tool(Some(index + 1)) {
                    script.tag(END).text("\n");
                }
            }
        }
    }
}

/// Writes a block of thinking and the blank line behind it.
pub(super) fn think(script: &mut Script<'_>, thinking: &str) {
    script.tag("<think>").text("\n");
    script.text(thinking.trim_matches('\n'));
    script.text("\n").tag("</think>").text("\n\n");
}

fn calls(script: &mut Script<'_>, message: &Message) {
    for (index, call) in message.tool_calls.iter().enumerate() {
        if index > 0 || !message.content.is_empty() {
            script.text("\n");
        }
        let json = format!(
            "{{\"name\": \"{}\", \"arguments\": {}}}",
            call.name, call.arguments
        );
        script
            .tag("<tool_call>")
            .text("\n")
            .text(&json)
            .text("\n")
            .tag("</tool_call>");
    }
}

// The words that these models were trained with; any others would be a different prompt.
const TOOLS_BEFORE: &str = "# Tools\n\nYou may call one or more functions to assist with the user \
    query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>";
const TOOLS_AFTER: &str = "\n</tools>\n\nFor each function call, return a json object with function \
    name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": \
    <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
