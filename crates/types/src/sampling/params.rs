//! How to sample, and what to report about the prompt and the samples.

use crate::tensor::Dtype;
use crate::{InvalidInput, TensorData};
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// When to stop before `max_tokens`.
///
/// Leaving it out ([`SamplingParams::stop`] is `None`) stops at the model's end of sequence,
/// which [`Stop::Never`] does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Generates until `max_tokens`, past the end of sequence.
    Never,
    /// Stops when this text appears.
    Text(String),
    /// Stops when any of these texts appears.
    AnyText(Vec<String>),
    /// Stops when any of these tokens is generated.
    AnyToken(Vec<u32>),
}

impl From<&str> for Stop {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<u32>> for Stop {
    fn from(tokens: Vec<u32>) -> Self {
        if tokens.is_empty() {
            Self::Never
        } else {
            Self::AnyToken(tokens)
        }
    }
}

impl From<Vec<String>> for Stop {
    fn from(texts: Vec<String>) -> Self {
        if texts.is_empty() {
            Self::Never
        } else {
            Self::AnyText(texts)
        }
    }
}

impl Serialize for Stop {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Never => serializer.collect_seq::<[u32; 0]>([]),
            Self::Text(text) => serializer.serialize_str(text),
            Self::AnyText(texts) => serializer.collect_seq(texts),
            Self::AnyToken(tokens) => serializer.collect_seq(tokens),
        }
    }
}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Item {
            Token(u32),
            Text(String),
        }

        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Stop;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list of texts or a list of token ids")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Stop, E> {
                Ok(Stop::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Stop, A::Error> {
                let (mut tokens, mut texts) = (Vec::new(), Vec::new());
                while let Some(item) = items.next_element()? {
                    match item {
                        Item::Token(token) => tokens.push(token),
                        Item::Text(text) => texts.push(text),
                    }
                }
                match (tokens.is_empty(), texts.is_empty()) {
                    (false, false) => Err(de::Error::custom(
                        "`stop` mixes texts and token ids; use one of the two",
                    )),
                    (_, true) => Ok(tokens.into()),
                    (true, false) => Ok(texts.into()),
                }
            }
        }

        deserializer.deserialize_any(Read)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Stop {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Stop".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A text, any of several texts, or any of several tokens; an empty list never stops.",
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "integer", "minimum": 0}},
            ],
        })
    }
}

/// How to draw tokens.
///
/// ```
/// use tinkrs_types::SamplingParams;
///
/// let params = SamplingParams { temperature: 0.7, ..SamplingParams::new(128) };
/// assert_eq!(params.top_k, -1);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SamplingParams {
    /// The most tokens to generate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Makes the draw repeatable; without one it is random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// When to stop; `None` stops at the model's end of sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Divides the logits; 0 always takes the likeliest token. Default 1.
    pub temperature: f64,
    /// Draws from this many of the likeliest tokens; -1 means from all. Default -1.
    pub top_k: i32,
    /// Draws from the fewest tokens that together have this probability. Default 1.
    pub top_p: f64,
}

impl SamplingParams {
    /// Makes the default parameters with this many tokens at most.
    pub fn new(max_tokens: u32) -> Self {
        Self {
            max_tokens: Some(max_tokens),
            ..Self::default()
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If a value is out of range; the error names it.
    pub fn check(&self) -> Result<(), InvalidInput> {
        let field = |name| format!("sampling_params.{name}");
        if self.max_tokens == Some(0) {
            return Err(InvalidInput::new(field("max_tokens"), 0, "1 or more"));
        }
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            let allowed = "a finite number, 0 or more";
            return Err(InvalidInput::new(
                field("temperature"),
                self.temperature,
                allowed,
            ));
        }
        if !(self.top_k == -1 || self.top_k >= 1) {
            return Err(InvalidInput::new(
                field("top_k"),
                self.top_k,
                "-1 for all, or 1 or more",
            ));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(InvalidInput::new(
                field("top_p"),
                self.top_p,
                "above 0 and at most 1",
            ));
        }
        Ok(())
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_tokens: None,
            seed: None,
            stop: None,
            temperature: 1.0,
            top_k: -1,
            top_p: 1.0,
        }
    }
}

/// What to report besides the sampled tokens and their log-probabilities.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleOptions {
    /// The log-probability of each prompt token.
    pub prompt_logprobs: bool,
    /// This many of the likeliest tokens at each prompt position.
    pub topk_prompt_logprobs: u32,
    /// This many of the likeliest tokens at each sampled position.
    pub topk_sample_logprobs: u32,
    /// The log-probabilities of these tokens: `int64` of shape `[prompt length - 1, k]`, -1 to skip.
    pub target_prompt_logprobs: Option<TensorData>,
    /// This many draws at each prompt position after the first.
    pub prompt_alt_tokens_k: u32,
    /// Reports on the last so many prompt positions only.
    pub prompt_logprobs_last_n: Option<u32>,
    /// Records what the loss `stable_reinforce` needs.
    pub record_stability_info: bool,
}

impl SampleOptions {
    /// Checks what can be known before the prompt's length is.
    ///
    /// # Errors
    /// If options contradict each other or a tensor has the wrong type; the error names them.
    pub fn check(&self) -> Result<(), InvalidInput> {
        if let Some(targets) = &self.target_prompt_logprobs {
            let field = "target_prompt_logprobs";
            if targets.dtype() != Dtype::Int64 {
                return Err(InvalidInput::new(field, targets.dtype(), "int64"));
            }
            if targets.shape().is_none_or(|shape| shape.len() != 2) {
                let found = targets
                    .shape()
                    .map_or("no shape".to_owned(), |s| format!("shape {s:?}"));
                return Err(InvalidInput::new(
                    field,
                    found,
                    "shape [prompt length - 1, k]",
                ));
            }
        }
        match self.prompt_logprobs_last_n {
            Some(0) => Err(InvalidInput::new("prompt_logprobs_last_n", 0, "1 or more")),
            Some(n) if !self.prompt_logprobs => Err(InvalidInput::new(
                "prompt_logprobs_last_n",
                format_args!("{n} without prompt_logprobs"),
                "prompt_logprobs to be asked for as well",
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_form_of_stop_survives_json_and_omission_differs_from_empty() {
        for stop in [json!([]), json!("\n"), json!(["a", "b"]), json!([1, 2])] {
            let body = json!({"max_tokens": 3, "stop": stop, "temperature": 1.0, "top_k": -1, "top_p": 1.0});
            let params: SamplingParams = serde_json::from_value(body.clone()).unwrap();
            assert_eq!(serde_json::to_value(&params).unwrap(), body);
        }
        let omitted: SamplingParams = serde_json::from_value(json!({"stop": null})).unwrap();
        assert_eq!(omitted.stop, None);
        assert_eq!(serde_json::to_value(&omitted).unwrap().get("stop"), None);
    }

    #[test]
    fn a_stop_list_of_both_kinds_is_refused() {
        let error = serde_json::from_value::<Stop>(json!(["a", 1])).unwrap_err();
        assert!(
            error.to_string().contains("mixes texts and token ids"),
            "{error}"
        );
        assert!(serde_json::from_value::<Stop>(json!([-1])).is_err());
    }

    #[test]
    fn parameters_out_of_range_are_refused_by_name() {
        let base = || SamplingParams::new(8);
        base().check().unwrap();
        let cases = [
            ("max_tokens", SamplingParams::new(0)),
            (
                "temperature",
                SamplingParams {
                    temperature: -0.1,
                    ..base()
                },
            ),
            (
                "temperature",
                SamplingParams {
                    temperature: f64::NAN,
                    ..base()
                },
            ),
            ("top_k", SamplingParams { top_k: 0, ..base() }),
            (
                "top_p",
                SamplingParams {
                    top_p: 0.0,
                    ..base()
                },
            ),
            (
                "top_p",
                SamplingParams {
                    top_p: 1.5,
                    ..base()
                },
            ),
        ];
        for (name, params) in cases {
            assert_eq!(
                params.check().unwrap_err().field(),
                format!("sampling_params.{name}")
            );
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let last_n = SampleOptions {
            prompt_logprobs_last_n: Some(2),
            ..SampleOptions::default()
        };
        assert!(last_n.check().is_err());
        assert!(
            SampleOptions {
                prompt_logprobs: true,
                ..last_n
            }
            .check()
            .is_ok()
        );
        let flat = SampleOptions {
            target_prompt_logprobs: Some(TensorData::from(vec![1])),
            ..SampleOptions::default()
        };
        assert_eq!(flat.check().unwrap_err().field(), "target_prompt_logprobs");
    }
}
