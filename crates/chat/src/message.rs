//! Conversations: who said what, in the shape that chat files have.

use crate::Json;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions from the one who runs the model. Files may also say `developer`.
    #[serde(alias = "developer")]
    System,
    /// The one who asks.
    #[serde(alias = "human")]
    User,
    /// The model.
    #[serde(alias = "gpt")]
    Assistant,
    /// The result of a tool call.
    #[serde(alias = "function", alias = "ipython", alias = "observation")]
    Tool,
}

impl Role {
    /// Returns the name that chat formats write.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A function that the assistant wants called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ToolCallForm", into = "ToolCallForm")]
pub struct ToolCall {
    /// Ties the call to its result, if the source has ids.
    pub id: Option<String>,
    /// The function's name.
    pub name: String,
    /// Its arguments, usually an object.
    pub arguments: Json,
}

impl ToolCall {
    /// Makes a call without an id.
    pub fn new(name: impl Into<String>, arguments: Json) -> Self {
        Self {
            id: None,
            name: name.into(),
            arguments,
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "MessageForm")]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said. Lists of text parts are joined when read; `null` reads as nothing. A message without it has
    /// calls or thoughts.
    pub content: String,
    /// What the assistant thought before it spoke.
    #[serde(rename = "reasoning_content", skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The calls that the assistant makes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool message answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The name of the tool or the speaker, for formats that write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How much the message counts in training, where its mask lets it count. Default 1. Files may
    /// also say `trainable`: `true` is 1, `false` is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f32>,
}

/// The forms that a message has in files.
#[derive(Deserialize)]
struct MessageForm {
    #[serde(alias = "from", deserialize_with = "read_speaker")]
    role: Speaker,
    #[serde(default, alias = "value", deserialize_with = "read_content")]
    content: Option<String>,
    #[serde(
        default,
        rename = "reasoning_content",
        alias = "thinking",
        alias = "reasoning"
    )]
    thinking: Option<String>,
    #[serde(default, deserialize_with = "null_is_empty")]
    tool_calls: Vec<ToolCall>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default, alias = "trainable", deserialize_with = "read_weight")]
    weight: Option<f32>,
}

/// Who speaks in a file.
enum Speaker {
    As(Role),
    /// The assistant, and what it says is the text of a call, or of a list of them.
    Calls,
}

impl TryFrom<MessageForm> for Message {
    type Error = String;

    fn try_from(form: MessageForm) -> Result<Self, String> {
        let mut message = Self {
            role: Role::Assistant,
            content: form.content.clone().unwrap_or_default(),
            thinking: form.thinking,
            tool_calls: form.tool_calls,
            tool_call_id: form.tool_call_id,
            name: form.name,
            weight: form.weight,
        };
        match form.role {
            Speaker::As(role) => message.role = role,
            Speaker::Calls => {
                let calls = calls_of(&message.content)?;
                message.tool_calls.extend(calls);
                message.content.clear();
            }
        }
        if form.content.is_none() && message.tool_calls.is_empty() && message.thinking.is_none() {
            return Err("a message has no `content`".to_owned());
        }
        Ok(message)
    }
}

/// Reads the calls that a `function_call` of a file is.
fn calls_of(text: &str) -> Result<Vec<ToolCall>, String> {
    let calls = if text.trim_start().starts_with('[') {
        serde_json::from_str(text)
    } else {
        serde_json::from_str(text).map(|call| vec![call])
    };
    calls.map_err(|error| format!("a `function_call` is not JSON of calls: {error}"))
}

impl Message {
    /// Makes a message of text.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            thinking: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
            weight: None,
        }
    }

    /// Makes a system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }

    /// Makes a user's message.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// Makes an assistant's message.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// Makes a tool's result.
    pub fn tool(content: impl Into<String>) -> Self {
        Self::new(Role::Tool, content)
    }

    /// Adds what was thought before.
    #[must_use]
    pub fn thinking(mut self, thinking: impl Into<String>) -> Self {
        self.thinking = Some(thinking.into());
        self
    }

    /// Adds a tool call.
    #[must_use]
    pub fn call(mut self, call: ToolCall) -> Self {
        self.tool_calls.push(call);
        self
    }
}

/// Messages, and the tools that the assistant may call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// The messages in order.
    #[serde(alias = "conversations")]
    pub messages: Vec<Message>,
    /// Tool definitions, in the shape `{"type": "function", "function": {"name": …}}`.
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub tools: Vec<Json>,
}

impl Conversation {
    /// Returns the conversation up to, but without, its last message and that message, if it is
    /// the assistant's.
    pub fn split_last_answer(&self) -> Option<(Self, &Message)> {
        let (last, before) = self.messages.split_last()?;
        let context = Self {
            messages: before.to_vec(),
            tools: self.tools.clone(),
        };
        (last.role == Role::Assistant).then_some((context, last))
    }

    /// Makes one conversation for each assistant message, ending with it.
    ///
    /// Formats that show an answer differently once it is history (Qwen3 drops its thinking) can
    /// only be trained one answer at a time.
    pub fn one_per_answer(&self) -> impl Iterator<Item = Self> {
        let ends = self.messages.iter().enumerate();
        ends.filter(|(_, message)| message.role == Role::Assistant)
            .map(|(index, _)| Self {
                messages: self.messages[..=index].to_vec(),
                tools: self.tools.clone(),
            })
    }
}

impl From<Vec<Message>> for Conversation {
    fn from(messages: Vec<Message>) -> Self {
        Self {
            messages,
            tools: Vec::new(),
        }
    }
}

impl<const N: usize> From<[Message; N]> for Conversation {
    fn from(messages: [Message; N]) -> Self {
        Vec::from(messages).into()
    }
}

/// The forms that a tool call has in files: nested under `function` or flat, with arguments as
/// an object or as its JSON text.
#[derive(Serialize, Deserialize)]
struct ToolCallForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    function: Option<FunctionForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments: Option<Json>,
}

#[derive(Serialize, Deserialize)]
struct FunctionForm {
    name: String,
    #[serde(default)]
    arguments: Json,
}

impl TryFrom<ToolCallForm> for ToolCall {
    type Error = &'static str;

    fn try_from(form: ToolCallForm) -> Result<Self, &'static str> {
        let (name, arguments) = match form.function {
            Some(function) => (function.name, function.arguments),
            None => (
                form.name.ok_or("a tool call has no `name`")?,
                form.arguments.unwrap_or_default(),
            ),
        };
        let arguments = match arguments {
            Json::Text(text) => Json::parse(&text).unwrap_or(Json::Text(text)),
            other => other,
        };
        Ok(Self {
            id: form.id,
            name,
            arguments,
        })
    }
}

impl From<ToolCall> for ToolCallForm {
    fn from(call: ToolCall) -> Self {
        Self {
            id: call.id,
            kind: Some("function".to_owned()),
            function: Some(FunctionForm {
                name: call.name,
                arguments: call.arguments,
            }),
            name: None,
            arguments: None,
        }
    }
}

fn read_speaker<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Speaker, D::Error> {
    use serde::de::IntoDeserializer;
    let name = String::deserialize(deserializer)?;
    if name == "function_call" {
        return Ok(Speaker::Calls);
    }
    Role::deserialize(name.into_deserializer()).map(Speaker::As)
}

fn read_content<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    use serde::de::Error;
    let part = |part: &Json| match part {
        Json::Text(text) => Ok(text.clone()),
        part => match (part.get("type").and_then(Json::as_str), part.get("text")) {
            (Some("text") | None, Some(Json::Text(text))) => Ok(text.clone()),
            (kind, _) => Err(D::Error::custom(format!(
                "a content part of type `{}`: only text can be trained on here",
                kind.unwrap_or("unknown")
            ))),
        },
    };
    match Json::deserialize(deserializer)? {
        Json::Null => Ok(Some(String::new())),
        Json::Text(text) => Ok(Some(text)),
        Json::List(parts) => parts.iter().map(part).collect::<Result<_, _>>().map(Some),
        _ => Err(D::Error::custom(
            "`content` is neither text nor a list of parts",
        )),
    }
}

fn read_weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "a message's weight is a number, `true` or `false`"
    )]
    enum Weight {
        Number(f32),
        Flag(bool),
    }
    match Option::<Weight>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Weight::Flag(flag)) => Ok(Some(f32::from(u8::from(flag)))),
        Some(Weight::Number(weight)) if weight >= 0.0 && weight.is_finite() => Ok(Some(weight)),
        Some(Weight::Number(weight)) => Err(serde::de::Error::custom(format!(
            "a message's weight is {weight}, expected a finite number, 0 or more"
        ))),
    }
}

fn null_is_empty<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_shapes_of_chat_files_read_the_same() {
        let nested = r#"{"role":"assistant","content":null,"tool_calls":
            [{"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\": 1}"}}]}"#;
        let flat = r#"{"from":"gpt","value":"","tool_calls":
            [{"id":"c1","name":"add","arguments":{"a":1}}]}"#;
        let read = |text: &str| serde_json::from_str::<Message>(text).unwrap();
        assert_eq!(read(nested), read(flat));
        assert_eq!(
            read(nested).tool_calls[0].arguments.to_string(),
            r#"{"a": 1}"#
        );

        let parts =
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#;
        assert_eq!(read(parts), Message::user("ab"));
        let image = r#"{"role":"user","content":[{"type":"image_url","image_url":"x"}]}"#;
        let error = serde_json::from_str::<Message>(image).unwrap_err();
        assert!(error.to_string().contains("image_url"), "{error}");
    }

    #[test]
    fn a_message_with_nothing_to_say_is_refused_and_not_learned_as_nothing() {
        let read = |text: &str| serde_json::from_str::<Message>(text).map_err(|e| e.to_string());
        let error = read(r#"{"role": "assistant", "text": "hello"}"#).unwrap_err();
        assert!(error.contains("a message has no `content`"), "{error}");
        let error = read(r#"{"role": "assistant", "tool_calls": [{"id": "c"}]}"#).unwrap_err();
        assert!(error.contains("a tool call has no `name`"), "{error}");
        let thought = read(r#"{"role": "assistant", "thinking": "so"}"#).unwrap();
        assert_eq!(thought, Message::assistant("").thinking("so"));
        let nothing = read(r#"{"role": "user", "content": null}"#).unwrap();
        assert_eq!(nothing, Message::user(""));
    }

    #[test]
    fn calls_and_results_as_share_gpt_files_have_them_are_read() {
        let read = |text: &str| serde_json::from_str::<Message>(text).map_err(|e| e.to_string());
        let arguments = Json::parse(r#"{"a": 1}"#).unwrap();
        let call = ToolCall::new("add", arguments);
        let one = r#"{"from": "function_call", "value": "{\"name\": \"add\", \"arguments\": {\"a\": 1}}"}"#;
        assert_eq!(
            read(one).unwrap(),
            Message::assistant("").call(call.clone())
        );
        let list = r#"{"from": "function_call", "value": "[{\"name\": \"add\", \"arguments\": {\"a\": 1}}]"}"#;
        assert_eq!(read(list).unwrap(), Message::assistant("").call(call));
        let result = r#"{"from": "observation", "value": "2"}"#;
        assert_eq!(read(result).unwrap(), Message::tool("2"));
        let error = read(r#"{"from": "function_call", "value": "add(1)"}"#).unwrap_err();
        assert!(
            error.contains("a `function_call` is not JSON of calls"),
            "{error}"
        );
        let error = read(r#"{"from": "king", "value": "a"}"#).unwrap_err();
        assert!(
            error.contains("unknown variant `king`, expected one of"),
            "{error}"
        );
    }

    #[test]
    fn a_weight_that_would_ruin_a_loss_is_refused() {
        let read = |weight: &str| {
            let text = format!(r#"{{"role": "user", "content": "a", "weight": {weight}}}"#);
            serde_json::from_str::<Message>(&text).map(|message| message.weight)
        };
        assert_eq!(read("0.5").unwrap(), Some(0.5));
        assert_eq!(read("false").unwrap(), Some(0.0));
        for weight in ["-0.5", "1e39"] {
            let error = read(weight).unwrap_err().to_string();
            assert!(
                error.contains("expected a finite number, 0 or more"),
                "{error}"
            );
        }
    }

    #[test]
    fn each_answer_can_be_trained_on_its_own() {
        let chat = Conversation::from([
            Message::user("1"),
            Message::assistant("2"),
            Message::user("3"),
            Message::assistant("4"),
        ]);
        let lengths: Vec<_> = chat.one_per_answer().map(|c| c.messages.len()).collect();
        assert_eq!(lengths, [2, 4]);
        assert_eq!(chat.split_last_answer().unwrap().1.content, "4");
    }
}
