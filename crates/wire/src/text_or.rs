//! Values that are a text, or something with members of its own.
//!
//! Serde's untagged enums read into a buffer first, which hides what is inside: members that nothing reads would be
//! ignored without a word, and a wrong one would have no name.

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A text, or something else.
pub(crate) enum TextOr<T> {
    Text(String),
    Other(T),
}

impl<'de, T: Deserialize<'de>> TextOr<T> {
    /// Reads either. `expecting` says what there may be.
    pub(crate) fn read<D: Deserializer<'de>>(
        from: D,
        expecting: &'static str,
    ) -> Result<Self, D::Error> {
        from.deserialize_any(Reader {
            expecting,
            other: PhantomData,
        })
    }
}

struct Reader<T> {
    expecting: &'static str,
    other: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
    type Value = TextOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, from: A) -> Result<Self::Value, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(from)).map(TextOr::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(from)).map(TextOr::Other)
    }
}

/// Reads an enum that is a text or something else.
macro_rules! text_or {
    ($name:ident: $text:ident or $other:ident, $expecting:literal) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Ok(match $crate::text_or::TextOr::read(from, $expecting)? {
                    $crate::text_or::TextOr::Text(text) => Self::$text(text),
                    $crate::text_or::TextOr::Other(other) => Self::$other(other),
                })
            }
        }
    };
}

pub(crate) use text_or;

#[cfg(test)]
mod tests {
    use crate::Body;
    use crate::anthropic::MessagesRequest;
    use crate::openai::chat::ChatCompletionRequest;
    use crate::openai::responses::ResponsesRequest;
    use serde_json::{Value, json};

    fn refusal<B: Body>(body: &Value) -> Option<String> {
        let body = body.to_string();
        B::decode_strict(body.as_bytes())
            .err()
            .map(|error| error.to_string())
    }

    #[test]
    fn members_inside_of_what_may_be_a_text_are_known_and_have_their_place() {
        let part = json!({"type": "text", "text": "x"});
        let with = |member: &str, value: Value| {
            let mut part = part.clone();
            part[member] = value;
            part
        };
        let colour = || with("colour", json!("red"));
        let chat =
            |part: Value| json!({"model": "m", "messages": [{"role": "user", "content": [part]}]});
        let item =
            |part: Value| json!({"model": "m", "input": [{"role": "user", "content": [part]}]});
        let block = |part: Value| json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]});
        let result = json!({"type": "tool_result", "tool_use_id": "a", "content": [colour()]});
        let place = "messages[0].content[0]";
        let cases = [
            (refusal::<ChatCompletionRequest>(&chat(part.clone())), None),
            (
                refusal::<ChatCompletionRequest>(&chat(colour())),
                Some(format!("`{place}.colour`")),
            ),
            (
                refusal::<ChatCompletionRequest>(&chat(with("text", json!(5)))),
                Some(format!("`{place}.text`")),
            ),
            (
                refusal::<ChatCompletionRequest>(&chat(
                    json!({"type": "image_url", "image_url": {"url": "x"}}),
                )),
                Some(format!("`{place}.type`")),
            ),
            (
                refusal::<ChatCompletionRequest>(
                    &json!({"model": "m", "tool_choice": {"type": "mcp", "function": {"name": "f"}}}),
                ),
                Some("`tool_choice.type`".to_owned()),
            ),
            (refusal::<ResponsesRequest>(&item(part.clone())), None),
            (
                refusal::<ResponsesRequest>(&item(colour())),
                Some("`input[0].content[0].colour`".to_owned()),
            ),
            (
                refusal::<ResponsesRequest>(
                    &json!({"model": "m", "input": [{"type": "image_generation_call", "result": "x"}]}),
                ),
                Some("`input[0].type`".to_owned()),
            ),
            (refusal::<MessagesRequest>(&block(part.clone())), None),
            (
                refusal::<MessagesRequest>(&block(colour())),
                Some(format!("`{place}.colour`")),
            ),
            (
                refusal::<MessagesRequest>(&block(with("citations", json!([{"url": "x"}])))),
                Some(format!("`{place}.citations`")),
            ),
            (
                refusal::<MessagesRequest>(&block(json!({"type": "image", "source": {}}))),
                Some(format!("`{place}.type`")),
            ),
            (
                refusal::<MessagesRequest>(&block(result)),
                Some(format!("`{place}.content[0].colour`")),
            ),
        ];
        for (index, (found, expected)) in cases.iter().enumerate() {
            match (found, expected) {
                (None, None) => {}
                (Some(found), Some(expected)) if found.starts_with(expected.as_str()) => {}
                other => panic!("case {index}: {other:?}"),
            }
        }
    }

    #[test]
    fn an_answer_can_be_sent_back_as_it_came() {
        let answer = json!([
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "x", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}", "status": "completed",
                "caller": null},
            {"type": "function_call_output", "call_id": "call_1", "output": "y"},
        ]);
        let body = json!({"model": "m", "input": answer});
        assert_eq!(refusal::<ResponsesRequest>(&body), None);
    }
}
