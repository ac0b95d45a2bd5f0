//! Inkling's format, `tml_v0`.
//!
//! ```text
//! <|message_user|><|content_text|>How warm is it?<|end_message|>
//! <|message_model|><|content_text|>20 degrees.<|end_message|><|content_model_end_sampling|>
//! ```
//!
//! An answer is as many messages as it has parts: thinking, words, tool calls. The model writes their
//! headers by itself, so a prompt ends with the message before. A system message says how much to
//! think, as a number from 0 to 1.

use super::turns::{function, members, split_thinking, tool_name};
use super::{Effort, Format, RenderOptions};
use crate::json::{to_compact_text, to_sorted_text};
use crate::{Conversation, Error, Json, Message, Response, Role, Script, ToolCall};

const SYSTEM: &str = "<|message_system|>";
const USER: &str = "<|message_user|>";
const MODEL: &str = "<|message_model|>";
const TOOL: &str = "<|message_tool|>";
const TEXT: &str = "<|content_text|>";
const THINKING: &str = "<|content_thinking|>";
const DECLARATION: &str = "<|content_xml|>";
const CALL: &str = "<|content_invoke_tool_json|>";
const CALL_TEXT: &str = "<|content_invoke_tool_text|>";
const END: &str = "<|end_message|>";
const END_OF_ANSWER: &str = "<|content_model_end_sampling|>";

/// `<|message_user|><|content_text|>…<|end_message|>`
#[derive(Clone, Copy, Debug)]
pub struct TmlV0 {
    /// How much the model is to think, in hundredths from 0 to 99.
    pub effort: u8,
}

impl Default for TmlV0 {
    fn default() -> Self {
        Self { effort: 90 }
    }
}

impl Format for TmlV0 {
    fn name(&self) -> &'static str {
        "tml_v0"
    }

    fn needs(&self) -> &'static [&'static str] {
        &[
            SYSTEM,
            USER,
            MODEL,
            TOOL,
            TEXT,
            THINKING,
            CALL,
            END,
            END_OF_ANSWER,
        ]
    }

    fn stop_spellings(&self) -> &'static [&'static str] {
        &[END_OF_ANSWER]
    }

    fn write(
        &self,
        script: &mut Script<'_>,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<(), Error> {
        options.refuse_preserve(self.name())?;
        let effort = match (options.thinking, options.reasoning_effort) {
            (Some(false), _) => 0,
            (_, None) => self.effort,
            (_, Some(Effort::Low)) => 20,
            (_, Some(Effort::Medium)) => 70,
            (_, Some(Effort::High)) => 90,
            (_, Some(Effort::Max)) => 99,
        };
        let Conversation { messages, tools } = conversation;
        let system = |message: &&Message| message.role == Role::System;
        let systems = messages.iter().take_while(system).count();
        for (index, message) in messages.iter().enumerate().take(systems.max(1)) {
            if message.role == Role::System {
                say(script, SYSTEM, index, message);
            }
            if index == 0 {
                write_tools(script, tools);
            }
        }
        script.tag(SYSTEM).tag(TEXT);
        script.content(Role::System, None);
        script.text("Thinking effort level: ").text(&number(effort));
        script.tag(END).frame();
        for (index, message) in messages.iter().enumerate().skip(systems) {
            match message.role {
                Role::System => say(script, SYSTEM, index, message),
                Role::User => say(script, USER, index, message),
                Role::Assistant => write_answer(script, message, index),
                Role::Tool => {
                    let name = tool_name(messages, index).unwrap_or_default();
                    script.tag(TOOL).text(name).tag(TEXT);
                    script.content(Role::Tool, Some(index));
                    script.text(&message.content).tag(END).frame();
                }
            }
        }
        if options.open && options.prefill.is_some() {
            script.tag(MODEL).tag(TEXT);
        }
        Ok(())
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        let mut message = Message::assistant("");
        let (mut thought, mut malformed_calls) = (String::new(), 0);
        let mut rest = text;
        while !rest.is_empty() {
            let (part, after, closed) = match rest.split_once(END) {
                Some((part, after)) => (part, after, true),
                None => (rest, "", false),
            };
            let whole = &rest[..rest.len() - after.len()];
            rest = after;
            let part = part.strip_prefix(MODEL).unwrap_or(part);
            if let Some((_, said)) = part.split_once(THINKING) {
                thought.push_str(said);
            } else if let Some((_, said)) = part.split_once(TEXT) {
                message.content.push_str(said);
            } else if let Some((_, call)) = part.split_once(CALL) {
                match read_call(call) {
                    Some(call) => message.tool_calls.push(call),
                    None => {
                        malformed_calls += 1;
                        // While an answer goes on, the rest of a call may still come.
                        if closed || finished {
                            message.content.push_str(whole);
                        }
                    }
                }
            } else if part.contains(CALL_TEXT) {
                malformed_calls += 1;
                message.content.push_str(whole);
            } else if closed || !is_header(whole) {
                // Words that the prompt has begun, or a header that does not say what follows.
                message.content.push_str(part);
            }
        }
        message.thinking = (!thought.is_empty()).then_some(thought);
        Response {
            message,
            finished,
            malformed_calls,
        }
    }

    fn begun(&self, _: &str) -> &'static str {
        ""
    }

    fn marks(&self) -> &'static [&'static str] {
        &[END, MODEL]
    }

    fn extends(&self) -> bool {
        true
    }
}

/// Returns whether a text may be the header of a part whose kind has not come yet.
fn is_header(text: &str) -> bool {
    text.starts_with(MODEL) || MODEL.starts_with(text)
}

fn say(script: &mut Script<'_>, role: &str, index: usize, message: &Message) {
    script
        .tag(role)
        .tag(TEXT)
        .content(message.role, Some(index));
    script.text(&message.content).tag(END).frame();
}

fn write_answer(script: &mut Script<'_>, message: &Message, index: usize) {
    let (thought, said) = split_thinking(message);
    script.answer(Some(index));
    if !thought.is_empty() {
        script.tag(MODEL).tag(THINKING).text(thought).tag(END);
    }
    if !said.is_empty() || message.tool_calls.is_empty() {
        script.tag(MODEL).tag(TEXT).text(said).tag(END);
    }
    for call in &message.tool_calls {
        let name = Json::from(call.name.as_str());
        let json = Json::object([("name", name), ("args", call.arguments.clone())]);
        script.tag(MODEL).text(&call.name).tag(CALL);
        script.text(&to_compact_text(&json)).tag(END);
    }
    script.tag(END_OF_ANSWER).frame();
}

fn read_call(text: &str) -> Option<ToolCall> {
    let json = Json::parse(text.trim()).ok()?;
    let name = json.get("name")?.as_str()?;
    Some(ToolCall::new(name, json.get("args")?.clone()))
}

fn write_tools(script: &mut Script<'_>, tools: &[Json]) {
    if tools.is_empty() {
        return;
    }
    let flat = tools.iter().map(|tool| {
        let mut members = members(function(tool)).to_vec();
        members.retain(|(name, _)| name != "type");
        members.push(("type".to_owned(), Json::from("function")));
        Json::Object(members)
    });
    script.tag(SYSTEM).text("tool_declare").tag(DECLARATION);
    script.content(Role::Tool, None);
    script.text(&to_sorted_text(&Json::List(flat.collect())));
    script.tag(END).frame();
}

/// Returns hundredths as a decimal number without needless digits: `0.9`, `0.25`, `0`.
fn number(hundredths: u8) -> String {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
