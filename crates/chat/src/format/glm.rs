//! GLM-5.3.
//!
//! ```text
//! [gMASK]<sop><|system|>Reasoning Effort: Max<|user|>How warm is it?<|assistant|><think>
//! ```
//!
//! Nothing ends a message but the next one's role: an answer ends where the model writes `<|user|>`,
//! or `<|observation|>` behind tool calls, which is therefore part of what it learns. There is no way
//! to turn thinking off.

use super::turns::{
    function, in_call_order, is_role, json_or_text, last_user, members, split_thinking,
    text_or_json,
};
use super::{Effort, Format, RenderOptions};
use crate::response::{THINK, THINK_END, TOOL_CALL, TOOL_CALL_END};
use crate::{Conversation, Error, Json, Message, Response, Role, Script, ToolCall};

const MASK: &str = "[gMASK]";
const BEGIN: &str = "<sop>";
const SYSTEM: &str = "<|system|>";
const USER: &str = "<|user|>";
const ASSISTANT: &str = "<|assistant|>";
const OBSERVATION: &str = "<|observation|>";
const END_OF_TEXT: &str = "<|endoftext|>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

/// `<|user|>…<|assistant|><think>…`
#[derive(Clone, Copy, Debug)]
pub struct Glm5 {
    /// How much the model is to think.
    pub effort: Effort,
    /// Whether earlier answers keep their thinking.
    pub preserve_thinking: bool,
}

impl Default for Glm5 {
    fn default() -> Self {
        Self {
            effort: Effort::Max,
            preserve_thinking: true,
        }
    }
}

impl Format for Glm5 {
    fn name(&self) -> &'static str {
        "GLM-5.3"
    }

    fn needs(&self) -> &'static [&'static str] {
        &[MASK, BEGIN, SYSTEM, USER, ASSISTANT, OBSERVATION]
    }

    fn stop_spellings(&self) -> &'static [&'static str] {
        &[USER, OBSERVATION, END_OF_TEXT]
    }

    fn write(
        &self,
        script: &mut Script<'_>,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<(), Error> {
        options.refuse_switch(self.name())?;
        let effort = match options.reasoning_effort.unwrap_or(self.effort) {
            Effort::Low => "Low",
            Effort::High => "High",
            Effort::Max => "Max",
            Effort::Medium => {
                return Err(Error::Option {
                    format: self.name(),
                    what: "such reasoning effort: it knows low, high and max",
                });
            }
        };
        let preserve = options.preserve_thinking.unwrap_or(self.preserve_thinking);
        let Conversation { messages, tools } = conversation;
        script.tag(MASK).tag(BEGIN).tag(SYSTEM);
        script.text("Reasoning Effort: ").text(effort);
        write_tools(script, tools);
        let last_user = last_user(messages);
        let mut index = 0;
        while let Some(message) = messages.get(index) {
            match message.role {
                Role::System => {
                    script.tag(SYSTEM).content(Role::System, Some(index));
                    script.text(&message.content).frame();
                }
                Role::User => {
                    if !ends_with_role_of(messages, index) {
                        script.tag(USER);
                    }
                    script.content(Role::User, Some(index));
                    script.text(&message.content).frame();
                }
                Role::Assistant => {
                    let keeps = preserve || last_user.is_none_or(|user| index > user);
                    write_answer(script, message, index, keeps);
                    let end = end_of_answer(message);
                    let ended = match messages.get(index + 1) {
                        Some(next) => role_tag(next.role) == Some(end),
                        None => !options.open,
                    };
                    if ended {
                        script.tag(end);
                    }
                    script.frame();
                }
                Role::Tool => {
                    if !ends_with_role_of(messages, index) {
                        script.tag(OBSERVATION);
                    }
                    let run = messages[index..].iter();
                    let run = run.take_while(|message| message.role == Role::Tool).count();
                    let results: Vec<usize> = (index..index + run).collect();
                    for result in in_call_order(messages, &results) {
                        script.content(Role::Tool, Some(result));
                        script
                            .tag("<tool_response>")
                            .text(&messages[result].content);
                        script.tag("</tool_response>").frame();
                    }
                    index += run - 1;
                }
            }
            index += 1;
        }
        if options.open {
            script.tag(ASSISTANT).tag(THINK);
        }
        Ok(())
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        Response::from_blocks(text, finished, (TOOL_CALL, TOOL_CALL_END), read_call)
    }

    fn extends(&self) -> bool {
        self.preserve_thinking
    }
}

/// Returns what the model writes to end an answer.
fn end_of_answer(message: &Message) -> &'static str {
    if message.tool_calls.is_empty() {
        USER
    } else {
        OBSERVATION
    }
}

fn role_tag(role: Role) -> Option<&'static str> {
    match role {
        Role::User => Some(USER),
        Role::Tool => Some(OBSERVATION),
        Role::System | Role::Assistant => None,
    }
}

/// Returns whether the answer before a message has ended with the message's role.
fn ends_with_role_of(messages: &[Message], index: usize) -> bool {
    let before = index.checked_sub(1);
    is_role(messages, before, Role::Assistant)
        && before.is_some_and(|before| {
            role_tag(messages[index].role) == Some(end_of_answer(&messages[before]))
        })
}

fn write_answer(script: &mut Script<'_>, message: &Message, index: usize, keeps_thinking: bool) {
    let (thought, said) = split_thinking(message);
    script.tag(ASSISTANT).tag(THINK).answer(Some(index));
    script.text(if keeps_thinking { thought } else { "" });
    script.tag(THINK_END).text(said.trim());
    for call in &message.tool_calls {
        script.tag(TOOL_CALL).text(&call.name);
        for (key, value) in members(&call.arguments) {
            script.tag(KEY).text(key).tag(KEY_END);
            script.tag(VALUE).text(&text_or_json(value)).tag(VALUE_END);
        }
        script.tag(TOOL_CALL_END);
    }
}

fn read_call(block: &str) -> Option<Vec<ToolCall>> {
    let (name, mut rest) = match block.find(KEY) {
        Some(start) => block.split_at(start),
        None => (block, ""),
    };
    let name = name.trim();
    let allowed = |letter: char| letter.is_alphanumeric() || "_-.".contains(letter);
    if name.is_empty() || !name.chars().all(allowed) {
        return crate::response::json_call(block.trim());
    }
    let mut arguments = Vec::new();
    while let Some(inside) = rest.trim_start().strip_prefix(KEY) {
        let (key, after) = inside.split_once(KEY_END)?;
        let value = after.trim_start().strip_prefix(VALUE)?;
        let (value, after) = value.split_once(VALUE_END)?;
        if key.trim().is_empty() {
            return None;
        }
        arguments.push((key.trim().to_owned(), json_or_text(value)));
        rest = after;
    }
    let whole = rest.trim().is_empty();
    whole.then(|| vec![ToolCall::new(name, Json::Object(arguments))])
}

fn write_tools(script: &mut Script<'_>, tools: &[Json]) {
    if tools.is_empty() {
        return;
    }
    script.tag(SYSTEM).content(Role::System, None);
    script.trusted(TOOLS_BEFORE);
    for tool in tools.iter().map(function) {
        if tool.get("defer_loading") == Some(&Json::Bool(true)) {
            continue;
        }
        let shown = members(tool).iter();
        let shown = shown.filter(|(name, _)| name != "defer_loading" && name != "strict");
        let shown = Json::Object(shown.cloned().collect());
        script.text(&shown.to_string()).text("\n");
    }
    script.trusted(TOOLS_AFTER).frame();
}

// The words that this model was trained with; any others would be a different prompt.
const TOOLS_BEFORE: &str = "\n# Tools\n\nYou may call one or more functions to assist with the user \
    query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
const TOOLS_AFTER: &str = "</tools>\n\nFor each function call, output the function name and arguments \
    within the following XML format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>\
    <arg_value>{arg-value-1}</arg_value><arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}\
    </arg_value>...</tool_call>";
