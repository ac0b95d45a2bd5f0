//! Llama 3.
//!
//! ```text
//! <|begin_of_text|><|start_header_id|>user<|end_header_id|>
//!
//! How warm is it?<|eot_id|><|start_header_id|>assistant<|end_header_id|>
//!
//! ```
//!
//! Tool definitions go into the first user's message, a call is a JSON object as the whole
//! message, and results come from the role `ipython`. Unlike the template of Llama 3.1, this
//! adds no system message with dates: what a run trains on must not depend on the day.

use super::json;
use super::message::{Conversation, Role};
use super::script::Script;
use crate::Error;

pub(crate) const BEGIN: &str = "<|begin_of_text|>";
pub(crate) const END: &str = "<|eot_id|>";

/// Writes a conversation, and the beginning of an answer if `open`.
pub(crate) fn write(
    script: &mut Script<'_>,
    conversation: &Conversation,
    open: bool,
) -> Result<(), Error> {
    let Conversation { messages, tools } = conversation;
    let first_user = messages
        .iter()
        .position(|message| message.role == Role::User);
    if !tools.is_empty() && first_user.is_none() {
        return Err(Error::Conversation {
            problem: "has tools, but no user's message to define them in".to_owned(),
        });
    }
    script.tag(BEGIN);
    if !tools.is_empty() && messages[0].role != Role::System {
        header(script, "system");
        script.text(TOOLS_SYSTEM.trim_end()).tag(END);
    }
    for (index, message) in messages.iter().enumerate() {
        let content = message.content.trim();
        match message.role {
            Role::System => {
                header(script, "system");
                if index == 0 && !tools.is_empty() {
                    script.text(TOOLS_SYSTEM);
                }
                script.text(content).tag(END);
            }
            Role::User => {
                header(script, "user");
                if Some(index) == first_user && !tools.is_empty() {
                    script.text(TOOLS_USER);
                    for tool in tools {
                        let text = json::to_indented_text(tool, 4);
                        let text = text.map_err(|error| Error::Template(error.into()))?;
                        script.text(&text).text("\n\n");
                    }
                }
                script.text(content).tag(END);
            }
            Role::Assistant => {
                header(script, "assistant");
                script.answer(Some(index));
                match message.tool_calls.as_slice() {
                    [] => script.text(content),
                    [call] if content.is_empty() => {
                        let (name, arguments) = (&call.name, &call.arguments);
                        script.text(&format!(
                            "{{\"name\": \"{name}\", \"parameters\": {arguments}}}"
                        ))
                    }
                    _ => {
                        let problem = "Llama 3 writes one tool call and nothing else in a message";
                        return Err(Error::Message {
                            index,
                            problem: problem.to_owned(),
                        });
                    }
                };
                script.tag(END).answer(None);
            }
            Role::Tool => {
                header(script, "ipython");
                // The model's own template quotes results, being texts, as JSON.
                let quoted = json::Json::Text(message.content.clone()).to_string();
                script.text(&quoted).tag(END);
            }
        }
    }
    if open {
        header(script, "assistant");
    }
    Ok(())
}

fn header(script: &mut Script<'_>, role: &str) {
    script.tag("<|start_header_id|>").text(role);
    script.tag("<|end_header_id|>").text("\n\n");
}

// The words that these models were trained with; any others would be a different prompt.
const TOOLS_SYSTEM: &str = "Environment: ipython\n";
const TOOLS_USER: &str = "Given the following functions, please respond with a JSON for a function \
    call with its proper arguments that best answers the given prompt.\n\nRespond in the format \
    {\"name\": function name, \"parameters\": dictionary of argument name and its value}.Do not \
    use variables.\n\n";
