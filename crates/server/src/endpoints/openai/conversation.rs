//! From the messages and tools of the OpenAI API to a conversation.

use tinkrs_chat::{Conversation, Effort, Json, Message, RenderOptions, Role, ToolCall};
use tinkrs_wire::openai::chat::{
    ChatCompletionRequest, ChatMessage, ChatRole, Content, FunctionDefinition, PartKind,
    ToolChoice, ToolDefinition,
};

use super::found;
use super::missing;
use crate::endpoints::calls::{self, Callable};
use crate::endpoints::question::{AnswerShape, OptionNames};
use crate::error::ApiError;

/// Most tools of a request, as the OpenAI API has it.
const MOST_TOOLS: usize = 128;
const LONGEST_NAME: usize = 64;

/// Reads a conversation. `ordered_tools` are its tools with their members in the order in which they were sent: they are
/// written into the prompt like that.
pub(super) fn conversation(
    request: &ChatCompletionRequest,
    ordered_tools: Vec<Json>,
) -> Result<Conversation, ApiError> {
    let messages = request.messages.as_deref().unwrap_or_default();
    let messages = messages.iter().enumerate();
    let messages = messages.map(|(index, sent)| message(index, sent));
    let mut conversation = Conversation::from(messages.collect::<Result<Vec<_>, _>>()?);
    let tools = request.tools.as_deref().unwrap_or_default();
    let is_forced = forced(request.tool_choice.as_ref(), tools)?.is_some();
    let may_call = may_call(request.tool_choice.as_ref());
    check_tools(tools, may_call && !is_forced)?;
    if may_call {
        conversation.tools = ordered_tools;
    }
    Ok(conversation)
}

/// Returns the tools as they were sent.
pub(super) fn ordered_tools(body: &[u8]) -> Vec<Json> {
    let body: Option<Json> = serde_json::from_slice(body).ok();
    match body.as_ref().and_then(|body| body.get("tools")) {
        Some(Json::List(tools)) => tools.clone(),
        _ => Vec::new(),
    }
}

/// Checks what is offered. `is_free` says that a call may be made and does not have to.
fn check_tools(tools: &[ToolDefinition], is_free: bool) -> Result<(), ApiError> {
    if tools.len() > MOST_TOOLS {
        return Err(found(
            "tools",
            format!("{} tools", tools.len()),
            "at most 128",
        ));
    }
    for (index, tool) in tools.iter().enumerate() {
        let member = |name: &str| format!("tools[{index}].{name}");
        let name = &tool.function.name;
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_letter) {
            let expected = "1 to 64 letters, digits, `_`, `-` and `.`";
            return Err(found(
                &member("function.name"),
                format!("`{name}`"),
                expected,
            ));
        }
        if tools[..index]
            .iter()
            .any(|other| other.function.name == *name)
        {
            let expected = "each name once";
            return Err(found(
                &member("function.name"),
                format!("`{name}` again"),
                expected,
            ));
        }
        let parameters = tool.function.parameters.as_ref();
        let kind = parameters.and_then(|parameters| parameters.get("type"));
        if let Some(kind) = kind.filter(|kind| *kind != "object") {
            let member = member("function.parameters.type");
            return Err(found(&member, kind, "`object`: arguments have names"));
        }
        // The arguments of a call that has to be made keep to its schema.
        if tool.function.strict == Some(true) && is_free {
            let expected = "false, or a `tool_choice` that asks for a call";
            return Err(found(&member("function.strict"), true, expected));
        }
    }
    Ok(())
}

/// Returns whether tools are offered.
fn may_call(choice: Option<&ToolChoice>) -> bool {
    !matches!(choice, Some(ToolChoice::Mode(mode)) if mode == "none")
}

/// Returns the functions of which one has to be called, if one has to.
fn forced<'a>(
    choice: Option<&ToolChoice>,
    tools: &'a [ToolDefinition],
) -> Result<Option<Vec<&'a FunctionDefinition>>, ApiError> {
    let member = "tool_choice";
    let mut functions = tools.iter().map(|tool| &tool.function);
    match choice {
        None => Ok(None),
        Some(ToolChoice::Mode(mode)) => match mode.as_str() {
            "auto" | "none" => Ok(None),
            "required" if tools.is_empty() => {
                Err(found(member, "`required`", "it with `tools` only"))
            }
            "required" => Ok(Some(functions.collect())),
            other => {
                let expected = "`auto`, `none`, `required` or a function";
                Err(found(member, format!("`{other}`"), expected))
            }
        },
        Some(ToolChoice::Function(named)) => {
            let name = &named.function.name;
            match functions.find(|known| known.name == *name) {
                Some(function) => Ok(Some(vec![function])),
                None => Err(found(member, format!("`{name}`"), "one of `tools`")),
            }
        }
    }
}

fn message(index: usize, sent: &ChatMessage) -> Result<Message, ApiError> {
    let role = match sent.role {
        ChatRole::System | ChatRole::Developer => Role::System,
        ChatRole::User => Role::User,
        ChatRole::Assistant => Role::Assistant,
        ChatRole::Tool => Role::Tool,
    };
    let member = |name: &str| format!("messages[{index}].{name}");
    let content = match &sent.content {
        Some(content) => text(content, &member("content"))?,
        None if role == Role::Assistant => String::new(),
        None => {
            return Err(ApiError::bad_request(format!(
                "`{}` is missing",
                member("content")
            )));
        }
    };
    let mut message = Message::new(role, content);
    message.thinking.clone_from(&sent.reasoning_content);
    message.name.clone_from(&sent.name);
    message.tool_call_id.clone_from(&sent.tool_call_id);
    if let Some(refusal) = sent.refusal.as_ref().filter(|_| message.content.is_empty()) {
        message.content.clone_from(refusal);
    }
    let calls = sent.tool_calls.as_deref().unwrap_or_default();
    if !calls.is_empty() && role != Role::Assistant {
        let who = format!("calls of `{role}`");
        return Err(found(
            &member("tool_calls"),
            who,
            "them with `assistant` only",
        ));
    }
    if role == Role::Tool && sent.tool_call_id.is_none() {
        return Err(ApiError::bad_request(format!(
            "`{}` is missing",
            member("tool_call_id")
        )));
    }
    for (place, call) in calls.iter().enumerate() {
        let text = call.function.arguments.trim();
        let text = if text.is_empty() { "{}" } else { text };
        let arguments = Json::parse(text).map_err(|error| {
            let member = member(&format!("tool_calls[{place}].function.arguments"));
            found(
                &member,
                format!("no JSON: {error}"),
                "the JSON of an object",
            )
        })?;
        let mut made = ToolCall::new(&call.function.name, arguments);
        made.id = Some(call.id.clone());
        message.tool_calls.push(made);
    }
    Ok(message)
}

/// Joins parts that are text.
fn text(content: &Content, member: &str) -> Result<String, ApiError> {
    let parts = match content {
        Content::Text(text) => return Ok(text.clone()),
        Content::Parts(parts) => parts.iter().enumerate(),
    };
    let parts = parts.map(|(index, part)| {
        let (name, said) = match part.kind {
            PartKind::Refusal => ("refusal", part.refusal.as_deref()),
            _ => ("text", part.text.as_deref()),
        };
        said.ok_or_else(|| missing(&format!("{member}[{index}].{name}")))
    });
    parts.collect()
}

/// Reads what an answer has to be.
pub(super) fn shape(request: &ChatCompletionRequest) -> Result<Option<AnswerShape>, ApiError> {
    let tools = request.tools.as_deref().unwrap_or_default();
    let format = request.response_format.as_ref();
    if let Some(functions) = forced(request.tool_choice.as_ref(), tools)? {
        if format.is_some_and(|format| format.kind != "text") {
            let expected = "`text` where a function has to be called";
            return Err(found("response_format.type", "another format", expected));
        }
        let callables = functions.iter().map(|function| Callable {
            name: &function.name,
            parameters: function.parameters.as_ref(),
        });
        return calls::one_of(&callables.collect::<Vec<_>>()).map(Some);
    }
    let Some(format) = format else {
        return Ok(None);
    };
    match (format.kind.as_str(), &format.json_schema) {
        ("text", None) => Ok(None),
        ("json_object", None) => Ok(Some(AnswerShape::JsonObject)),
        ("json_schema", Some(sent)) => Ok(Some(AnswerShape::JsonSchema {
            member: "response_format.json_schema.schema",
            schema: sent.schema.clone(),
        })),
        ("json_schema", None) => Err(missing("response_format.json_schema")),
        ("text" | "json_object", Some(_)) => {
            let expected = format!("none with `{}`", format.kind);
            Err(found("response_format.json_schema", "a schema", expected))
        }
        (other, _) => {
            let expected = "`text`, `json_object` or `json_schema`";
            Err(found(
                "response_format.type",
                format!("`{other}`"),
                expected,
            ))
        }
    }
}

/// Says where a request asks for what a format may lack.
pub(super) fn option_names(request: &ChatCompletionRequest) -> OptionNames {
    let arguments = request.chat_template_kwargs.as_ref();
    let has = |name: &str| arguments.is_some_and(|arguments| arguments.contains_key(name));
    let thinking = if has("enable_thinking") {
        "chat_template_kwargs.enable_thinking"
    } else if has("thinking") {
        "chat_template_kwargs.thinking"
    } else {
        "reasoning_effort"
    };
    OptionNames {
        thinking,
        effort: "reasoning_effort",
    }
}

/// Reads what is asked of the chat format.
pub(super) fn options(request: &ChatCompletionRequest) -> Result<RenderOptions, ApiError> {
    let mut options = RenderOptions::prompt();
    match request.reasoning_effort.as_deref() {
        None => {}
        Some("none") => options.thinking = Some(false),
        Some("minimal" | "low") => options.reasoning_effort = Some(Effort::Low),
        Some("medium") => options.reasoning_effort = Some(Effort::Medium),
        Some("high" | "xhigh") => options.reasoning_effort = Some(Effort::High),
        Some("max") => options.reasoning_effort = Some(Effort::Max),
        Some(other) => {
            let expected = "`none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`";
            return Err(found("reasoning_effort", format!("`{other}`"), expected));
        }
    }
    for (name, value) in request.chat_template_kwargs.iter().flatten() {
        let member = format!("chat_template_kwargs.{name}");
        match (name.as_str(), value.as_bool()) {
            ("enable_thinking" | "thinking", Some(thinking)) => options.thinking = Some(thinking),
            ("enable_thinking" | "thinking", None) => {
                return Err(found(&member, value, "true or false"));
            }
            _ => {
                let expected = "`enable_thinking`, the only argument that formats have here";
                return Err(found(&member, value, expected));
            }
        }
    }
    Ok(options)
}
