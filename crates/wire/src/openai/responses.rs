//! `POST /v1/responses`: the next items of a conversation.
//!
//! Nothing of a conversation is kept, so each request has all of it.

use super::chat::{Content, FunctionKind, ToolChoice};
use crate::text_or::text_or;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Declares a struct whose members may all be left out.
macro_rules! optional {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $member:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name {
            $(
                $(#[$doc])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $member: Option<$type>,
            )*
        }
    };
}

optional! {
    /// The next items of a conversation.
    pub struct ResponsesRequest {
        /// What to ask, as for chat completions.
        pub model: String,
        /// The conversation: a text, or its items.
        pub input: Input,
        /// What a system message before it says.
        pub instructions: String,
        /// The functions that the model may call.
        pub tools: Vec<ResponsesTool>,
        /// Whether the model may call one.
        pub tool_choice: ResponsesToolChoice,
        /// Whether an answer may have several calls. Default true.
        pub parallel_tool_calls: bool,
        /// The most tokens of the answer. By default as many as the context has room for.
        pub max_output_tokens: u32,
        /// Divides the logits. Default 1.
        pub temperature: f64,
        /// Draws from the fewest tokens that together have this probability. Default 1.
        pub top_p: f64,
        /// How much to think.
        pub reasoning: Reasoning,
        /// What the answer has to look like.
        pub text: TextFormat,
        /// Whether to send the answer as it is drawn, as server-sent events.
        pub stream: bool,
        /// `disabled`.
        pub truncation: String,
        /// Taken: `reasoning.encrypted_content` is not needed, as thoughts are not encrypted.
        pub include: Vec<String>,
        /// Taken, and not looked at: nothing is kept.
        pub store: bool,
        /// Taken, and not looked at.
        pub stream_options: Map<String, Value>,
        /// Taken, and not looked at.
        pub user: Value,
        /// Given back.
        pub metadata: Value,
        /// Taken, and not looked at.
        pub service_tier: Value,
        /// Taken, and not looked at.
        pub prompt_cache_key: Value,
        /// Taken, and not looked at.
        pub prompt_cache_options: Value,
        /// Taken, and not looked at.
        pub prompt_cache_retention: Value,
        /// Taken, and not looked at: it limits calls of tools that run on the server, which has none.
        pub max_tool_calls: Value,
        /// Taken, and not looked at.
        pub safety_identifier: Value,
    }
}

crate::json::body!(ResponsesRequest);

/// A conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Input {
    /// What the user says.
    Text(String),
    /// Its items.
    Items(Vec<InputItem>),
}

text_or!(Input: Text or Items, "a text or a list of items");

/// What an item of a conversation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// What somebody says.
    #[default]
    Message,
    /// What the model thought.
    Reasoning,
    /// A call that the model made.
    FunctionCall,
    /// What it returned.
    FunctionCallOutput,
}

optional! {
    /// An item of a conversation. Which members it has depends on its type.
    pub struct InputItem {
        /// Default `message`.
        pub r#type: ItemKind,
        /// Taken, and not looked at: that of an item of an answer that is sent back.
        pub id: String,
        /// Taken, and not looked at: that of an item of an answer that is sent back.
        pub status: String,
        /// Who speaks, in a message.
        pub role: super::chat::ChatRole,
        /// What is said or thought.
        pub content: Content,
        /// Which call it is, or is the output of.
        pub call_id: String,
        /// The function that is called.
        pub name: String,
        /// Its arguments, as JSON text.
        pub arguments: String,
        /// What it returned.
        pub output: Content,
        /// What was thought, in short.
        pub summary: Vec<super::chat::ContentPart>,
    }
}

optional! {
    /// Something that the model may call.
    pub struct ResponsesTool {
        /// `function`.
        pub r#type: FunctionKind,
        /// Its name.
        pub name: String,
        /// What it does.
        pub description: String,
        /// A JSON schema of its arguments.
        pub parameters: Map<String, Value>,
        /// Whether arguments have to keep to the schema.
        pub strict: bool,
    }
}

/// Whether the model may call a function.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum ResponsesToolChoice {
    /// `none`, `auto` or `required`.
    Mode(String),
    /// This one.
    Function(ResponsesNamedFunction),
}

text_or!(ResponsesToolChoice: Mode or Function, "`none`, `auto`, `required` or an object that names a function");

/// The function that has to be called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResponsesNamedFunction {
    /// `function`.
    pub r#type: FunctionKind,
    /// Which.
    pub name: String,
}

impl ResponsesToolChoice {
    /// Says the same in the form of chat completions.
    pub fn to_chat(&self) -> ToolChoice {
        match self {
            Self::Mode(mode) => ToolChoice::Mode(mode.clone()),
            Self::Function(named) => ToolChoice::Function(super::chat::NamedFunction {
                kind: named.r#type,
                function: super::chat::FunctionName {
                    name: named.name.clone(),
                },
            }),
        }
    }
}

optional! {
    /// How much to think.
    pub struct Reasoning {
        /// As `reasoning_effort` of chat completions.
        pub effort: String,
        /// Taken: thoughts are given as they are.
        pub summary: String,
    }
}

optional! {
    /// What an answer has to look like.
    pub struct TextFormat {
        /// Its format.
        pub format: TextFormatKind,
        /// `medium`.
        pub verbosity: String,
    }
}

optional! {
    /// The format of an answer.
    pub struct TextFormatKind {
        /// `text`, `json_object` or `json_schema`.
        pub r#type: String,
        /// What the schema is called.
        pub name: String,
        /// What the schema is for.
        pub description: String,
        /// The schema.
        pub schema: Value,
        /// Whether the schema has to be kept to. It is, either way.
        pub strict: bool,
    }
}
