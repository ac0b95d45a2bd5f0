//! Questions that several formats ask about a conversation.

use crate::response::{THINK, THINK_END};
use crate::{Json, Message, Role};
use std::collections::BTreeMap;

/// Returns where the last user's message is.
pub(super) fn last_user(messages: &[Message]) -> Option<usize> {
    messages
        .iter()
        .rposition(|message| message.role == Role::User)
}

/// Returns whether there is a message of this role at a place.
pub(super) fn is_role(messages: &[Message], index: Option<usize>, role: Role) -> bool {
    let message = index.and_then(|index| messages.get(index));
    message.is_some_and(|message| message.role == role)
}

/// Returns the system message that a conversation begins with, and what follows it.
pub(super) fn split_system(messages: &[Message]) -> (Option<&Message>, usize) {
    let first = messages.first();
    let first = first.filter(|message| message.role == Role::System);
    (first, usize::from(first.is_some()))
}

/// Returns what an answer thinks and what it says, also where both are in its content.
pub(super) fn split_thinking(message: &Message) -> (&str, &str) {
    let content = message.content.as_str();
    match (&message.thinking, content.rsplit_once(THINK_END)) {
        (Some(thinking), _) => (thinking, content),
        (None, None) => ("", content),
        (None, Some((_, said))) => {
            let before = content
                .split_once(THINK_END)
                .map_or("", |(before, _)| before);
            let before = before.trim_end_matches('\n');
            let thought = before
                .rsplit_once(THINK)
                .map_or(before, |(_, thought)| thought);
            (
                thought.trim_start_matches('\n'),
                said.trim_start_matches('\n'),
            )
        }
    }
}

/// Returns the function that a tool's definition describes.
pub(super) fn function(tool: &Json) -> &Json {
    tool.get("function").unwrap_or(tool)
}

/// Returns a member of a definition that is a text.
pub(super) fn text_member<'j>(json: &'j Json, name: &str) -> Option<&'j str> {
    json.get(name).and_then(Json::as_str)
}

/// Returns the name of the tool whose result a message is: its own, or that of the call it answers.
///
/// Results without an id answer the calls in their order.
pub(super) fn tool_name(messages: &[Message], index: usize) -> Option<&str> {
    let message = &messages[index];
    if let Some(name) = &message.name {
        return Some(name);
    }
    let caller = messages[..index]
        .iter()
        .rposition(|message| message.role == Role::Assistant)?;
    let calls = &messages[caller].tool_calls;
    let call = match &message.tool_call_id {
        Some(id) => calls.iter().find(|call| call.id.as_ref() == Some(id)),
        None => {
            let before = messages[caller..index].iter();
            calls.get(before.filter(|message| message.role == Role::Tool).count())
        }
    };
    call.map(|call| call.name.as_str())
}

/// Returns the places of neighbouring tool results in the order of the calls that they answer, if
/// every one of them says which: the order in which they arrived is of no meaning.
pub(super) fn in_call_order(messages: &[Message], results: &[usize]) -> Vec<usize> {
    let caller = results.first().and_then(|first| first.checked_sub(1));
    let caller = caller.and_then(|caller| messages.get(caller));
    let calls = caller.map_or(&[][..], |caller| &caller.tool_calls);
    let mut order = BTreeMap::new();
    for (position, call) in calls.iter().enumerate() {
        match &call.id {
            Some(id) if !id.is_empty() && order.insert(id, position).is_none() => {}
            _ => return results.to_vec(),
        }
    }
    let mut sorted = BTreeMap::new();
    for index in results {
        let id = messages[*index].tool_call_id.as_ref();
        match id.and_then(|id| order.get(id)) {
            Some(position) if sorted.insert(*position, *index).is_none() => {}
            _ => return results.to_vec(),
        }
    }
    sorted.into_values().collect()
}

/// Returns the text of a value as Python's `str` makes it of one that is not a list or an object.
pub(super) fn python_text(value: &Json) -> String {
    match value {
        Json::Text(text) => text.clone(),
        Json::Bool(true) => "True".to_owned(),
        Json::Bool(false) => "False".to_owned(),
        Json::Null => "None".to_owned(),
        Json::Number(_) | Json::List(_) | Json::Object(_) => value.to_string(),
    }
}

/// Returns a text as it is, and any other value as JSON.
pub(super) fn text_or_json(value: &Json) -> String {
    match value {
        Json::Text(text) => text.clone(),
        _ => value.to_string(),
    }
}

/// Returns the members of an object.
pub(super) fn members(json: &Json) -> &[(String, Json)] {
    match json {
        Json::Object(members) => members,
        _ => &[],
    }
}

/// Reads a value that is a text, unless it is JSON.
pub(super) fn json_or_text(text: &str) -> Json {
    Json::parse(text).unwrap_or_else(|_| Json::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolCall;

    fn call(id: &str, name: &str) -> ToolCall {
        let mut call = ToolCall::new(name, Json::Object(Vec::new()));
        call.id = (!id.is_empty()).then(|| id.to_owned());
        call
    }

    fn result(id: &str) -> Message {
        let mut result = Message::tool("r");
        result.tool_call_id = (!id.is_empty()).then(|| id.to_owned());
        result
    }

    #[test]
    fn results_are_sorted_by_call_only_if_all_say_which_they_answer() {
        let chat = |ids: [&str; 2], results: [&str; 2]| {
            let asked = Message::assistant("")
                .call(call(ids[0], "a"))
                .call(call(ids[1], "b"));
            vec![asked, result(results[0]), result(results[1])]
        };
        let cases = [
            (["1", "2"], ["2", "1"], [2, 1]),
            (["1", "2"], ["1", "2"], [1, 2]),
            (["1", "1"], ["2", "1"], [1, 2]),
            (["1", ""], ["2", "1"], [1, 2]),
            (["1", "2"], ["2", "3"], [1, 2]),
            (["1", "2"], ["2", "2"], [1, 2]),
            (["1", "2"], ["2", ""], [1, 2]),
        ];
        for (ids, results, expected) in cases {
            let messages = chat(ids, results);
            assert_eq!(
                in_call_order(&messages, &[1, 2]),
                expected,
                "{ids:?} {results:?}"
            );
        }
    }

    #[test]
    fn a_result_has_the_name_of_the_call_that_it_answers() {
        let asked = Message::assistant("")
            .call(call("1", "a"))
            .call(call("2", "b"));
        let messages = vec![asked, result("2"), result(""), result("9")];
        assert_eq!(tool_name(&messages, 1), Some("b"));
        assert_eq!(tool_name(&messages, 2), Some("b"), "the second result");
        assert_eq!(tool_name(&messages, 3), None);
    }
}
