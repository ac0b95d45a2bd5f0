//! `POST /v1/responses`.
//!
//! A request is a chat completion in other words: it is read as one, and its answer is written as items. What is wrong is
//! said in its own words ([`Places`]).

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use tinkrs_wire::openai::chat::{
    ChatCompletionRequest, ChatMessage, ChatRole, Content, ContentPart, FunctionCall,
    FunctionDefinition, FunctionKind, JsonSchemaFormat, ResponseFormat, ToolCall, ToolDefinition,
};
use tinkrs_wire::openai::responses::{
    Input, InputItem, ItemKind, ResponsesRequest, ResponsesTool, TextFormatKind,
};

use super::chat::{self, Asked};
use super::found;
use super::responses_places::{Place, Places};
use super::responses_stream::ResponsesStream;
use super::{missing, now, read};
use crate::Server;
use crate::api::Plain;
use crate::auth::Owner;
use crate::endpoints::answers::{Answer, AnswerEnd, random_id};
use crate::endpoints::question::Prepared;
use crate::endpoints::server_sent;
use crate::error::ApiError;
use crate::extract::Caller;
use crate::intake::Upload;

/// What is needed to write the answer to a request.
pub(super) struct Responding {
    pub(super) id: String,
    created: i64,
    asked: Asked,
    request: ResponsesRequest,
    pub(super) places: Places,
}

pub(crate) async fn respond(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Upload,
) -> Result<Response, ApiError> {
    let begin = {
        let server = server.clone();
        move |request, body: &[u8]| begin(&server, owner, request, body)
    };
    let (responding, prepared) = read(&server, body, begin).await?;
    let answers = server.ask(owner, &responding.asked.weights, prepared);
    let answers = answers.await;
    let answers = answers.map_err(|error| responding.places.rename(error))?;
    if responding.request.stream == Some(true) {
        let stream = ResponsesStream::new(responding, answers);
        return Ok(server_sent::respond(stream));
    }
    let prompt = answers.prompt.len();
    let finished = answers.finish().await;
    let (mut answers, cached) = finished.map_err(|error| responding.places.rename(error))?;
    let answer = answers
        .pop()
        .ok_or_else(|| ApiError::unavailable("nothing was drawn"))?;
    let output = output(&answer);
    let done = responding.done(&answer, output, prompt, cached);
    Ok(Plain(done).into_response())
}

/// Most bytes of JSON in a member that a response has again.
const MOST_RETURNED: usize = 1 << 20;

fn begin(
    server: &Server,
    owner: Owner,
    request: ResponsesRequest,
    body: &[u8],
) -> Result<(Responding, Prepared), ApiError> {
    check_returned("metadata", request.metadata.as_ref())?;
    check_returned("tools", request.tools.as_ref())?;
    check_returned("reasoning", request.reasoning.as_ref())?;
    check_returned("text", request.text.as_ref())?;
    let (chat, places) = chat_request(&request)?;
    let tools = if request.tools.is_some() {
        chat_tools(body)
    } else {
        Vec::new()
    };
    let begun = chat::begin_with(server, owner, chat, tools);
    let (asked, prepared) = begun.map_err(|error| places.rename(error))?;
    let responding = Responding {
        id: random_id("resp_"),
        created: now(),
        asked,
        // What a response has again, and no more: it is held until the answer is complete.
        request: ResponsesRequest {
            instructions: request.instructions,
            max_output_tokens: request.max_output_tokens,
            metadata: request.metadata,
            parallel_tool_calls: request.parallel_tool_calls,
            reasoning: request.reasoning,
            stream: request.stream,
            temperature: request.temperature,
            text: request.text,
            tool_choice: request.tool_choice,
            tools: request.tools,
            top_p: request.top_p,
            ..ResponsesRequest::default()
        },
        places,
    };
    Ok((responding, prepared))
}

fn check_returned(member: &str, value: Option<&impl Serialize>) -> Result<(), ApiError> {
    let bytes = value.map_or(Ok(0), |value| {
        serde_json::to_vec(value).map(|json| json.len())
    });
    let bytes = bytes.map_err(|error| ApiError::bad_request(error.to_string()))?;
    if bytes > MOST_RETURNED {
        let expected = format!("at most {MOST_RETURNED}, as a response has them again");
        return Err(found(member, format!("{bytes} bytes of JSON"), expected));
    }
    Ok(())
}

/// Says the same in the form of chat completions. Returns it with where its messages come from.
fn chat_request(request: &ResponsesRequest) -> Result<(ChatCompletionRequest, Places), ApiError> {
    if let Some(other) = request
        .truncation
        .as_deref()
        .filter(|name| *name != "disabled")
    {
        return Err(found("truncation", format!("`{other}`"), "`disabled`"));
    }
    let mut include = request.include.iter().flatten();
    if let Some(other) = include.find(|name| *name != "reasoning.encrypted_content") {
        let expected = "`reasoning.encrypted_content` or nothing";
        return Err(found("include", format!("`{other}`"), expected));
    }
    let text = request.text.clone().unwrap_or_default();
    if let Some(other) = text.verbosity.as_deref().filter(|name| *name != "medium") {
        return Err(found("text.verbosity", format!("`{other}`"), "`medium`"));
    }
    let mut messages = Messages::default();
    if let Some(text) = &request.instructions {
        let said = said(ChatRole::System, Content::Text(text.clone()));
        messages.push(said, "instructions");
    }
    match request.input.as_ref().ok_or_else(|| missing("input"))? {
        Input::Text(text) => {
            let said = said(ChatRole::User, Content::Text(text.clone()));
            messages.push(said, "input");
        }
        Input::Items(items) => {
            for (index, item) in items.iter().enumerate() {
                messages.add(item, &format!("input[{index}]"))?;
            }
        }
    }
    let tools = request.tools.iter().flatten().enumerate();
    let tools = tools.map(|(index, tool)| definition(index, tool));
    let tools = tools.collect::<Result<Vec<_>, _>>()?;
    // What is not said here has the default of chat completions.
    let chat = json!({"model": request.model.as_ref().ok_or_else(|| missing("model"))?});
    let mut chat: ChatCompletionRequest =
        serde_json::from_value(chat).map_err(|error| ApiError::bad_request(error.to_string()))?;
    chat.messages = Some(messages.sent);
    chat.tools = Some(tools);
    chat.tool_choice = request.tool_choice.as_ref().map(|choice| choice.to_chat());
    chat.parallel_tool_calls = request.parallel_tool_calls;
    chat.max_completion_tokens = request.max_output_tokens;
    chat.temperature = request.temperature;
    chat.top_p = request.top_p;
    chat.reasoning_effort = request.reasoning.clone().unwrap_or_default().effort;
    chat.response_format = text.format.map(format);
    Ok((chat, Places(messages.places)))
}

fn format(format: TextFormatKind) -> ResponseFormat {
    ResponseFormat {
        kind: format.r#type.unwrap_or_else(|| "text".to_owned()),
        json_schema: format.schema.map(|schema| JsonSchemaFormat {
            name: format.name,
            description: format.description,
            schema,
            strict: format.strict,
        }),
    }
}

fn said(role: ChatRole, content: Content) -> ChatMessage {
    ChatMessage {
        role,
        content: Some(content),
        reasoning_content: None,
        refusal: None,
        name: None,
        tool_calls: None,
        tool_call_id: None,
    }
}

/// A conversation as chat completions have it, and where its messages come from.
#[derive(Default)]
struct Messages {
    sent: Vec<ChatMessage>,
    places: Vec<Place>,
}

impl Messages {
    fn push(&mut self, message: ChatMessage, content: impl Into<String>) {
        self.sent.push(message);
        self.places.push(Place {
            content: content.into(),
            calls: Vec::new(),
        });
    }

    /// Adds an item. What the model thought, said and called one after the other is one message.
    fn add(&mut self, item: &InputItem, member: &str) -> Result<(), ApiError> {
        let lacks = |name: &str| missing(&format!("{member}.{name}"));
        let call_id = || item.call_id.clone().ok_or_else(|| lacks("call_id"));
        let content = format!("{member}.content");
        match item.r#type.unwrap_or_default() {
            ItemKind::Message => {
                let role = item.role.ok_or_else(|| lacks("role"))?;
                let said_now = item.content.clone().ok_or_else(|| lacks("content"))?;
                match self.open_answer() {
                    Some((answer, place))
                        if role == ChatRole::Assistant && answer.content.is_none() =>
                    {
                        answer.content = Some(said_now);
                        place.content = content;
                    }
                    _ => self.push(said(role, said_now), content),
                }
            }
            ItemKind::Reasoning => {
                let thought = match &item.content {
                    Some(Content::Text(text)) => text.clone(),
                    Some(Content::Parts(parts)) => joined(parts),
                    None => joined(item.summary.as_deref().unwrap_or_default()),
                };
                let mut answer = silent_answer();
                answer.reasoning_content = Some(thought);
                self.push(answer, content);
            }
            ItemKind::FunctionCall => {
                let call = ToolCall {
                    index: None,
                    id: call_id()?,
                    kind: FunctionKind::Function,
                    function: FunctionCall {
                        name: item.name.clone().ok_or_else(|| lacks("name"))?,
                        arguments: item.arguments.clone().ok_or_else(|| lacks("arguments"))?,
                    },
                };
                if self.open_answer().is_none() {
                    self.push(silent_answer(), content);
                }
                let (answer, place) = self.open_answer().expect("it was just added");
                answer.tool_calls.get_or_insert_default().push(call);
                place.calls.push(member.to_owned());
            }
            ItemKind::FunctionCallOutput => {
                let output = item.output.clone().ok_or_else(|| lacks("output"))?;
                let mut result = said(ChatRole::Tool, output);
                result.tool_call_id = Some(call_id()?);
                self.push(result, format!("{member}.output"));
            }
        }
        Ok(())
    }

    /// Returns the last message, if it is the model's.
    fn open_answer(&mut self) -> Option<(&mut ChatMessage, &mut Place)> {
        let last = self.sent.last_mut().zip(self.places.last_mut());
        last.filter(|(message, _)| message.role == ChatRole::Assistant)
    }
}

/// An answer in which nothing is said.
fn silent_answer() -> ChatMessage {
    ChatMessage {
        content: None,
        ..said(ChatRole::Assistant, Content::Text(String::new()))
    }
}

fn joined(parts: &[ContentPart]) -> String {
    let texts = parts.iter().filter_map(|part| part.text.as_deref());
    texts.collect()
}

fn definition(index: usize, tool: &ResponsesTool) -> Result<ToolDefinition, ApiError> {
    let name = tool.name.clone();
    Ok(ToolDefinition {
        kind: tool.r#type.unwrap_or_default(),
        function: FunctionDefinition {
            name: name.ok_or_else(|| missing(&format!("tools[{index}].name")))?,
            description: tool.description.clone(),
            parameters: tool.parameters.clone(),
            strict: tool.strict,
        },
    })
}

/// Returns the tools as they were sent, in the form that chat formats write.
fn chat_tools(body: &[u8]) -> Vec<tinkrs_chat::Json> {
    use tinkrs_chat::Json;
    let tools = super::conversation::ordered_tools(body);
    let tools = tools.into_iter().map(|tool| {
        let members = match tool {
            Json::Object(members) => members,
            _ => Vec::new(),
        };
        let is_function = |name: &str| ["name", "description", "parameters"].contains(&name);
        let function = members.into_iter().filter(|(name, _)| is_function(name));
        Json::object([
            ("type", Json::from("function")),
            ("function", Json::Object(function.collect())),
        ])
    });
    tools.collect()
}

/// Writes an answer as items.
fn output(answer: &Answer) -> Vec<Value> {
    let mut items = Vec::new();
    if let Some(thinking) = &answer.thinking {
        items.push(reasoning_item(&random_id("rs_"), thinking));
    }
    if !answer.content.is_empty() || answer.calls.is_empty() {
        let status = status(answer);
        items.push(message_item(&random_id("msg_"), status, &answer.content));
    }
    for call in chat::calls(answer) {
        let ToolCall { id, function, .. } = call;
        let FunctionCall { name, arguments } = function;
        let item = call_item(&random_id("fc_"), &id, &name, &arguments, "completed");
        items.push(item);
    }
    items
}

pub(super) fn reasoning_item(id: &str, text: &str) -> Value {
    let content = json!([{"type": "reasoning_text", "text": text}]);
    json!({"type": "reasoning", "id": id, "summary": [], "content": content})
}

pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

pub(super) fn message_item(id: &str, status: &str, text: &str) -> Value {
    json!({
        "type": "message", "id": id, "role": "assistant", "status": status, "content": [text_part(text)],
    })
}

pub(super) fn call_item(
    id: &str,
    call_id: &str,
    name: &str,
    arguments: &str,
    status: &str,
) -> Value {
    json!({
        "type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments,
        "status": status,
    })
}

/// Returns whether an answer is complete.
pub(super) fn status(answer: &Answer) -> &'static str {
    match answer.end {
        AnswerEnd::Length => "incomplete",
        AnswerEnd::Model | AnswerEnd::Text(_) => "completed",
    }
}

impl Responding {
    /// Writes a response without an answer.
    pub(super) fn begun(&self) -> Value {
        let request = &self.request;
        let text = json!({"format": request.text.clone().unwrap_or_default().format.unwrap_or_else(|| {
            TextFormatKind { r#type: Some("text".to_owned()), ..TextFormatKind::default() }
        })});
        let choice = request
            .tool_choice
            .as_ref()
            .map_or_else(|| json!("auto"), |choice| json!(choice));
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "in_progress",
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata.clone().unwrap_or_else(|| json!({})),
            "model": self.asked.model,
            "output": [],
            "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "reasoning": request.reasoning.clone().unwrap_or_default(),
            "store": false,
            "temperature": request.temperature.unwrap_or(1.0),
            "text": text,
            "tool_choice": choice,
            "tools": request.tools.clone().unwrap_or_default(),
            "top_p": request.top_p.unwrap_or(1.0),
            "truncation": "disabled",
            "usage": null,
        })
    }

    /// Writes a response with its answer.
    pub(super) fn done(
        &self,
        answer: &Answer,
        output: Vec<Value>,
        prompt: usize,
        cached: u32,
    ) -> Value {
        let mut response = self.begun();
        let (status, drawn) = (status(answer), answer.sequence.tokens.len());
        response["status"] = status.into();
        if status == "incomplete" {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["output"] = output.into();
        response["usage"] = json!({
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": drawn,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + drawn,
        });
        response
    }
}
