//! DeepSeek V4.1.
//!
//! ```text
//! <｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75 (…)
//!
//! Be brief.<｜User｜>How warm is it?<｜Assistant｜><think>
//! ```
//!
//! With thinking on, the system message says how much to think. Tool results and what the user says
//! beside them are one user's turn. Earlier answers lose their thinking, unless there are tools.

use super::deepseek_v3::{ASSISTANT, BEGIN, END, USER};
use super::turns::{function, in_call_order, members, split_thinking, text_or_json};
use super::{Effort, Format, RenderOptions};
use crate::response::{THINK, THINK_END};
use crate::{Conversation, Error, Json, Message, Response, Role, Script, ToolCall};

const SYSTEM: &str = "<｜System｜>";
const CALLS: &str = "<｜DSML｜ calls>";
const CALLS_END: &str = "</｜DSML｜ calls>";
const CALL: &str = "<｜DSML｜ invoke name=\"";
const CALL_END: &str = "</｜DSML｜ invoke>";
const PARAMETER: &str = "<｜DSML｜ parameter name=\"";
const PARAMETER_END: &str = "</｜DSML｜ parameter>";

/// `<｜System｜>…<｜User｜>…<｜Assistant｜><think>…`
#[derive(Clone, Copy, Debug)]
pub struct DeepSeekV4 {
    /// Whether the model may think before it answers.
    pub thinking: bool,
    /// How much it is to think.
    pub effort: Effort,
    /// Whether earlier answers keep their thinking.
    pub preserve_thinking: bool,
}

impl Default for DeepSeekV4 {
    fn default() -> Self {
        Self {
            thinking: true,
            effort: Effort::High,
            preserve_thinking: false,
        }
    }
}

impl DeepSeekV4 {
    /// Returns the number that the system message gives for an effort.
    fn budget(self) -> Result<&'static str, Error> {
        match self.effort {
            Effort::Low => Ok("50"),
            Effort::High => Ok("75"),
            Effort::Max => Ok("100"),
            Effort::Medium => Err(Error::Option {
                format: self.name(),
                what: "such reasoning effort: it knows low, high and max",
            }),
        }
    }
}

impl Format for DeepSeekV4 {
    fn name(&self) -> &'static str {
        "DeepSeek V4.1"
    }

    fn needs(&self) -> &'static [&'static str] {
        &[BEGIN, END, USER, ASSISTANT, SYSTEM]
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
        let format = Self {
            thinking: options.thinking.unwrap_or(self.thinking),
            effort: options.reasoning_effort.unwrap_or(self.effort),
            preserve_thinking: options.preserve_thinking.unwrap_or(self.preserve_thinking),
        };
        let Conversation { messages, tools } = conversation;
        let first_is_system = messages[0].role == Role::System;
        script.tag(BEGIN);
        if format.thinking || first_is_system || !tools.is_empty() {
            script.tag(SYSTEM);
        }
        if format.thinking {
            script.text("Reasoning Effort: ").text(format.budget()?);
            script.text(EFFORT_AFTER);
        }
        if first_is_system {
            script
                .content(Role::System, Some(0))
                .text(&messages[0].content);
        }
        if !tools.is_empty() {
            script
                .text("\n\n")
                .content(Role::System, first_is_system.then_some(0));
            write_tools(script, tools);
        }
        script.frame();
        let mut index = usize::from(first_is_system);
        // Whether the assistant is to speak: a turn of somebody else has just ended.
        let mut asked = false;
        while let Some(message) = messages.get(index) {
            match message.role {
                Role::System => {
                    script.tag(SYSTEM).content(Role::System, Some(index));
                    script.text(&message.content).frame();
                    (index, asked) = (index + 1, true);
                }
                Role::User | Role::Tool => {
                    let others = messages[index..].iter();
                    let length = others.take_while(|message| is_asked(message)).count();
                    script.tag(USER).content(message.role, Some(index));
                    write_turn(script, messages, index, length);
                    script.frame();
                    (index, asked) = (index + length, true);
                }
                Role::Assistant => {
                    let keeps = format.keeps_thinking(conversation, index);
                    if asked {
                        script
                            .tag(ASSISTANT)
                            .tag(if keeps { THINK } else { THINK_END });
                    }
                    write_answer(script, message, index, keeps);
                    (index, asked) = (index + 1, false);
                }
            }
        }
        if options.open && asked {
            script.tag(ASSISTANT);
            script.tag(if format.thinking { THINK } else { THINK_END });
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
        !self.thinking || self.preserve_thinking
    }
}

impl DeepSeekV4 {
    fn keeps_thinking(&self, conversation: &Conversation, index: usize) -> bool {
        let messages = &conversation.messages;
        let asks = |message: &Message| is_asked(message) || message.role == Role::System;
        let last = messages.iter().rposition(asks).filter(|last| {
            // The system message at the beginning asks nothing.
            *last > 0 || is_asked(&messages[0])
        });
        let all = self.preserve_thinking || !conversation.tools.is_empty();
        self.thinking && (all || last.is_none_or(|last| index > last))
    }
}

/// Returns whether a message belongs to a user's turn.
fn is_asked(message: &Message) -> bool {
    matches!(message.role, Role::User | Role::Tool)
}

/// Writes a user's turn; runs of tool results in it are sorted by the calls that they answer.
fn write_turn(script: &mut Script<'_>, messages: &[Message], start: usize, length: usize) {
    let turn = start..start + length;
    let results: Vec<usize> = turn
        .clone()
        .filter(|index| messages[*index].role == Role::Tool)
        .collect();
    let mut results = if messages[start].role == Role::Tool {
        in_call_order(messages, &results).into_iter()
    } else {
        results.into_iter()
    };
    for index in turn {
        if index > start {
            script.text("\n\n");
        }
        if messages[index].role == Role::Tool {
            let result = results.next().unwrap_or(index);
            script
                .trusted("<tool_result>")
                .text(&messages[result].content);
            script.trusted("</tool_result>");
        } else {
            script.text(&messages[index].content);
        }
    }
}

fn write_answer(script: &mut Script<'_>, message: &Message, index: usize, keeps_thinking: bool) {
    let (thought, said) = split_thinking(message);
    script.answer(Some(index));
    if keeps_thinking {
        script.text(thought).tag(THINK_END);
    }
    script.text(said);
    if !message.tool_calls.is_empty() {
        script.text("\n\n").trusted(CALLS).text("\n");
        for call in &message.tool_calls {
            script.trusted(CALL).text(&call.name).text("\">\n");
            let parameters = members(&call.arguments);
            for (name, value) in parameters {
                let string = matches!(value, Json::Text(_));
                script.trusted(PARAMETER).text(name);
                script
                    .text("\" string=\"")
                    .text(&string.to_string())
                    .text("\">");
                script
                    .text(&text_or_json(value))
                    .trusted(PARAMETER_END)
                    .text("\n");
            }
            if parameters.is_empty() {
                script.text("\n");
            }
            script.trusted(CALL_END).text("\n");
        }
        script.trusted(CALLS_END);
    }
    script.tag(END).frame();
}

fn read_calls(block: &str) -> Option<Vec<ToolCall>> {
    let (mut calls, mut rest) = (Vec::new(), block.trim());
    while let Some(inside) = rest.strip_prefix(CALL) {
        let (call, after) = inside.split_once(CALL_END)?;
        let (name, mut parameters) = call.split_once("\">")?;
        let mut arguments: Vec<(String, Json)> = Vec::new();
        while let Some(inside) = parameters.trim_start().strip_prefix(PARAMETER) {
            let (parameter, after) = inside.split_once(PARAMETER_END)?;
            let (key, typed) = parameter.split_once("\" string=\"")?;
            let (string, value) = typed.split_once("\">")?;
            let value = match string {
                "true" => Json::from(value),
                "false" => Json::parse(value).ok()?,
                _ => return None,
            };
            if key.trim().is_empty() || arguments.iter().any(|(known, _)| known == key) {
                return None;
            }
            arguments.push((key.to_owned(), value));
            parameters = after;
        }
        if !parameters.trim().is_empty() || name.trim().is_empty() {
            return None;
        }
        calls.push(ToolCall::new(name, Json::Object(arguments)));
        rest = after.trim_start();
    }
    (rest.is_empty() && !calls.is_empty()).then_some(calls)
}

fn write_tools(script: &mut Script<'_>, tools: &[Json]) {
    script.trusted(TOOLS_BEFORE);
    let tools: Vec<String> = tools
        .iter()
        .map(|tool| function(tool).to_string())
        .collect();
    script.text(&tools.join("\n")).text(TOOLS_AFTER);
}

// The words that this model was trained with; any others would be a different prompt.
const EFFORT_AFTER: &str =
    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
const TOOLS_BEFORE: &str = "## Tools\n\nYou have access to a set of tools to help answer the user's \
    question. You can invoke tools by writing a \"<｜DSML｜ calls>\" block like the following:\n\n\
    <｜DSML｜ calls>\n<｜DSML｜ invoke name=\"$TOOL_NAME\">\n<｜DSML｜ parameter \
    name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜ parameter>\n...\n\
    </｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"$TOOL_NAME2\">\n...\n</｜DSML｜ invoke>\n\
    </｜DSML｜ calls>\n\nString parameters should be specified as is and set `string=\"true\"`. For all \
    other types (numbers, booleans, arrays, objects), pass the value in JSON format and set \
    `string=\"false\"`.\n\nIf thinking_mode is enabled (triggered by <think>), you MUST output your \
    complete reasoning inside <think>...</think> BEFORE any tool calls or final response.\n\n\
    Otherwise, output directly after </think> with tool calls or final response.\n\n### Available \
    Tool Schemas\n\n";
const TOOLS_AFTER: &str = "\n\nYou MUST strictly follow the above defined tool name and parameter \
    schemas to invoke tool calls.\n";
