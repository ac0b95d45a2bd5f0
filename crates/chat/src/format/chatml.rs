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

use super::turns::{is_role, split_system};
use super::{Format, RenderOptions};
use crate::response::{THINK, THINK_END, TOOL_CALL, TOOL_CALL_END};
use crate::{Conversation, Error, Message, Response, Role, Script};

pub(super) const START: &str = "<|im_start|>";
pub(super) const END: &str = "<|im_end|>";

/// `<|im_start|>user …`, with tools as Hermes models write them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatMl;

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

    fn extends(&self) -> bool {
        true
    }
}

/// Writes the parts that ChatML and Qwen3 share; `answer` writes what the assistant thinks and
/// says, and marks where its answer begins.
pub(super) fn write_with(
    script: &mut Script<'_>,
    conversation: &Conversation,
    answer: impl Fn(&mut Script<'_>, usize),
) {
    let Conversation { messages, tools } = conversation;
    let (system, _) = split_system(messages);
    if !tools.is_empty() {
        script.tag(START).text("system\n");
        script.content(Role::System, system.map(|_| 0));
        if let Some(system) = system {
            script.text(&system.content).text("\n\n");
        }
        script.trusted(TOOLS_BEFORE);
        for tool in tools {
            script.text("\n").text(&tool.to_string());
        }
        script.trusted(TOOLS_AFTER).tag(END).frame().text("\n");
    }
    for (index, message) in messages.iter().enumerate() {
        match message.role {
            Role::System if index == 0 && !tools.is_empty() => {}
            Role::System | Role::User => said(script, messages, index, &message.content),
            Role::Assistant => {
                script.tag(START).text("assistant\n");
                answer(script, index);
                calls(script, message);
                script.tag(END).frame().text("\n");
            }
            Role::Tool => tool_result(script, messages, index, "\n", ""),
        }
    }
}

/// Writes the message of a system or a user.
pub(super) fn said(script: &mut Script<'_>, messages: &[Message], index: usize, text: &str) {
    let role = messages[index].role;
    script.tag(START).text(role.name()).text("\n");
    script.content(role, Some(index)).text(text).tag(END);
    script.frame().text("\n");
}

/// Writes a tool's result; neighbouring ones share a user's message. `before` is written between
/// them, `behind` behind each.
pub(super) fn tool_result(
    script: &mut Script<'_>,
    messages: &[Message],
    index: usize,
    before: &str,
    behind: &str,
) {
    if is_role(messages, index.checked_sub(1), Role::Tool) {
        script.text(before);
    } else {
        script.tag(START).text("user\n");
    }
    script.content(Role::Tool, Some(index));
    script.tag("<tool_response>").text("\n");
    script.text(&messages[index].content);
    script.text("\n").tag("</tool_response>").text(behind);
    if is_role(messages, Some(index + 1), Role::Tool) {
        script.frame();
    } else {
        script.tag(END).frame().text("\n");
    }
}

/// Writes a block of thinking and the blank line behind it.
pub(super) fn think(script: &mut Script<'_>, thinking: &str) {
    script.tag(THINK).text("\n");
    script.text(thinking.trim_matches('\n'));
    script.text("\n").tag(THINK_END).text("\n\n");
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
        script.tag(TOOL_CALL).text("\n").text(&json).text("\n");
        script.tag(TOOL_CALL_END);
    }
}

// The words that these models were trained with; any others would be a different prompt.
const TOOLS_BEFORE: &str = "# Tools\n\nYou may call one or more functions to assist with the user \
    query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>";
const TOOLS_AFTER: &str = "\n</tools>\n\nFor each function call, return a json object with function \
    name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": \
    <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
