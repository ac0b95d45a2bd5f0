//! gpt-oss: the harmony format.
//!
//! ```text
//! <|start|>user<|message|>How warm is it?<|end|><|start|>assistant
//! ```
//!
//! An answer has channels: `analysis` for thinking, `commentary` for tool calls and what is said before
//! them, `final` for the answer itself. It ends with `<|return|>`, or with `<|call|>` to have a tool
//! called. System messages are the developer's instructions here; the format's own system message says
//! how much to think.

use super::turns::{split_system, split_thinking, tool_name};
use super::typescript;
use super::{Effort, Format, RenderOptions};
use crate::{Conversation, Error, Json, Message, Response, Role, Script, ToolCall};

const START: &str = "<|start|>";
const END: &str = "<|end|>";
const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const RETURN: &str = "<|return|>";
const CALL: &str = "<|call|>";

/// `<|start|>user<|message|>…<|end|>`
#[derive(Clone, Debug, Default)]
pub struct GptOss {
    /// How much the model is to think. Without it there is no system message about it, and the model
    /// does as it was trained.
    pub effort: Option<Effort>,
    /// The day that the system message gives, such as `2026-01-31`. By default it gives none: what a
    /// run trains on must not depend on the day.
    pub date: Option<String>,
}

impl GptOss {
    fn system(
        &self,
        script: &mut Script<'_>,
        options: &RenderOptions,
        has_tools: bool,
    ) -> Result<(), Error> {
        let mut parts = Vec::new();
        if let Some(effort) = options.reasoning_effort.or(self.effort) {
            if effort == Effort::Max {
                return Err(Error::Option {
                    format: self.name(),
                    what: "such reasoning effort: it knows low, medium and high",
                });
            }
            let date = self.date.as_ref();
            let date = date.map_or(String::new(), |date| format!("\nCurrent date: {date}"));
            parts.push(format!(
                "{IDENTITY}{date}\n\nReasoning: {effort}\n\n{CHANNELS}"
            ));
        }
        if has_tools {
            parts.push(CALLS_GO_TO.to_owned());
        }
        if !parts.is_empty() {
            script.tag(START).text("system").content(Role::Tool, None);
            script.tag(MESSAGE).text(&parts.join("\n")).tag(END).frame();
        }
        Ok(())
    }
}

impl Format for GptOss {
    fn name(&self) -> &'static str {
        "gpt-oss"
    }

    fn needs(&self) -> &'static [&'static str] {
        &[START, END, MESSAGE, CHANNEL, RETURN, CALL]
    }

    fn stop_spellings(&self) -> &'static [&'static str] {
        &[RETURN, CALL]
    }

    fn write(
        &self,
        script: &mut Script<'_>,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<(), Error> {
        options.refuse_switch(self.name())?;
        options.refuse_preserve(self.name())?;
        let Conversation { messages, tools } = conversation;
        self.system(script, options, !tools.is_empty())?;
        let mut first = 0;
        if !tools.is_empty() {
            // Instructions and tools share the developer's message.
            let system;
            (system, first) = split_system(messages);
            script.tag(START).text("developer");
            script.content(Role::Tool, None).tag(MESSAGE);
            if let Some(system) = system {
                script.text(INSTRUCTIONS).text(&system.content).text("\n\n");
            }
            script
                .text(&typescript::harmony_tools(tools))
                .tag(END)
                .frame();
        }
        for index in first..messages.len() {
            let message = &messages[index];
            script.tag(START);
            match message.role {
                Role::System => {
                    script.text("developer").content(Role::System, Some(index));
                    script.tag(MESSAGE).text(INSTRUCTIONS);
                    script.text(&message.content).text("\n\n").tag(END).frame();
                }
                Role::User => {
                    script.text("user").content(Role::User, Some(index));
                    script.tag(MESSAGE).text(&message.content).tag(END).frame();
                }
                Role::Tool => {
                    let name = tool_name(messages, index).ok_or_else(|| Error::Message {
                        index,
                        problem: "gpt-oss writes which tool a result is from: give its `name`, or \
                            the `tool_call_id` of a call before it"
                            .to_owned(),
                    })?;
                    let name = name.strip_prefix("functions.").unwrap_or(name);
                    script.text("functions.").text(name).text(" to=assistant");
                    script.content(Role::Tool, Some(index));
                    script.tag(CHANNEL).text("commentary").tag(MESSAGE);
                    script.text(&message.content).tag(END).frame();
                }
                Role::Assistant => {
                    let last = index + 1 == messages.len() && !options.open;
                    write_answer(script, message, index, last);
                }
            }
        }
        if options.open {
            script.tag(START).text("assistant");
            if options.prefill.is_some() {
                script.tag(CHANNEL).text("final").tag(MESSAGE);
            }
        }
        Ok(())
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        parse(text, finished)
    }

    fn begun(&self, _: &str) -> &'static str {
        ""
    }

    fn marks(&self) -> &'static [&'static str] {
        &[END, START]
    }
}

fn write_answer(script: &mut Script<'_>, message: &Message, index: usize, last: bool) {
    let (thought, said) = split_thinking(message);
    script.text("assistant").answer(Some(index));
    if !thought.is_empty() {
        script.tag(CHANNEL).text("analysis").tag(MESSAGE);
        script.text(thought).tag(END).tag(START).text("assistant");
    }
    if message.tool_calls.is_empty() {
        script.tag(CHANNEL).text("final").tag(MESSAGE).text(said);
        script.tag(if last { RETURN } else { END });
    } else if !said.is_empty() {
        script.tag(CHANNEL).text("commentary").tag(MESSAGE);
        script.text(said).tag(END).tag(START).text("assistant");
    }
    for (position, call) in message.tool_calls.iter().enumerate() {
        if position > 0 {
            script.tag(START).text("assistant");
        }
        script.text(" to=functions.").text(&call.name);
        script.tag(CHANNEL).text("commentary ").tag(CONSTRAIN);
        script.text("json").tag(MESSAGE);
        script.text(&call.arguments.to_string()).tag(CALL);
    }
    script.frame();
}

fn parse(text: &str, finished: bool) -> Response {
    let mut message = Message::assistant("");
    let (mut thought, mut malformed_calls) = (String::new(), 0);
    let mut rest = text;
    while !rest.is_empty() {
        let ends = [END, CALL, RETURN];
        let end = ends
            .iter()
            .filter_map(|end| Some((rest.find(end)?, end.len())));
        let (part, closed) = match end.min() {
            Some((start, length)) => (&rest[..start + length], Some(length)),
            None => (rest, None),
        };
        rest = &rest[part.len()..];
        let (header, body) = match part.split_once(MESSAGE) {
            Some((header, body)) => (header, body),
            // A header that goes on, unless the prompt has written it and these are its words.
            None if part.contains(CHANNEL) || part.starts_with(START) => continue,
            None if part.starts_with(" to=") || " to=".starts_with(part) => continue,
            None if START.starts_with(part) => continue,
            None => ("", part),
        };
        let body = &body[..body.len() - closed.unwrap_or(0)];
        let recipient = header.split_once("to=functions.").map(|(_, name)| name);
        if let Some(name) = recipient {
            let end = |letter: char| letter.is_whitespace() || letter == '<';
            let name = name.split(end).next().unwrap_or_default();
            match Json::parse(body.trim()) {
                Ok(arguments) if !name.is_empty() => {
                    message.tool_calls.push(ToolCall::new(name, arguments));
                }
                // While an answer goes on, the rest of a call may still come.
                _ => {
                    malformed_calls += 1;
                    if closed.is_some() || finished {
                        message.content.push_str(part);
                    }
                }
            }
        } else if header.contains("<|channel|>analysis") {
            thought.push_str(body);
        } else {
            message.content.push_str(body);
        }
    }
    message.thinking = (!thought.is_empty()).then_some(thought);
    Response {
        message,
        finished,
        malformed_calls,
    }
}

const INSTRUCTIONS: &str = "# Instructions\n\n";

// The words that these models were trained with; any others would be a different prompt.
const IDENTITY: &str =
    "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06";
const CHANNELS: &str =
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.";
const CALLS_GO_TO: &str = "Calls to these tools must go to the commentary channel: 'functions'.";
