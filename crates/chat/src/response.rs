//! Reading what a model wrote: thinking, words and tool calls.
//!
//! Models make mistakes, so reading never fails. What is not a tool call stays text and is
//! counted, which lets a reward say "well-formed calls only".

use crate::{Json, Message, ToolCall};

/// What a tool call begins with, as ChatML models write it.
pub(crate) const TOOL_CALL: &str = "<tool_call>";
/// What it ends with.
pub(crate) const TOOL_CALL_END: &str = "</tool_call>";
/// What thinking begins with.
pub(crate) const THINK: &str = "<think>";
/// What it ends with.
pub(crate) const THINK_END: &str = "</think>";
/// What Llama 3 may write in front of a tool call.
pub(crate) const PYTHON_TAG: &str = "<|python_tag|>";

/// What a model wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The message.
    pub message: Message,
    /// Whether the model ended it, rather than running out of tokens.
    pub finished: bool,
    /// How many blocks looked like tool calls and were not. Their text is in the content.
    pub malformed_calls: usize,
}

impl Response {
    /// Reads `<think>` and `<tool_call>` blocks, as ChatML models write them.
    pub(crate) fn from_tagged_text(text: &str, finished: bool) -> Self {
        Self::from_blocks(text, finished, (TOOL_CALL, TOOL_CALL_END), json_call)
    }

    /// Reads a `<think>` block and blocks of tool calls; `read` reads the inside of one.
    pub(crate) fn from_blocks(
        text: &str,
        finished: bool,
        (open, close): (&str, &str),
        read: impl Fn(&str) -> Option<Vec<ToolCall>>,
    ) -> Self {
        let (thinking, mut rest) = split_thinking(text);
        let mut message = Message::assistant("");
        message.thinking = thinking;
        let mut malformed_calls = 0;
        let mut content = String::new();
        while let Some((before, inside)) = rest.split_once(open) {
            let (block, after) = inside.split_once(close).unwrap_or((inside, ""));
            match read(block) {
                Some(calls) => {
                    // The line breaks around a block belong to the block.
                    content.push_str(before.trim_end_matches('\n'));
                    message.tool_calls.extend(calls);
                }
                None => {
                    malformed_calls += 1;
                    content.push_str(&rest[..rest.len() - after.len()]);
                }
            }
            rest = after;
        }
        if message.tool_calls.is_empty() || !rest.trim().is_empty() {
            content.push_str(rest);
        }
        message.content = content;
        Self {
            message,
            finished,
            malformed_calls,
        }
    }

    /// Reads a message that is a tool call if it is nothing but a JSON object with a name, as
    /// Llama 3 writes them.
    pub(crate) fn from_json_or_text(text: &str, finished: bool) -> Self {
        let body = text.trim();
        let body = body.strip_prefix(PYTHON_TAG).unwrap_or(body);
        let mut message = Message::assistant("");
        let looks_like_a_call = body.starts_with("{\"name\"");
        match Json::parse(body)
            .ok()
            .as_ref()
            .and_then(|json| tool_call(json, "parameters"))
        {
            Some(call) => message.tool_calls.push(call),
            None => message.content = text.trim().to_owned(),
        }
        let malformed_calls = usize::from(looks_like_a_call && message.tool_calls.is_empty());
        Self {
            message,
            finished,
            malformed_calls,
        }
    }

    /// Reads plain words.
    pub(crate) fn from_words(text: &str, finished: bool) -> Self {
        Self {
            message: Message::assistant(text.trim()),
            finished,
            malformed_calls: 0,
        }
    }
}

/// Splits what was thought from the rest. The opening tag may be part of the prompt, and the
/// closing one may never have come.
fn split_thinking(text: &str) -> (Option<String>, &str) {
    let opened = text.trim_start().strip_prefix(THINK);
    match (opened, opened.unwrap_or(text).split_once(THINK_END)) {
        (_, Some((thought, said))) => {
            let thought = thought.trim_matches('\n');
            let thought = (!thought.is_empty()).then(|| thought.to_owned());
            (thought, said.trim_start_matches('\n'))
        }
        (Some(unfinished), None) => (Some(unfinished.trim_matches('\n').to_owned()), ""),
        (None, None) => (None, text),
    }
}

/// Reads a call in JSON.
pub(crate) fn json_call(block: &str) -> Option<Vec<ToolCall>> {
    let json = Json::parse(block.trim()).ok()?;
    Some(vec![tool_call(&json, "arguments")?])
}

fn tool_call(json: &Json, arguments: &str) -> Option<ToolCall> {
    let name = json.get("name")?.as_str()?;
    let arguments = json.get(arguments)?;
    matches!(arguments, Json::Object(_)).then(|| ToolCall::new(name, arguments.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tagged_text_is_taken_apart() {
        let call = |text: &str| format!("<tool_call>\n{text}\n</tool_call>");
        let add = r#"{"name": "add", "arguments": {"a": 1}}"#;
        let cases = [
            ("hello".to_owned(), None, "hello", 0, 0),
            (
                "<think>\nhm\n</think>\n\nhello".to_owned(),
                Some("hm"),
                "hello",
                0,
                0,
            ),
            (
                "<think>\n\n</think>\n\nhello".to_owned(),
                None,
                "hello",
                0,
                0,
            ),
            (
                "hm\n</think>\n\nhello".to_owned(),
                Some("hm"),
                "hello",
                0,
                0,
            ),
            ("<think>\nhm".to_owned(), Some("hm"), "", 0, 0),
            (format!("x\n{}", call(add)), None, "x", 1, 0),
            (format!("{}\n{}", call(add), call(add)), None, "", 2, 0),
            (
                call("{oops"),
                None,
                "<tool_call>\n{oops\n</tool_call>",
                0,
                1,
            ),
            (
                "<tool_call>\n{\"name\"".to_owned(),
                None,
                "<tool_call>\n{\"name\"",
                0,
                1,
            ),
        ];
        for (text, thinking, content, calls, malformed) in cases {
            let response = Response::from_tagged_text(&text, true);
            assert_eq!(response.message.thinking.as_deref(), thinking, "{text}");
            assert_eq!(response.message.content, content, "{text}");
            assert_eq!(response.message.tool_calls.len(), calls, "{text}");
            assert_eq!(response.malformed_calls, malformed, "{text}");
        }
    }

    #[test]
    fn a_json_object_with_a_name_is_a_call_of_llama_3() {
        let read = |text: &str| Response::from_json_or_text(text, true);
        let response = read(r#"{"name": "add", "parameters": {"a": 1}}"#);
        assert_eq!(response.message.tool_calls[0].name, "add");
        assert_eq!(read(r#"{"name": "add"}"#).malformed_calls, 1);
        assert_eq!(read(r#"{"age": 1}"#).message.content, r#"{"age": 1}"#);
    }
}
