//! From the messages and tools of the Anthropic API to a conversation.

use std::collections::HashMap;

use serde_json::Value;
use tinkrs_chat::{Conversation, Effort, Json, Message, RenderOptions, Role, ToolCall};
use tinkrs_wire::anthropic::{
    Block, BlockKind, Blocks, CountTokensRequest, MessagesRequest, OutputConfig, RequestMessage,
    ThinkingConfig, Tool, ToolChoice,
};

use super::{found, tools};
use crate::endpoints::missing;
use crate::endpoints::question::AnswerShape;
use crate::error::ApiError;

/// Fewest tokens of a budget for thoughts, as the Anthropic API has it.
const LEAST_BUDGET: u32 = 1024;

/// What makes the prompt, of either request.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    system: Option<&'a Blocks>,
    messages: &'a [RequestMessage],
    tools: Option<&'a [Tool]>,
    tool_choice: Option<&'a ToolChoice>,
    thinking: Option<&'a ThinkingConfig>,
    output_config: Option<&'a OutputConfig>,
    /// If the request has it.
    max_tokens: Option<u32>,
}

impl<'a> From<&'a MessagesRequest> for Asked<'a> {
    fn from(request: &'a MessagesRequest) -> Self {
        Self {
            system: request.system.as_ref(),
            messages: &request.messages,
            tools: request.tools.as_deref(),
            tool_choice: request.tool_choice.as_ref(),
            thinking: request.thinking.as_ref(),
            output_config: request.output_config.as_ref(),
            max_tokens: request.max_tokens,
        }
    }
}

impl<'a> From<&'a CountTokensRequest> for Asked<'a> {
    fn from(request: &'a CountTokensRequest) -> Self {
        Self {
            system: request.system.as_ref(),
            messages: &request.messages,
            tools: request.tools.as_deref(),
            tool_choice: request.tool_choice.as_ref(),
            thinking: request.thinking.as_ref(),
            output_config: request.output_config.as_ref(),
            max_tokens: None,
        }
    }
}

/// A conversation that is to be continued.
#[derive(Debug)]
pub(super) struct Translated {
    pub(super) conversation: Conversation,
    pub(super) options: RenderOptions,
    /// Whether thoughts are to be off, as by default: they are turned off where the format can, and it has none otherwise.
    pub(super) has_default_thinking: bool,
    pub(super) parallel_calls: bool,
    /// The call that an answer has to be, if it has to.
    pub(super) shape: Option<AnswerShape>,
}

/// Reads what makes the prompt.
pub(super) fn translate(asked: Asked<'_>) -> Result<Translated, ApiError> {
    let (messages, last) = match asked.messages {
        [] => return Err(found("messages", "none", "at least one message")),
        [messages @ .., last] if last.role == "assistant" => (messages, Some(last)),
        messages => (messages, None),
    };
    let mut reader = Reader::default();
    if let Some(system) = asked.system {
        let text = text_of(system, "system")?;
        reader.push(Message::system(text));
    }
    for (index, message) in messages.iter().enumerate() {
        reader.read(message, index)?;
    }
    let mut options = options(asked)?;
    if let Some(last) = last {
        let member = format!("messages[{}].content", messages.len());
        options.prefill = Some(text_of(&last.content, &member)?);
    }
    let mut conversation = Conversation::from(reader.messages);
    let choice = asked.tool_choice;
    let one_call = choice.and_then(|choice| choice.disable_parallel_tool_use);
    let tools::Offer { written, shape } = tools::offer(asked.tools.unwrap_or_default(), choice)?;
    conversation.tools = written;
    if shape.is_some() && options.prefill.is_some() {
        let expected = "the message before the call to be the user's";
        return Err(found("messages", "an answer that is begun", expected));
    }
    Ok(Translated {
        conversation,
        shape,
        has_default_thinking: asked.thinking.is_none_or(is_off)
            && options.reasoning_effort.is_none(),
        options,
        parallel_calls: !one_call.unwrap_or(false),
    })
}

#[derive(Default)]
struct Reader {
    messages: Vec<Message>,
    /// What is called by each id.
    calls: HashMap<String, String>,
}

impl Reader {
    /// Adds a message. Neighbours of the same speaker become one, as the API says.
    fn push(&mut self, message: Message) {
        match self.messages.last_mut() {
            Some(last) if last.role == message.role && message.role != Role::Tool => {
                join(&mut last.content, &message.content);
                if let Some(thinking) = message.thinking {
                    join(last.thinking.get_or_insert_default(), &thinking);
                }
                last.tool_calls.extend(message.tool_calls);
            }
            _ => self.messages.push(message),
        }
    }

    fn read(&mut self, message: &RequestMessage, index: usize) -> Result<(), ApiError> {
        let role = match message.role.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            other => {
                let member = format!("messages[{index}].role");
                let expected = "`user`, `assistant` or `system`";
                return Err(found(&member, format!("`{other}`"), expected));
            }
        };
        let member = format!("messages[{index}].content");
        let blocks = match &message.content {
            Blocks::Text(text) => {
                self.push(Message::new(role, text));
                return Ok(());
            }
            Blocks::List(blocks) => blocks,
        };
        for (place, block) in blocks.iter().enumerate() {
            let made = self.block(role, block, &format!("{member}[{place}]"))?;
            self.push(made);
        }
        Ok(())
    }

    fn block(&mut self, role: Role, block: &Block, member: &str) -> Result<Message, ApiError> {
        let of = |name: &str| format!("{member}.{name}");
        let given =
            |value: &Option<String>, name: &str| value.clone().ok_or_else(|| missing(&of(name)));
        match (block.kind, role) {
            (BlockKind::Text, _) => Ok(Message::new(role, given(&block.text, "text")?)),
            (BlockKind::Thinking, Role::Assistant) => {
                Ok(Message::assistant("").thinking(given(&block.thinking, "thinking")?))
            }
            (BlockKind::ToolUse, Role::Assistant) => {
                let (id, name) = (given(&block.id, "id")?, given(&block.name, "name")?);
                let input = block.input.as_ref().ok_or_else(|| missing(&of("input")))?;
                if !input.is_object() {
                    return Err(found(&of("input"), input, "an object"));
                }
                let mut call = ToolCall::new(&name, to_json(input));
                call.id = Some(id.clone());
                self.calls.insert(id, name);
                Ok(Message::assistant("").call(call))
            }
            (BlockKind::ToolResult, Role::User) => {
                let id = given(&block.tool_use_id, "tool_use_id")?;
                let Some(name) = self.calls.get(&id) else {
                    let expected = "the `id` of a `tool_use` before it";
                    return Err(found(&of("tool_use_id"), format!("`{id}`"), expected));
                };
                let content = block.content.as_deref();
                let text = content.map(|content| text_of(content, &of("content")));
                let text = text.transpose()?.unwrap_or_default();
                let failed = block.is_error.unwrap_or(false);
                let mut result = Message::tool(if failed {
                    format!("Error: {text}")
                } else {
                    text
                });
                result.name = Some(name.clone());
                result.tool_call_id = Some(id);
                Ok(result)
            }
            (kind, _) => Err(wrong_block(kind, role, &of("type"))),
        }
    }
}

fn wrong_block(kind: BlockKind, role: Role, member: &str) -> ApiError {
    let expected = match role {
        Role::Assistant => "`text`, `thinking` or `tool_use`",
        Role::User => "`text` or `tool_result`: the models of this server read text only",
        Role::System | Role::Tool => "`text`",
    };
    found(member, format!("`{}`", kind.name()), expected)
}

/// Joins the blocks of something that is text only.
fn text_of(blocks: &Blocks, member: &str) -> Result<String, ApiError> {
    let blocks = match blocks {
        Blocks::Text(text) => return Ok(text.clone()),
        Blocks::List(blocks) => blocks,
    };
    let mut text = String::new();
    for (place, block) in blocks.iter().enumerate() {
        let of = |name: &str| format!("{member}[{place}].{name}");
        if block.kind != BlockKind::Text {
            let kind = format!("`{}`", block.kind.name());
            return Err(found(&of("type"), kind, "`text`"));
        }
        let said = block.text.as_deref().ok_or_else(|| missing(&of("text")))?;
        join(&mut text, said);
    }
    Ok(text)
}

/// Adds a block, behind a line break where both say something.
fn join(text: &mut String, block: &str) {
    if !text.is_empty() && !block.is_empty() {
        text.push('\n');
    }
    text.push_str(block);
}

fn is_off(thinking: &ThinkingConfig) -> bool {
    thinking.kind == "disabled"
}

/// Writes a value as the chat formats want it.
pub(super) fn to_json(value: &Value) -> Json {
    Json::parse(&value.to_string()).expect("what was read as JSON is JSON")
}

/// Reads what is asked of the chat format.
fn options(asked: Asked<'_>) -> Result<RenderOptions, ApiError> {
    let mut options = RenderOptions::prompt();
    if let Some(thinking) = asked.thinking {
        let budget = thinking.budget_tokens;
        options.thinking = match (thinking.kind.as_str(), budget) {
            ("enabled", Some(budget)) => {
                let most = asked
                    .max_tokens
                    .map_or(u32::MAX, |most| most.saturating_sub(1));
                if budget < LEAST_BUDGET || budget > most {
                    let expected = format!("{LEAST_BUDGET} or more, and less than `max_tokens`");
                    return Err(found("thinking.budget_tokens", budget, expected));
                }
                Some(true)
            }
            ("enabled", None) => return Err(missing("thinking.budget_tokens")),
            ("disabled", None) => Some(false),
            ("adaptive", None) => None,
            ("disabled" | "adaptive", Some(budget)) => {
                let expected = format!("nothing with `{}`", thinking.kind);
                return Err(found("thinking.budget_tokens", budget, expected));
            }
            (kind, _) => {
                let expected = "`enabled`, `disabled` or `adaptive`";
                return Err(found("thinking.type", format!("`{kind}`"), expected));
            }
        };
    }
    let effort = asked
        .output_config
        .and_then(|config| config.effort.as_deref());
    options.reasoning_effort = match effort {
        None => None,
        Some("low") => Some(Effort::Low),
        Some("medium") => Some(Effort::Medium),
        Some("high" | "xhigh") => Some(Effort::High),
        Some("max") => Some(Effort::Max),
        Some(other) => {
            let expected = "`low`, `medium`, `high`, `xhigh` or `max`";
            return Err(found(
                "output_config.effort",
                format!("`{other}`"),
                expected,
            ));
        }
    };
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: &Value) -> Result<Translated, ApiError> {
        let mut body = body.clone();
        body["model"] = json!("m");
        let request: MessagesRequest = serde_json::from_value(body).unwrap();
        translate(Asked::from(&request))
    }

    /// Reads a conversation, and writes it as chat files have it.
    fn written(body: &Value) -> Value {
        let translated = read(body).unwrap();
        serde_json::to_value(&translated.conversation.messages).unwrap()
    }

    #[test]
    fn blocks_become_messages_of_those_who_speak() {
        let body = json!({
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be kind."}],
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Look it up.", "signature": "x"},
                    {"type": "text", "text": "One moment."},
                    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"where": "here"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "text", "text": "So?"},
                ]},
                {"role": "user", "content": "Well?"},
            ],
        });
        let expected = json!([
            {"role": "system", "content": "Be brief.\nBe kind."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "One moment.", "reasoning_content": "Look it up.",
                "tool_calls": [{"id": "toolu_1", "type": "function",
                    "function": {"name": "look", "arguments": {"where": "here"}}}]},
            {"role": "tool", "content": "rain", "tool_call_id": "toolu_1", "name": "look"},
            {"role": "user", "content": "So?\nWell?"},
        ]);
        assert_eq!(written(&body), expected);
    }

    #[test]
    fn failed_calls_say_so_and_calls_without_content_say_nothing() {
        let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
        let body = json!({"messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [call("a"), call("b")]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": true},
                {"type": "tool_result", "tool_use_id": "b"},
            ]},
        ]});
        let written = written(&body);
        assert_eq!(written[1]["tool_calls"].as_array().unwrap().len(), 2);
        assert_eq!(written[2]["content"], "Error: no");
        assert_eq!(written[3]["content"], "");
    }

    #[test]
    fn every_effort_is_that_of_the_format() {
        let efforts = [
            ("low", Effort::Low),
            ("medium", Effort::Medium),
            ("high", Effort::High),
            ("xhigh", Effort::High),
            ("max", Effort::Max),
        ];
        for (name, effort) in efforts {
            let body = json!({"messages": [{"role": "user", "content": "x"}], "output_config": {"effort": name}});
            let options = read(&body).unwrap().options;
            assert_eq!(options.reasoning_effort, Some(effort), "{name}");
        }
    }

    #[test]
    fn an_answer_goes_on_from_the_last_message_of_the_assistant() {
        let body = json!({"messages": [
            {"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is"},
        ]});
        let translated = read(&body).unwrap();
        assert_eq!(translated.conversation.messages.len(), 1);
        assert_eq!(translated.options.prefill.as_deref(), Some("The answer is"));
    }

    #[test]
    fn what_is_wrong_is_refused_by_its_name() {
        let block = |role: &str, block: Value| json!({"messages": [{"role": role, "content": [block]}, {"role": "user", "content": "x"}]});
        let with = |member: &str, value: Value| json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2000, member: value});
        let cases = [
            ("messages", json!({"messages": []})),
            (
                "messages[0].role",
                block("robot", json!({"type": "text", "text": "x"})),
            ),
            (
                "messages[0].content[0].type",
                block("user", json!({"type": "tool_use", "id": "a"})),
            ),
            (
                "messages[0].content[0].type",
                block("assistant", json!({"type": "tool_result"})),
            ),
            (
                "messages[0].content[0].text",
                block("user", json!({"type": "text"})),
            ),
            (
                "messages[0].content[0].tool_use_id",
                block("user", json!({"type": "tool_result", "tool_use_id": "?"})),
            ),
            (
                "messages[0].content[0].input",
                block(
                    "assistant",
                    json!({"type": "tool_use", "id": "a", "name": "f"}),
                ),
            ),
            (
                "messages[0].content[0].input",
                block(
                    "assistant",
                    json!({"type": "tool_use", "id": "a", "name": "f", "input": 5}),
                ),
            ),
            (
                "system[0].type",
                with("system", json!([{"type": "tool_use"}])),
            ),
            ("thinking.type", with("thinking", json!({"type": "deep"}))),
            (
                "thinking.budget_tokens",
                with("thinking", json!({"type": "enabled"})),
            ),
            (
                "thinking.budget_tokens",
                with("thinking", json!({"type": "enabled", "budget_tokens": 5})),
            ),
            (
                "thinking.budget_tokens",
                with(
                    "thinking",
                    json!({"type": "enabled", "budget_tokens": 2000}),
                ),
            ),
            (
                "output_config.effort",
                with("output_config", json!({"effort": "some"})),
            ),
        ];
        for (member, body) in cases {
            let error = read(&body).expect_err(member);
            let begins = format!("`{member}`");
            assert!(
                error.detail().starts_with(&begins),
                "{}: {body}",
                error.detail()
            );
        }
    }
}
