//! DeepSeek V3.1.
//!
//! ```text
//! <｜begin▁of▁sentence｜>Be brief.<｜User｜>How warm is it?<｜Assistant｜></think>
//! ```
//!
//! `</think>` in front of an answer says that it is given without thinking; a prompt that ends with
//! `<think>` asks for some. Tool results follow the call directly, and the answer follows them.

use super::turns::{function, is_role, split_thinking, text_member};
use super::{Format, RenderOptions};
use crate::response::{THINK, THINK_END};
use crate::{Conversation, Error, Json, Message, Response, Role, Script, ToolCall};

pub(super) const BEGIN: &str = "<｜begin▁of▁sentence｜>";
pub(super) const END: &str = "<｜end▁of▁sentence｜>";
pub(super) const USER: &str = "<｜User｜>";
pub(super) const ASSISTANT: &str = "<｜Assistant｜>";
const CALLS: &str = "<｜tool▁calls▁begin｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const OUTPUT: &str = "<｜tool▁output▁begin｜>";
const OUTPUT_END: &str = "<｜tool▁output▁end｜>";

/// `<｜User｜>…<｜Assistant｜></think>…`
#[derive(Clone, Copy, Debug, Default)]
pub struct DeepSeekV3 {
    /// Whether the model may think before it answers.
    pub thinking: bool,
}

impl Format for DeepSeekV3 {
    fn name(&self) -> &'static str {
        "DeepSeek V3.1"
    }

    fn needs(&self) -> &'static [&'static str] {
        &[BEGIN, END, USER, ASSISTANT]
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
        options.refuse_effort(self.name())?;
        options.refuse_preserve(self.name())?;
        let thinking = options.thinking.unwrap_or(self.thinking);
        let Conversation { messages, tools } = conversation;
        script.tag(BEGIN);
        let has_system = is_role(messages, Some(0), Role::System);
        if !tools.is_empty() && !has_system {
            script.content(Role::System, None);
            write_tools(script, tools);
            script.frame();
        }
        for (index, message) in messages.iter().enumerate() {
            match message.role {
                Role::System if index > 0 => {
                    let problem = "DeepSeek V3.1 has a system message at the beginning only";
                    return Err(Error::Message {
                        index,
                        problem: problem.to_owned(),
                    });
                }
                Role::System => {
                    script.content(Role::System, Some(0)).text(&message.content);
                    write_tools(script, tools);
                    script.frame();
                }
                Role::User => {
                    script.tag(USER).content(Role::User, Some(index));
                    script.text(&message.content).frame();
                }
                Role::Tool => {
                    script.tag(OUTPUT).content(Role::Tool, Some(index));
                    script.text(&message.content).tag(OUTPUT_END).frame();
                }
                Role::Assistant => write_answer(script, messages, index, thinking),
            }
        }
        if options.open && !is_role(messages, messages.len().checked_sub(1), Role::Tool) {
            script.tag(ASSISTANT);
            script.tag(if thinking { THINK } else { THINK_END });
        }
        Ok(())
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        Response::from_blocks(text, finished, self.call_block(), read_calls)
    }

    fn call_block(&self) -> (&'static str, &'static str) {
        (CALLS, CALLS_END)
    }

    fn marks(&self) -> &'static [&'static str] {
        &[CALLS, THINK]
    }

    fn extends(&self) -> bool {
        !self.thinking
    }
}

fn write_answer(script: &mut Script<'_>, messages: &[Message], index: usize, thinking: bool) {
    let message = &messages[index];
    let (thought, said) = split_thinking(message);
    let last = index + 1 == messages.len();
    if !is_role(messages, index.checked_sub(1), Role::Tool) {
        script.tag(ASSISTANT);
        if thinking && last {
            script.tag(THINK).answer(Some(index)).text(thought);
        }
        script.tag(THINK_END);
    }
    script.answer(Some(index)).text(said);
    if !message.tool_calls.is_empty() {
        script.tag(CALLS);
        for call in &message.tool_calls {
            script.tag(CALL).text(&call.name).tag(SEPARATOR);
            script.text(&call.arguments.to_string()).tag(CALL_END);
        }
        script.tag(CALLS_END);
    }
    script.tag(END).frame();
}

fn read_calls(block: &str) -> Option<Vec<ToolCall>> {
    let (mut calls, mut rest) = (Vec::new(), block.trim());
    while let Some(inside) = rest.strip_prefix(CALL) {
        let (call, after) = inside.split_once(CALL_END)?;
        let (name, arguments) = call.split_once(SEPARATOR)?;
        let arguments = Json::parse(arguments.trim()).ok()?;
        calls.push(ToolCall::new(name.trim(), arguments));
        rest = after.trim_start();
    }
    (rest.is_empty() && !calls.is_empty()).then_some(calls)
}

fn write_tools(script: &mut Script<'_>, tools: &[Json]) {
    if tools.is_empty() {
        return;
    }
    script.text("\n\n## Tools\nYou have access to the following tools:\n");
    for tool in tools {
        let tool = function(tool);
        let text = |name| text_member(tool, name).unwrap_or_default();
        script.text("\n### ").text(text("name"));
        script.text("\nDescription: ").text(text("description"));
        let parameters = tool.get("parameters").unwrap_or(&Json::Null);
        script
            .text("\n\nParameters: ")
            .text(&parameters.to_string());
    }
    script.trusted(TOOLS_AFTER);
}

// The words that this model was trained with; any others would be a different prompt.
const TOOLS_AFTER: &str = "\n\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n\
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments\
    <｜tool▁call▁end｜><｜tool▁calls▁end｜>\n\nWhere:\n- `tool_call_name` must be an exact match to one \
    of the available tools\n- `tool_call_arguments` must be valid JSON that strictly follows the \
    tool's Parameters Schema\n- For multiple tool calls, chain them directly without separators or \
    spaces";
