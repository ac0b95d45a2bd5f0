//! Qwen3.5, 3.6 and 3.8: ChatML with thinking in every prompt and calls in `<function=…>` tags.
//!
//! The prompt itself opens `<think>`; with thinking turned off it closes it too. Answers behind the
//! last question keep their thinking, older ones lose it in 3.5 and 3.6 and keep it in 3.8. Qwen3.8 says
//! in the system message how much to think.

use super::chatml::{self, END, START, said};
use super::function_tags::{self, Scalars};
use super::qwen3::last_question;
use super::turns::{split_system, split_thinking};
use super::{Effort, Format, RenderOptions};
use crate::response::{THINK, THINK_END, TOOL_CALL, TOOL_CALL_END};
use crate::{Conversation, Error, Message, Response, Role, Script};

/// `<|im_start|>assistant\n<think>\n…`, with calls in tags.
#[derive(Clone, Copy, Debug)]
pub struct Qwen35 {
    /// Which of the models' versions.
    pub version: QwenVersion,
    /// Whether the model may think before it answers.
    pub thinking: bool,
    /// How much it is to think; for 3.8 only.
    pub effort: Effort,
    /// Whether earlier answers keep their thinking.
    pub preserve_thinking: bool,
}

/// A version of the Qwen3.5 format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QwenVersion {
    /// Qwen3.5, which writes `True` and `None` in calls.
    V35,
    /// Qwen3.6, which writes `true` and `null`.
    V36,
    /// Qwen3.8, with an effort in the system message.
    V38,
}

impl Qwen35 {
    /// Makes the format of a version as its own template has it.
    pub fn new(version: QwenVersion) -> Self {
        Self {
            version,
            thinking: true,
            effort: Effort::Max,
            preserve_thinking: version == QwenVersion::V38,
        }
    }

    fn with(self, options: &RenderOptions) -> Result<Self, Error> {
        if self.version != QwenVersion::V38 {
            options.refuse_effort(self.name())?;
        }
        Ok(Self {
            thinking: options.thinking.unwrap_or(self.thinking),
            effort: options.reasoning_effort.unwrap_or(self.effort),
            preserve_thinking: options.preserve_thinking.unwrap_or(self.preserve_thinking),
            ..self
        })
    }

    /// Returns what the system message says about how much to think.
    fn instruction(&self) -> &'static str {
        if self.version != QwenVersion::V38 || !self.thinking {
            return "";
        }
        match self.effort {
            Effort::High | Effort::Max => THINK_MUCH,
            Effort::Medium => "",
            Effort::Low => THINK_LITTLE,
        }
    }

    fn system(&self, script: &mut Script<'_>, conversation: &Conversation) {
        let (system, _) = split_system(&conversation.messages);
        let text = system.map_or("", |system| system.content.trim());
        let instruction = self.instruction();
        let silent = instruction.is_empty() && text.is_empty() && conversation.tools.is_empty();
        if silent && (system.is_none() || self.version == QwenVersion::V38) {
            return;
        }
        script.tag(START).text("system\n");
        script.content(Role::System, system.map(|_| 0));
        let mut gap = "";
        if !instruction.is_empty() {
            script.text(instruction);
            gap = "\n\n";
        }
        if !conversation.tools.is_empty() {
            script.text(gap).trusted(function_tags::TOOLS_BEFORE);
            let tools: Vec<String> = conversation.tools.iter().map(ToString::to_string).collect();
            script.text(&tools.join("\n"));
            script.trusted(function_tags::TOOLS_AFTER);
            gap = "\n\n";
        }
        if !text.is_empty() {
            script.text(gap).text(text);
        }
        script.tag(END).frame().text("\n");
    }

    fn answer(&self, script: &mut Script<'_>, messages: &[Message], index: usize) {
        let message = &messages[index];
        let (thought, text) = split_thinking(message);
        let (thought, text) = (thought.trim(), text.trim());
        let behind_question = last_question(messages).is_none_or(|question| index > question);
        let framed = match self.version {
            QwenVersion::V35 | QwenVersion::V36 => {
                behind_question || (self.preserve_thinking && !thought.is_empty())
            }
            QwenVersion::V38 => behind_question || self.preserve_thinking,
        };
        script.tag(START).text("assistant\n");
        if framed {
            // With thinking turned off the prompt closes the block, so a thought is a surprise.
            if !self.thinking && !thought.is_empty() {
                script.answer(Some(index));
            }
            script.tag(THINK).text("\n");
            // As history, an empty block is one text: its line breaks are one token.
            let last = index + 1 == messages.len();
            if self.thinking && (last || !thought.is_empty()) {
                script.answer(Some(index));
            }
            script.text(thought).text("\n").tag(THINK_END).text("\n\n");
        }
        script.answer(Some(index)).text(text);
        let scalars = match self.version {
            QwenVersion::V35 => Scalars::Python,
            QwenVersion::V36 | QwenVersion::V38 => Scalars::Json,
        };
        for (position, call) in message.tool_calls.iter().enumerate() {
            script.text(match position {
                0 if text.is_empty() => "",
                0 => "\n\n",
                _ => "\n",
            });
            function_tags::write(script, call, scalars);
        }
        script.tag(END).frame().text("\n");
    }
}

impl Format for Qwen35 {
    fn name(&self) -> &'static str {
        match self.version {
            QwenVersion::V35 => "Qwen3.5",
            QwenVersion::V36 => "Qwen3.6",
            QwenVersion::V38 => "Qwen3.8",
        }
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
        let format = self.with(options)?;
        let messages = &conversation.messages;
        format.system(script, conversation);
        let (_, first) = split_system(messages);
        for index in first..messages.len() {
            let message = &messages[index];
            match message.role {
                Role::System | Role::User => said(script, messages, index, message.content.trim()),
                Role::Assistant => format.answer(script, messages, index),
                Role::Tool => chatml::tool_result(script, messages, index, "\n", ""),
            }
        }
        if options.open {
            script.tag(START).text("assistant\n").tag(THINK).text("\n");
            if !format.thinking {
                script.text("\n").tag(THINK_END).text("\n\n");
            }
        }
        Ok(())
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        Response::from_blocks(
            text,
            finished,
            (TOOL_CALL, TOOL_CALL_END),
            function_tags::read,
        )
    }
}

// The words that these models were trained with; any others would be a different prompt.
const THINK_MUCH: &str = "Reasoning effort is set to xhigh. Please think carefully through the task, \
    validate key assumptions, consider plausible alternatives, and prioritize correctness, \
    consistency, and clarity in the final answer.";
const THINK_LITTLE: &str = "Reasoning effort is set to low. Keep your thinking brief and focused, \
    moving directly to the conclusion without unnecessary elaboration.";
