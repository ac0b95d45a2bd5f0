//! Nemotron 3 and 3.5: ChatML with a system message always, and an empty `<think></think>` wherever
//! an answer shows no thinking.
//!
//! Two families differ in the white space around thinking: Nano and Super of version 3, and all later
//! ones, which write as Ultra does.
//!
//! With thinking on, the prompt ends with `<think>\n`, but an answer without thinking is written
//! `<think></think>`: such an example does not begin with the prompt, which is how the models' own
//! template has it.

use super::chatml::{self, END, START, said};
use super::function_tags::{self, Scalars};
use super::turns::{
    function, last_user, members, python_text, split_system, split_thinking, text_member,
};
use super::{Effort, Format, RenderOptions};
use crate::response::{THINK, THINK_END, TOOL_CALL, TOOL_CALL_END};
use crate::{Conversation, Error, Json, Message, Response, Role, Script};

/// `<|im_start|>system …` always, with tools in tags.
#[derive(Clone, Copy, Debug)]
pub struct Nemotron3 {
    /// Which family of the models.
    pub version: NemotronVersion,
    /// Whether the model may think before it answers.
    pub thinking: bool,
    /// How much it is to think, if not as much as it takes.
    pub effort: Effort,
    /// Whether earlier answers keep their thinking.
    pub preserve_thinking: bool,
}

/// A family of Nemotron models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NemotronVersion {
    /// Nemotron 3 Nano and Super. Super also knows a low effort.
    Nano,
    /// Nemotron 3 Ultra and Nemotron 3.5. Ultra and 3.5 Super also know a medium effort.
    Ultra,
}

impl Nemotron3 {
    /// Makes the format of a family as its own template has it.
    pub fn new(version: NemotronVersion) -> Self {
        Self {
            version,
            thinking: true,
            effort: Effort::High,
            preserve_thinking: false,
        }
    }

    fn with(self, options: &RenderOptions) -> Result<Self, Error> {
        let effort = options.reasoning_effort.unwrap_or(self.effort);
        let what = match (self.version, effort) {
            (NemotronVersion::Nano, Effort::Low | Effort::High)
            | (NemotronVersion::Ultra, Effort::Medium | Effort::High) => None,
            (NemotronVersion::Nano, _) => Some("such reasoning effort: it knows low and high"),
            (NemotronVersion::Ultra, _) => Some("such reasoning effort: it knows medium and high"),
        };
        if let Some(what) = what {
            return Err(Error::Option {
                format: self.name(),
                what,
            });
        }
        Ok(Self {
            thinking: options.thinking.unwrap_or(self.thinking),
            preserve_thinking: options.preserve_thinking.unwrap_or(self.preserve_thinking),
            effort,
            ..self
        })
    }

    /// Returns what the last question ends with, to say how much to think.
    fn request(&self) -> &'static str {
        match self.effort {
            Effort::Low => "\n\n{reasoning effort: low}",
            Effort::Medium => "\n\n{reasoning effort: efficient}",
            Effort::High | Effort::Max => "",
        }
    }

    fn system(script: &mut Script<'_>, conversation: &Conversation) {
        let (system, _) = split_system(&conversation.messages);
        let text = system.map_or("", |system| system.content.as_str());
        script.tag(START).text("system\n");
        script.content(Role::System, system.map(|_| 0)).text(text);
        if !conversation.tools.is_empty() {
            let gap = if text.is_empty() { "" } else { "\n\n" };
            script.text(gap).trusted(function_tags::TOOLS_BEFORE);
            let tools: Vec<String> = conversation.tools.iter().map(declaration).collect();
            script.text(&tools.join("\n"));
            script.trusted(function_tags::TOOLS_AFTER);
        }
        script.tag(END).frame().text("\n");
    }

    fn answer(&self, script: &mut Script<'_>, messages: &[Message], index: usize) {
        let message = &messages[index];
        let (thought, text) = split_thinking(message);
        let (thought, text) = (thought.trim(), text.trim());
        let ultra = self.version == NemotronVersion::Ultra;
        let history = last_user(messages).is_some_and(|user| index < user);
        script.tag(START).text("assistant\n");
        if thought.is_empty() || (history && !self.preserve_thinking) {
            script.tag(THINK).tag(THINK_END);
            let dropped = !thought.is_empty() && !text.is_empty();
            if dropped && !ultra && message.tool_calls.is_empty() {
                script.text("\n");
            }
        } else {
            if !self.thinking {
                script.answer(Some(index));
            }
            script.tag(THINK).text("\n").answer(Some(index));
            script.text(thought).text(if ultra { "" } else { "\n" });
            script.tag(THINK_END).text(if ultra { "" } else { "\n" });
        }
        script.answer(Some(index)).text(text);
        for (position, call) in message.tool_calls.iter().enumerate() {
            // A block of thinking ends with the line break already.
            if position == 0 && (ultra || thought.is_empty() || !text.is_empty()) {
                script.text("\n");
            }
            function_tags::write(script, call, Scalars::Python);
            script.text("\n");
        }
        script.tag(END).frame().text("\n");
    }
}

impl Format for Nemotron3 {
    fn name(&self) -> &'static str {
        match self.version {
            NemotronVersion::Nano => "Nemotron 3",
            NemotronVersion::Ultra => "Nemotron 3 Ultra",
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
        Self::system(script, conversation);
        let last_user = last_user(messages);
        let (_, first) = split_system(messages);
        for index in first..messages.len() {
            let message = &messages[index];
            match message.role {
                Role::User if Some(index) == last_user => {
                    let text = format!("{}{}", message.content, format.request());
                    said(script, messages, index, &text);
                }
                Role::System | Role::User => said(script, messages, index, &message.content),
                Role::Assistant => format.answer(script, messages, index),
                Role::Tool => chatml::tool_result(script, messages, index, "", "\n"),
            }
        }
        if options.open {
            script.tag(START).text("assistant\n").tag(THINK);
            if format.thinking {
                script.text("\n");
            } else {
                script.tag(THINK_END);
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

    fn extends(&self) -> bool {
        self.preserve_thinking
    }
}

/// Returns a tool's definition in tags.
fn declaration(tool: &Json) -> String {
    let tool = function(tool);
    let mut lines = vec!["<function>".to_owned()];
    lines.push(tagged(
        "name",
        text_member(tool, "name").unwrap_or_default(),
    ));
    let described = text_member(tool, "description").unwrap_or_default().trim();
    if !described.is_empty() {
        lines.push(tagged("description", described));
    }
    lines.push("<parameters>".to_owned());
    let parameters = tool.get("parameters").unwrap_or(&Json::Null);
    for (name, fields) in parameters.get("properties").map_or(&[][..], members) {
        lines.push("<parameter>".to_owned());
        lines.push(tagged("name", name));
        for known in ["type", "description", "enum"] {
            match (known, fields.get(known)) {
                (_, None) => {}
                ("description", Some(value)) => {
                    lines.push(tagged(known, python_text(value).trim()));
                }
                (_, Some(value)) => lines.push(tagged(known, &python_text(value))),
            }
        }
        others(&mut lines, fields, &["name", "type", "description", "enum"]);
        lines.push("</parameter>".to_owned());
    }
    others(&mut lines, parameters, &["type", "properties", "required"]);
    if let Some(required) = parameters.get("required") {
        lines.push(tagged("required", &required.to_string()));
    }
    lines.push("</parameters>".to_owned());
    others(
        &mut lines,
        tool,
        &["type", "name", "description", "parameters"],
    );
    lines.push("</function>".to_owned());
    lines.join("\n")
}

/// Adds the members of an object that have no place of their own.
fn others(lines: &mut Vec<String>, object: &Json, known: &[&str]) {
    let others = members(object).iter();
    let others = others.filter(|(name, _)| !known.contains(&name.as_str()));
    lines.extend(others.map(|(name, value)| tagged(name, &python_text(value))));
}

fn tagged(tag: &str, text: &str) -> String {
    format!("<{tag}>{text}</{tag}>")
}
