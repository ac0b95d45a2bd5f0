//! Plain text with speakers' names, for base models that know no chat format.
//!
//! ```text
//! User: How warm is it?
//!
//! Assistant: 20 degrees.
//!
//! User:
//! ```
//!
//! There are no control tokens, so the names themselves are the structure: an answer ends where
//! the model writes the next `User:`, which is therefore part of what it learns. A message that
//! spells such a name at the start of a paragraph would forge a message, and is refused.

use super::{Format, RenderOptions};
use crate::{Conversation, Error, Response, Role, Script, Vocabulary};

/// What the model writes when it has said its part.
const STOP: &str = "\n\nUser:";

/// `User: …`, for base models. It has no control tokens, tools or thinking.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoleColon;

impl Format for RoleColon {
    fn name(&self) -> &'static str {
        "plain text"
    }

    fn stop_text(&self) -> Option<&'static str> {
        Some(STOP)
    }

    fn ends_answer(&self, token: u32, _: &[u32], vocabulary: &Vocabulary) -> bool {
        // Base models end documents rather than messages.
        vocabulary.is_control(token)
    }

    fn write(
        &self,
        script: &mut Script<'_>,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<(), Error> {
        options.refuse_thinking(self.name())?;
        write(script, conversation, options.open)
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        match text.split_once(STOP) {
            Some((said, _)) => Response::from_words(said, true),
            None => Response::from_words(text, finished),
        }
    }

    fn begun(&self, _: &str) -> &'static str {
        ""
    }

    fn extends(&self) -> bool {
        true
    }

    fn marks(&self) -> &'static [&'static str] {
        &[STOP]
    }
}

fn write(script: &mut Script<'_>, conversation: &Conversation, open: bool) -> Result<(), Error> {
    if !conversation.tools.is_empty() {
        return Err(Error::Conversation {
            problem: "has tools, which plain text with speakers' names has no way to write".into(),
        });
    }
    if let Some(token) = script.vocabulary().begin_token() {
        script.token(token);
    }
    let messages = &conversation.messages;
    for (index, message) in messages.iter().enumerate() {
        let refuse = |problem: &str| Error::Message {
            index,
            problem: problem.to_owned(),
        };
        if !message.tool_calls.is_empty() || message.thinking.is_some() {
            return Err(refuse("plain text has no tool calls and no thinking"));
        }
        let text = message.content.trim();
        if let Some(label) = forged_label(text) {
            return Err(refuse(&format!(
                "a paragraph starts with `{label}`, like a new message"
            )));
        }
        // The label behind an answer was written by the model, as its way to stop.
        if !(index > 0 && messages[index - 1].role == Role::Assistant && message.role == Role::User)
        {
            script.text(label(message.role));
        }
        if message.role == Role::Assistant {
            script.answer(Some(index)).text(" ").text(text);
            let next_is_user = messages
                .get(index + 1)
                .is_none_or(|next| next.role == Role::User);
            script
                .text(if next_is_user { STOP } else { "\n\n" })
                .answer(None);
        } else {
            script.content(message.role, Some(index));
            script.text(" ").text(text).text("\n\n").frame();
        }
    }
    if open {
        script.text(label(Role::Assistant));
    }
    Ok(())
}

fn label(role: Role) -> &'static str {
    match role {
        Role::System => "System:",
        Role::User => "User:",
        Role::Assistant => "Assistant:",
        Role::Tool => "Tool:",
    }
}

fn forged_label(text: &str) -> Option<&'static str> {
    let roles = [Role::System, Role::User, Role::Assistant, Role::Tool];
    let paragraphs = || text.split("\n\n").skip(1).map(str::trim_start);
    let forged = |label: &&str| paragraphs().any(|paragraph| paragraph.starts_with(label));
    roles.map(label).into_iter().find(forged)
}
