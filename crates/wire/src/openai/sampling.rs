//! The members that all requests for text share.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A text that ends an answer, or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub enum StopTexts {
    /// One.
    One(String),
    /// Any of these.
    Any(Vec<String>),
}

impl StopTexts {
    /// Returns the texts.
    pub fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Any(texts) => texts,
        }
    }
}

/// What a stream has besides the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StreamOptions {
    /// Whether it ends with the usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include_usage: Option<bool>,
    /// Whether events are padded, to hide the lengths of tokens. Here they are not, either way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include_obfuscation: Option<bool>,
}

/// How to draw an answer, whatever request asked for it.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "each is documented where it is sent")]
pub struct SamplingMembers {
    pub n: Option<u32>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i32>,
    pub min_p: Option<f64>,
    pub seed: Option<i64>,
    pub stop: Option<StopTexts>,
    pub stop_token_ids: Option<Vec<u32>>,
    pub ignore_eos: bool,
    pub min_tokens: Option<u32>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub logit_bias: Option<BTreeMap<String, f64>>,
}

/// Declares a request with the members that all of them share. A flattened struct would do, but members in one that
/// nothing reads could not be refused.
macro_rules! request {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $member:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name {
            /// What to ask: a base model, a run (`run`, `run@latest`, `run@120`) or a `tinker://` path.
            pub model: String,
            $(
                $(#[$doc])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $member: Option<$type>,
            )*
            /// Whether to send the answer as it is drawn, as server-sent events.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stream: Option<bool>,
            /// What the stream has besides.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stream_options: Option<$crate::openai::StreamOptions>,
            /// How many answers to draw, 1 to 128. Default 1.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub n: Option<u32>,
            /// Divides the logits; 0 always takes the likeliest token. Default 1.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub temperature: Option<f64>,
            /// Draws from the fewest tokens that together have this probability. Default 1.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub top_p: Option<f64>,
            /// Draws from this many of the likeliest tokens; -1 and 0 mean from all. An extension.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub top_k: Option<i32>,
            /// Draws from tokens that have at least this part of the likeliest one's probability. An extension.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub min_p: Option<f64>,
            /// Makes the draw repeatable; without one it is random.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub seed: Option<i64>,
            /// Texts that end an answer and are not a part of it, 16 at most.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stop: Option<$crate::openai::StopTexts>,
            /// Tokens that end an answer. An extension.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stop_token_ids: Option<Vec<u32>>,
            /// Whether to go on past the model's own end of an answer. An extension.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub ignore_eos: Option<bool>,
            /// No answer ends before it has this many tokens. An extension.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub min_tokens: Option<u32>,
            /// Makes tokens unlikelier that have come before, -2 to 2. Default 0.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub presence_penalty: Option<f64>,
            /// Makes tokens unlikelier for each time they have come before, -2 to 2. Default 0.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub frequency_penalty: Option<f64>,
            /// Makes tokens unlikelier that have come before, the prompt included; 1 changes nothing. An extension.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub repetition_penalty: Option<f64>,
            /// What is added to the logits of tokens, -100 to 100, by their ids.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub logit_bias: Option<std::collections::BTreeMap<String, f64>>,
            /// Whether to answer with the ids of the tokens of prompt and answers. An extension.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub return_token_ids: Option<bool>,
            /// Taken, and not looked at.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub user: Option<serde_json::Value>,
            /// Taken, and not looked at.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub metadata: Option<serde_json::Value>,
            /// Taken, and not looked at: nothing is kept.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub store: Option<bool>,
            /// Taken, and not looked at: there is one tier.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub service_tier: Option<serde_json::Value>,
            /// Taken, and not looked at: prompts share their beginnings by themselves.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub prompt_cache_key: Option<serde_json::Value>,
            /// Taken, and not looked at: prompts share their beginnings by themselves.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub prompt_cache_options: Option<serde_json::Value>,
            /// Taken, and not looked at: prompts share their beginnings by themselves.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub prompt_cache_retention: Option<serde_json::Value>,
            /// Taken, and not looked at.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub safety_identifier: Option<serde_json::Value>,
        }

        impl $name {
            /// Returns how to draw the answers.
            pub fn sampling(&self) -> $crate::openai::SamplingMembers {
                $crate::openai::SamplingMembers {
                    n: self.n,
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    seed: self.seed,
                    stop: self.stop.clone(),
                    stop_token_ids: self.stop_token_ids.clone(),
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    min_tokens: self.min_tokens,
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    repetition_penalty: self.repetition_penalty,
                    logit_bias: self.logit_bias.clone(),
                }
            }

            /// Returns whether the answer is sent as it is drawn.
            pub fn streams(&self) -> bool {
                self.stream.unwrap_or(false)
            }

            /// Returns whether a stream ends with the usage.
            pub fn includes_usage(&self) -> bool {
                let options = self.stream_options.unwrap_or_default();
                options.include_usage.unwrap_or(false)
            }

            /// Returns whether the ids of tokens are asked for.
            pub fn wants_token_ids(&self) -> bool {
                self.return_token_ids.unwrap_or(false)
            }
        }

        $crate::json::body!($name);
    };
}

pub(super) use request;
