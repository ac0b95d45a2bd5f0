//! What is asked.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::text_or::text_or;

/// The query of the official client's beta methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BetaQuery {
    /// Taken, and not looked at: a member that is not known is refused by its name.
    pub beta: Option<bool>,
}

/// Declares a request with the members that both have.
macro_rules! request {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $member:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name {
            /// What to ask: a base model, a run (`run`, `run@latest`, `run@120`) or a `tinker://` path.
            pub model: String,
            /// The conversation. If its last message is the assistant's, the answer goes on from it.
            pub messages: Vec<RequestMessage>,
            /// Instructions.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub system: Option<Blocks>,
            /// What the model may call.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub tools: Option<Vec<Tool>>,
            /// Whether the model may call something.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub tool_choice: Option<ToolChoice>,
            /// Whether the model thinks before it answers. By default it does not, where its format has a switch.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub thinking: Option<ThinkingConfig>,
            /// How much to think, and what the answer has to look like.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub output_config: Option<OutputConfig>,
            /// Taken, and not looked at: prompts share their beginnings by themselves.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub cache_control: Option<Value>,
            /// Taken, and not looked at: there is one speed.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub speed: Option<Value>,
            /// Taken, and not looked at.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub user_profile_id: Option<Value>,
            /// Taken, and not looked at.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub workspace_id: Option<Value>,
            $(
                $(#[$doc])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $member: Option<$type>,
            )*
        }

        crate::json::body!($name);
    };
}

request! {
    /// The next message of a conversation.
    pub struct MessagesRequest {
        /// The most tokens of the answer, thoughts included. Required.
        pub max_tokens: u32,
        /// Texts that end the answer and are not a part of it, 16 at most.
        pub stop_sequences: Vec<String>,
        /// Whether to send the answer as it is drawn, as server-sent events.
        pub stream: bool,
        /// Divides the logits, 0 to 1; 0 always takes the likeliest token. Default 1.
        pub temperature: f64,
        /// Draws from this many of the likeliest tokens; 0 means from all.
        pub top_k: u32,
        /// Draws from the fewest tokens that together have this probability. Default 1.
        pub top_p: f64,
        /// Taken, and not looked at.
        pub metadata: Value,
        /// Taken, and not looked at: there is one tier.
        pub service_tier: Value,
        /// Taken, and not looked at: there is one place.
        pub inference_geo: Value,
    }
}

request! {
    /// How many tokens a conversation has.
    pub struct CountTokensRequest {}
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RequestMessage {
    /// `user`, `assistant`, or `system` for instructions in the middle.
    pub role: String,
    /// What is said.
    pub content: Blocks,
}

/// What is said: a text, or several blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Blocks {
    /// A text.
    Text(String),
    /// Blocks.
    List(Vec<Block>),
}

text_or!(Blocks: Text or List, "a text or a list of content blocks");

/// What a block is. Images and documents are none that models here can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// What is said.
    Text,
    /// What is thought.
    Thinking,
    /// A call.
    ToolUse,
    /// What it returned.
    ToolResult,
}

impl BlockKind {
    /// Returns the name that is sent.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Thinking => "thinking",
            Self::ToolUse => "tool_use",
            Self::ToolResult => "tool_result",
        }
    }
}

/// Who asked for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Caller {
    /// `direct`.
    #[serde(rename = "type")]
    pub kind: CallerKind,
}

/// Who asked for a call: the model only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CallerKind {
    /// The model.
    Direct,
}

/// A block of a message. Models here read text only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Block {
    /// Which members it has depends on it.
    #[serde(rename = "type")]
    pub kind: BlockKind,
    /// The text of a `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The thoughts of a `thinking`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Taken, and not looked at: thoughts are not signed here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The id of a `tool_use`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What a `tool_use` calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The arguments of a `tool_use`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// Which call a `tool_result` is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
    /// What a `tool_result` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Box<Blocks>>,
    /// Whether a `tool_result` is a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
    /// Who asked for a `tool_use`; only `direct` is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Caller>,
    /// Taken, and not looked at: prompts share their beginnings by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<Value>,
}

/// Something that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tool {
    /// `custom`, or nothing.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name: letters, digits, `_` and `-`, 128 at most.
    pub name: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Map<String, Value>>,
    /// Whether arguments have to keep to the schema, as those of a call that has to be made always do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// Taken, and not looked at: arguments are sent when they are complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eager_input_streaming: Option<bool>,
    /// Taken, and not looked at: prompts share their beginnings by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<Value>,
}

/// Whether the model may call something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolChoice {
    /// `auto`, `none`, `any` for a call of any tool, or `tool` for one of the tool `name`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What has to be called, for `tool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether an answer has one call at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable_parallel_tool_use: Option<bool>,
}

/// Whether the model thinks before it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThinkingConfig {
    /// `enabled`, `disabled` or `adaptive`, which leaves it to the format.
    #[serde(rename = "type")]
    pub kind: String,
    /// How many tokens to think at most, 1024 or more and fewer than `max_tokens`. Models here cannot be told: thoughts end with
    /// `max_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_tokens: Option<u32>,
}

/// How much to think, and what the answer has to look like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputConfig {
    /// `low`, `medium`, `high` or `max`, where the model's format has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// What the answer has to look like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
}

/// What an answer has to look like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputFormat {
    /// `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}
