//! `POST /v1/chat/completions`: the next message of a conversation.

use super::sampling::request;
use super::{FinishReason, TokenUsage};
use crate::text_or::text_or;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

request! {
    /// The next message of a conversation.
    pub struct ChatCompletionRequest {
        /// The conversation.
        pub messages: Vec<ChatMessage>,
        /// The functions that the model may call.
        pub tools: Vec<ToolDefinition>,
        /// Whether the model may or has to call one.
        pub tool_choice: ToolChoice,
        /// Whether an answer may have several calls. Default true.
        pub parallel_tool_calls: bool,
        /// The most tokens of an answer. By default as many as the context has room for.
        pub max_completion_tokens: u32,
        /// The same by its older name.
        pub max_tokens: u32,
        /// Reports the log-probability of each token of the answer.
        pub logprobs: bool,
        /// And this many of the likeliest tokens at its place, 0 to 20.
        pub top_logprobs: u32,
        /// How much to think: `none`, `minimal`, `low`, `medium` or `high`, where the model's format has it.
        pub reasoning_effort: String,
        /// What the answer has to look like.
        pub response_format: ResponseFormat,
        /// `["text"]`.
        pub modalities: Vec<String>,
        /// Taken, and not looked at: it may make an answer come sooner, and never changes it.
        pub prediction: Value,
        /// Arguments of the model's chat template, such as `{"enable_thinking": false}`. An extension.
        pub chat_template_kwargs: Map<String, Value>,
    }
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChatRole {
    /// Who runs the model.
    System,
    /// The same by its newer name.
    Developer,
    /// Who asks.
    User,
    /// The model.
    Assistant,
    /// The result of a call.
    Tool,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatMessage {
    /// Who speaks.
    pub role: ChatRole,
    /// What is said.
    #[serde(default)]
    pub content: Option<Content>,
    /// What the model thought before.
    #[serde(default, alias = "reasoning", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// What the model said instead of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// The name of the speaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The calls that the model made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Which call this is the result of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Content {
    /// A text.
    Text(String),
    /// In parts.
    Parts(Vec<ContentPart>),
}

text_or!(Content: Text or Parts, "a text or a list of content parts");

/// A part of what is said. Models here read text only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContentPart {
    /// `text`; `refusal` for what the model said.
    #[serde(rename = "type")]
    pub kind: PartKind,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Taken, and not looked at: an answer of this server has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Vec<Value>>,
    /// Taken, and not looked at: those of an answer that is sent back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<Value>>,
    /// Taken, and not looked at: prompts share their beginnings by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_cache_breakpoint: Option<Value>,
}

/// What a part is. Images, audio and files are none that models here can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// A text.
    Text,
    /// What is asked, in responses.
    InputText,
    /// What the model said, in responses.
    OutputText,
    /// What the model thought, in responses.
    ReasoningText,
    /// That in short.
    SummaryText,
    /// What the model said instead of an answer.
    Refusal,
}

/// What can be called: functions only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FunctionKind {
    /// A function of the client.
    #[default]
    Function,
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolCall {
    /// Its place among the calls of the message; in streams only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Its id.
    pub id: String,
    /// `function`.
    #[serde(rename = "type", default)]
    pub kind: FunctionKind,
    /// What is called.
    pub function: FunctionCall,
}

/// What is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionCall {
    /// Its name.
    pub name: String,
    /// Its arguments, as JSON text.
    #[serde(default)]
    pub arguments: String,
}

/// Something that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolDefinition {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: FunctionKind,
    /// The function.
    pub function: FunctionDefinition,
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionDefinition {
    /// Its name: letters, digits, `_` and `-`, 64 at most.
    pub name: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Map<String, Value>>,
    /// Whether arguments have to keep to the schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether the model may or has to call a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum ToolChoice {
    /// `none`, `auto` or `required`.
    Mode(String),
    /// This one.
    Function(NamedFunction),
}

text_or!(ToolChoice: Mode or Function, "`none`, `auto`, `required` or an object that names a function");

/// The function that has to be called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamedFunction {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: FunctionKind,
    /// Which.
    pub function: FunctionName,
}

/// A function by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionName {
    /// The name.
    pub name: String,
}

/// What an answer has to look like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The schema, for `json_schema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<JsonSchemaFormat>,
}

/// A schema that an answer has to keep to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JsonSchemaFormat {
    /// What it is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The schema.
    pub schema: Value,
    /// Whether it has to be kept to. It is, either way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// The next message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatCompletion {
    /// Its id.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// When it was asked for, in seconds since 1970.
    pub created: i64,
    /// What was asked.
    pub model: String,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// How many tokens there are.
    pub usage: TokenUsage,
    /// The tokens of the prompt, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatChoice {
    /// Its place among the answers.
    pub index: u32,
    /// The message.
    pub message: AnswerMessage,
    /// The log-probabilities, if they were asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The tokens, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// What the model says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AnswerMessage {
    /// `assistant`.
    pub role: ChatRole,
    /// What is said; `null` if there are calls and nothing else.
    pub content: Option<String>,
    /// What was thought before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls of functions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// `null`.
    pub refusal: Option<String>,
}

/// The tokens of an answer with their log-probabilities.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatLogprobs {
    /// All tokens that were drawn, those of thoughts, calls and the end included.
    pub content: Option<Vec<TokenLogprob>>,
    /// `null`.
    pub refusal: Option<Vec<TokenLogprob>>,
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenLogprob {
    /// Its text.
    pub token: String,
    /// Its log-probability.
    pub logprob: f32,
    /// Its bytes, as it may be a part of a character.
    pub bytes: Option<Vec<u8>>,
    /// The likeliest tokens at its place.
    #[serde(default)]
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the likeliest tokens at a place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopLogprob {
    /// Its text.
    pub token: String,
    /// Its log-probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
}

/// A part of the next message, as it is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatCompletionChunk {
    /// Its id, the same in all parts.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// When it was asked for, in seconds since 1970.
    pub created: i64,
    /// What was asked.
    pub model: String,
    /// What is new in the answers; empty in the part that has the usage.
    pub choices: Vec<ChunkChoice>,
    /// How many tokens there are, in the last part, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
    /// The tokens of the prompt in the first part, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// What is new in an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChunkChoice {
    /// Its place among the answers.
    pub index: u32,
    /// What is new.
    pub delta: MessageDelta,
    /// The log-probabilities of the new tokens, if they were asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended, in its last part.
    pub finish_reason: Option<FinishReason>,
    /// The new tokens, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// What is new in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessageDelta {
    /// Who speaks, in the first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<ChatRole>,
    /// What is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// What is thought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls of functions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}

/// What is new in a call of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolCallDelta {
    /// Its place among the calls of the message.
    pub index: u32,
    /// Its id, in its first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, in its first part.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What is called.
    pub function: FunctionCallDelta,
}

/// What is new in what is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionCallDelta {
    /// Its name, in its first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The next characters of its arguments, which are JSON when all have come.
    #[serde(default)]
    pub arguments: String,
}
