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

use super::{Format, RenderOptions};
use crate::json::{self, Json};
use crate::response::{PYTHON_TAG, THINK};
use crate::{Conversation, Error, Response, Role, Script};

const BEGIN: &str = "<|begin_of_text|>";
const END: &str = "<|eot_id|>";
const HEADER: &str = "<|start_header_id|>";
const HEADER_END: &str = "<|end_header_id|>";

/// `<|start_header_id|>user<|end_header_id|> …`
#[derive(Clone, Copy, Debug, Default)]
pub struct Llama3;

impl Format for Llama3 {
    fn name(&self) -> &'static str {
        "Llama 3"
    }

    fn needs(&self) -> &'static [&'static str] {
        &[BEGIN, END, HEADER, HEADER_END]
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
        options.refuse_thinking(self.name())?;
        write(script, conversation, options.open)
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        Response::from_json_or_text(text, finished)
    }

    fn extends(&self) -> bool {
        true
    }

    fn marks(&self) -> &'static [&'static str] {
        &[PYTHON_TAG, THINK]
    }

    fn may_be_call(&self, content: &str) -> bool {
        let content = content.trim_start();
        content.starts_with('{') || content.starts_with(PYTHON_TAG)
    }
}

fn write(script: &mut Script<'_>, conversation: &Conversation, open: bool) -> Result<(), Error> {
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
        script.content(Role::System, None);
        script.text(TOOLS_SYSTEM.trim_end()).tag(END).frame();
    }
    for (index, message) in messages.iter().enumerate() {
        let content = message.content.trim();
        match message.role {
            Role::System => {
                header(script, "system");
                script.content(message.role, Some(index));
                if index == 0 && !tools.is_empty() {
                    script.text(TOOLS_SYSTEM);
                }
                script.text(content).tag(END).frame();
            }
            Role::User => {
                header(script, "user");
                script.content(message.role, Some(index));
                if Some(index) == first_user && !tools.is_empty() {
                    script.text(TOOLS_USER);
                    for tool in tools {
                        let text = json::to_indented_text(tool, 4);
                        let text = text.map_err(|error| Error::Template(error.into()))?;
                        script.text(&text).text("\n\n");
                    }
                }
                script.text(content).tag(END).frame();
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
                script.content(message.role, Some(index));
                // The model's own template quotes results, being texts, as JSON.
                let quoted = Json::Text(message.content.clone()).to_string();
                script.text(&quoted).tag(END).frame();
            }
        }
    }
    if open {
        header(script, "assistant");
    }
    Ok(())
}

fn header(script: &mut Script<'_>, role: &str) {
    script.tag(HEADER).text(role);
    script.tag(HEADER_END).text("\n\n");
}

// The words that these models were trained with; any others would be a different prompt.
const TOOLS_SYSTEM: &str = "Environment: ipython\n";
const TOOLS_USER: &str = "Given the following functions, please respond with a JSON for a function \
    call with its proper arguments that best answers the given prompt.\n\nRespond in the format \
    {\"name\": function name, \"parameters\": dictionary of argument name and its value}.Do not \
    use variables.\n\n";
