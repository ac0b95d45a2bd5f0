//! The names of members where responses have other ones than the chat completions that they are read as.

use crate::endpoints::dialect::named_member;
use crate::error::ApiError;

/// Where the messages of a chat completion come from.
#[derive(Debug, Default)]
pub(super) struct Places(pub(super) Vec<Place>);

/// Where a message comes from.
#[derive(Debug)]
pub(super) struct Place {
    /// The member that has what is said: `input[2].content`, `input[3].output` or `instructions`.
    pub(super) content: String,
    /// The item of each call: `input[4]`.
    pub(super) calls: Vec<String>,
}

/// What members are called, and their beginnings.
const NAMES: [(&str, &str); 7] = [
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    ("response_format.json_schema.schema", "text.format.schema"),
    ("response_format.json_schema", "text.format.schema"),
    ("response_format", "text.format"),
    ("messages", "input"),
];

impl Places {
    /// Names the member of a refusal as the request does.
    pub(super) fn rename(&self, error: ApiError) -> ApiError {
        let renamed = named_member(error.detail()).and_then(|member| {
            let name = self.name(member)?;
            let rest = &error.detail()[member.len() + 2..];
            Some(format!("`{name}`{rest}"))
        });
        match renamed {
            Some(detail) => error.with_detail(detail),
            None => error,
        }
    }

    fn name(&self, member: &str) -> Option<String> {
        if let Some(name) = self.of_message(member) {
            return Some(name);
        }
        if let Some((tool, of_function)) = member.split_once(".function.") {
            return Some(format!("{tool}.{of_function}"));
        }
        NAMES.iter().find_map(|(chat, name)| {
            let rest = member.strip_prefix(chat)?;
            let is_whole = rest.is_empty() || rest.starts_with('.');
            is_whole.then(|| format!("{name}{rest}"))
        })
    }

    fn of_message(&self, member: &str) -> Option<String> {
        let (index, rest) = member.strip_prefix("messages[")?.split_once("].")?;
        let place = self.0.get(index.parse::<usize>().ok()?)?;
        if let Some(rest) = rest.strip_prefix("content") {
            return Some(format!("{}{rest}", place.content));
        }
        let (index, rest) = rest.strip_prefix("tool_calls[")?.split_once("].function")?;
        let item = place.calls.get(index.parse::<usize>().ok()?)?;
        Some(format!("{item}{rest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_named_as_responses_call_them() {
        let place = |content: &str, calls: &[&str]| Place {
            content: content.to_owned(),
            calls: calls.iter().map(|call| (*call).to_owned()).collect(),
        };
        let places = Places(vec![
            place("instructions", &[]),
            place("input[1].content", &["input[2]", "input[3]"]),
            place("input[4].output", &[]),
        ]);
        let cases = [
            ("max_tokens", "max_output_tokens"),
            ("reasoning_effort", "reasoning.effort"),
            ("response_format.json_schema.schema", "text.format.schema"),
            ("response_format.type", "text.format.type"),
            ("messages", "input"),
            ("messages[1].content[0].text", "input[1].content[0].text"),
            (
                "messages[1].tool_calls[1].function.arguments",
                "input[3].arguments",
            ),
            ("messages[2].content[5].text", "input[4].output[5].text"),
            ("tools[2].function.name", "tools[2].name"),
            ("tool_choice", "tool_choice"),
            ("model", "model"),
        ];
        for (chat, own) in cases {
            let error = ApiError::not_found(format!("`{chat}`: found `x`, expected `y`"));
            let renamed = places.rename(error);
            assert_eq!(
                renamed.detail(),
                format!("`{own}`: found `x`, expected `y`")
            );
            assert_eq!(renamed.status(), 404);
        }
        let other = places.rename(ApiError::busy("the queue is full"));
        assert_eq!(other.detail(), "the queue is full");
    }
}
