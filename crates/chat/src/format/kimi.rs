//! Kimi K2 Thinking, K2.5 and K2.6.
//!
//! ```text
//! <|im_user|>user<|im_middle|>How warm is it?<|im_end|><|im_assistant|>assistant<|im_middle|>
//! ```
//!
//! Without a system message, the models' own template makes one up. Every answer has a `<think>` block;
//! behind the last answer that is not a tool call it keeps its thinking, before it is empty. K2.5 and
//! K2.6 declare tools in TypeScript, and their prompts open the block.

use super::turns::{is_role, split_thinking, tool_name};
use super::typescript;
use super::{Format, RenderOptions};
use crate::json::to_sorted_text;
use crate::response::{THINK, THINK_END};
use crate::{Conversation, Error, Json, Message, Response, Role, Script, ToolCall};

const SYSTEM: &str = "<|im_system|>";
const USER: &str = "<|im_user|>";
const ASSISTANT: &str = "<|im_assistant|>";
const MIDDLE: &str = "<|im_middle|>";
const END: &str = "<|im_end|>";
const CALLS: &str = "<|tool_calls_section_begin|>";
const CALLS_END: &str = "<|tool_calls_section_end|>";
const CALL: &str = "<|tool_call_begin|>";
const CALL_END: &str = "<|tool_call_end|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";

/// `<|im_user|>user<|im_middle|>…`
#[derive(Clone, Copy, Debug)]
pub struct KimiK2 {
    /// Which of the models' versions.
    pub version: KimiVersion,
    /// Whether the model may think before it answers.
    pub thinking: bool,
    /// Whether earlier answers keep their thinking.
    pub preserve_thinking: bool,
}

/// A version of Kimi K2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KimiVersion {
    /// Kimi K2 Thinking.
    K2,
    /// Kimi K2.5 and K2.6.
    K25,
}

impl KimiK2 {
    /// Makes the format of a version as its own template has it.
    pub fn new(version: KimiVersion) -> Self {
        Self {
            version,
            thinking: true,
            preserve_thinking: false,
        }
    }
}

impl Format for KimiK2 {
    fn name(&self) -> &'static str {
        match self.version {
            KimiVersion::K2 => "Kimi K2",
            KimiVersion::K25 => "Kimi K2.5",
        }
    }

    fn needs(&self) -> &'static [&'static str] {
        &[SYSTEM, USER, ASSISTANT, MIDDLE, END]
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
        if self.version == KimiVersion::K2 {
            options.refuse_switch(self.name())?;
        }
        let format = Self {
            thinking: options.thinking.unwrap_or(self.thinking),
            preserve_thinking: options.preserve_thinking.unwrap_or(self.preserve_thinking),
            ..*self
        };
        let Conversation { messages, tools } = conversation;
        if !tools.is_empty() {
            script.tag(SYSTEM).text("tool_declare").tag(MIDDLE);
            script
                .content(Role::Tool, None)
                .text(&format.declare(tools)?);
            script.tag(END).frame();
        }
        if !is_role(messages, Some(0), Role::System) {
            script.tag(SYSTEM).text("system").tag(MIDDLE);
            script.content(Role::System, None).text(DEFAULT_SYSTEM);
            script.tag(END).frame();
        }
        let turn = last_turn(messages, options.open);
        for (index, message) in messages.iter().enumerate() {
            match message.role {
                Role::System => header(script, SYSTEM, "system"),
                Role::User => header(script, USER, "user"),
                Role::Assistant => {
                    let keeps = format.preserve_thinking || index >= turn;
                    format.write_answer(script, message, index, keeps);
                    continue;
                }
                Role::Tool => {
                    header(script, SYSTEM, tool_name(messages, index).unwrap_or("tool"));
                    let id = message.tool_call_id.as_deref().unwrap_or_default();
                    script.text("## Return of ").text(id).text("\n");
                }
            }
            script.content(message.role, Some(index));
            script.text(&message.content).tag(END).frame();
        }
        if options.open {
            header(script, ASSISTANT, "assistant");
            format.open_thinking(script);
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
        self.preserve_thinking
    }
}

impl KimiK2 {
    /// Writes what a prompt begins of the block of thinking.
    fn open_thinking(&self, script: &mut Script<'_>) {
        if self.version == KimiVersion::K25 {
            script.tag(THINK);
            if !self.thinking {
                script.tag(THINK_END);
            }
        }
    }

    fn write_answer(&self, script: &mut Script<'_>, message: &Message, index: usize, keeps: bool) {
        let (thought, said) = split_thinking(message);
        let thought = if keeps { thought } else { "" };
        header(script, ASSISTANT, "assistant");
        let surprise = !self.thinking && !thought.is_empty();
        if self.version == KimiVersion::K2 || surprise {
            script.answer(Some(index));
        }
        script.tag(THINK);
        if self.thinking {
            script.answer(Some(index));
        }
        script.text(thought).tag(THINK_END);
        script.answer(Some(index)).text(said);
        if !message.tool_calls.is_empty() {
            script.tag(CALLS);
            for (position, call) in message.tool_calls.iter().enumerate() {
                let made_up = || format!("functions.{}:{position}", call.name);
                let id = call.id.clone().unwrap_or_else(made_up);
                script.tag(CALL).text(&id).tag(ARGUMENTS);
                script.text(&call.arguments.to_string()).tag(CALL_END);
            }
            script.tag(CALLS_END);
        }
        script.tag(END).frame();
    }

    fn declare(&self, tools: &[Json]) -> Result<String, Error> {
        if self.version == KimiVersion::K25 {
            return typescript::kimi_tools(tools);
        }
        let wrapped = tools.iter().map(|tool| match tool.get("function") {
            Some(_) => tool.clone(),
            None => Json::object([("type", Json::from("function")), ("function", tool.clone())]),
        });
        Ok(to_sorted_text(&Json::List(wrapped.collect())))
    }
}

fn header(script: &mut Script<'_>, role: &str, name: &str) {
    script.tag(role).text(name).tag(MIDDLE);
}

/// Returns where the turn begins whose answers keep their thinking: behind the last answer that calls
/// no tool. An example's last message is part of the turn, whatever it is.
fn last_turn(messages: &[Message], open: bool) -> usize {
    let before = if open {
        messages
    } else {
        &messages[..messages.len() - 1]
    };
    let answers =
        |message: &Message| message.role == Role::Assistant && message.tool_calls.is_empty();
    before.iter().rposition(answers).map_or(0, |last| last + 1)
}

fn read_calls(block: &str) -> Option<Vec<ToolCall>> {
    let (mut calls, mut rest) = (Vec::new(), block.trim());
    while let Some(inside) = rest.strip_prefix(CALL) {
        let (call, after) = inside.split_once(CALL_END)?;
        let (id, arguments) = call.split_once(ARGUMENTS)?;
        let id = id.trim();
        let name = id.split(':').next().unwrap_or_default();
        let name = name.split_once('.').map_or(name, |(_, name)| name);
        if name.is_empty() {
            return None;
        }
        let mut call = ToolCall::new(name, Json::parse(arguments.trim()).ok()?);
        call.id = Some(id.to_owned());
        calls.push(call);
        rest = after.trim_start();
    }
    (rest.is_empty() && !calls.is_empty()).then_some(calls)
}

// What the models' own template says for those who say nothing.
const DEFAULT_SYSTEM: &str = "You are Kimi, an AI assistant created by Moonshot AI.";
