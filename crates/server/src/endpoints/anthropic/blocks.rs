//! The blocks of an answer, as events.

use tinkrs_wire::anthropic::{AnswerBlock, BlockDelta, MessageEvent, StopReason};

use crate::endpoints::answers::{Answer, AnswerEnd, NewCall, Part};

/// Which blocks have begun.
#[derive(Debug, Default)]
pub(super) struct BlockWriter {
    open: Option<Kind>,
    /// How many blocks were begun.
    begun: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    Call,
}

impl BlockWriter {
    /// Adds what is new in an answer.
    pub(super) fn part(&mut self, part: Part, to: &mut Vec<MessageEvent>) {
        if !part.thinking.is_empty() {
            self.begin(Kind::Thinking, to);
            let thinking = part.thinking;
            self.delta(BlockDelta::ThinkingDelta { thinking }, to);
        }
        if !part.content.is_empty() {
            self.begin(Kind::Text, to);
            let text = part.content;
            self.delta(BlockDelta::TextDelta { text }, to);
        }
        for call in part.calls {
            self.call(call, to);
        }
    }

    /// Ends the last block of an answer.
    pub(super) fn finish(&mut self, to: &mut Vec<MessageEvent>) {
        self.close(to);
    }

    fn call(&mut self, call: NewCall, to: &mut Vec<MessageEvent>) {
        if let Some((id, name)) = call.begin {
            self.close(to);
            let id = tool_id(&id);
            let input = serde_json::json!({});
            self.start(AnswerBlock::ToolUse { id, name, input }, to);
            self.open = Some(Kind::Call);
        }
        if self.open == Some(Kind::Call) && !call.arguments.is_empty() {
            let partial_json = call.arguments;
            self.delta(BlockDelta::InputJsonDelta { partial_json }, to);
        }
    }

    fn begin(&mut self, kind: Kind, to: &mut Vec<MessageEvent>) {
        if self.open == Some(kind) {
            return;
        }
        self.close(to);
        let block = match kind {
            Kind::Thinking => thinking(String::new()),
            Kind::Text | Kind::Call => text(String::new()),
        };
        self.start(block, to);
        self.open = Some(kind);
    }

    fn close(&mut self, to: &mut Vec<MessageEvent>) {
        let Some(kind) = self.open.take() else {
            return;
        };
        if kind == Kind::Thinking {
            let signature = String::new();
            self.delta(BlockDelta::SignatureDelta { signature }, to);
        }
        self.stop(to);
    }

    fn start(&mut self, content_block: AnswerBlock, to: &mut Vec<MessageEvent>) {
        let index = self.begun;
        self.begun += 1;
        to.push(MessageEvent::ContentBlockStart {
            index,
            content_block,
        });
        if index == 0 {
            to.push(MessageEvent::Ping);
        }
    }

    fn delta(&self, delta: BlockDelta, to: &mut Vec<MessageEvent>) {
        let index = self.begun - 1;
        to.push(MessageEvent::ContentBlockDelta { index, delta });
    }

    fn stop(&self, to: &mut Vec<MessageEvent>) {
        let index = self.begun - 1;
        to.push(MessageEvent::ContentBlockStop { index });
    }
}

/// Returns the blocks of an answer as a whole.
pub(super) fn blocks(answer: &Answer) -> Vec<AnswerBlock> {
    let thoughts = answer.thinking.iter().filter(|text| !text.is_empty());
    let mut blocks: Vec<_> = thoughts.map(|text| thinking(text.clone())).collect();
    if !answer.content.is_empty() {
        blocks.push(text(answer.content.clone()));
    }
    blocks.extend(calls(answer));
    blocks
}

fn thinking(thinking: String) -> AnswerBlock {
    AnswerBlock::Thinking {
        thinking,
        signature: String::new(),
    }
}

fn text(text: String) -> AnswerBlock {
    AnswerBlock::Text {
        text,
        citations: None,
    }
}

fn calls(answer: &Answer) -> impl Iterator<Item = AnswerBlock> {
    answer.calls.iter().map(|call| {
        let id = call.id.as_deref().unwrap_or_default();
        AnswerBlock::ToolUse {
            id: tool_id(id),
            name: call.name.clone(),
            input: serde_json::to_value(&call.arguments).unwrap_or_default(),
        }
    })
}

/// Writes the id of a call as this API does.
fn tool_id(id: &str) -> String {
    format!("toolu_{}", id.strip_prefix("call_").unwrap_or(id))
}

/// Says why an answer ended. `asked` is how many tokens it was to have at most.
pub(super) fn stop_reason(answer: &Answer, asked: u32) -> (StopReason, Option<String>) {
    let is_short = answer.sequence.tokens.len() < asked as usize;
    match &answer.end {
        AnswerEnd::Length if is_short => (StopReason::ModelContextWindowExceeded, None),
        AnswerEnd::Length => (StopReason::MaxTokens, None),
        _ if !answer.calls.is_empty() => (StopReason::ToolUse, None),
        AnswerEnd::Text(text) => (StopReason::StopSequence, Some(text.clone())),
        AnswerEnd::Model => (StopReason::EndTurn, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_chat::{Json, ToolCall};
    use tinkrs_types::sampling::{SampledSequence, StopReason as SampleStop};

    fn answer(end: AnswerEnd, calls: Vec<ToolCall>) -> Answer {
        Answer {
            content: "x".to_owned(),
            thinking: None,
            calls,
            end,
            sequence: SampledSequence::new(vec![1, 2, 3], SampleStop::Stop),
        }
    }

    fn call() -> ToolCall {
        let mut call = ToolCall::new("f", Json::parse(r#"{"b": 1, "a": 2}"#).unwrap());
        call.id = Some("call_1".to_owned());
        call
    }

    fn part(thinking: &str, content: &str) -> Part {
        Part {
            thinking: thinking.to_owned(),
            content: content.to_owned(),
            calls: Vec::new(),
        }
    }

    fn of_call(name: Option<&str>, arguments: &str) -> Part {
        let begin = name.map(|name| ("call_1".to_owned(), name.to_owned()));
        let arguments = arguments.to_owned();
        Part {
            calls: vec![NewCall {
                index: 0,
                begin,
                arguments,
            }],
            ..Part::default()
        }
    }

    #[test]
    fn events_come_in_the_documented_order() {
        let mut writer = BlockWriter::default();
        let mut events = Vec::new();
        for piece in [part("hm", ""), part("m", ""), part("", "So"), part("", "!")] {
            writer.part(piece, &mut events);
        }
        for piece in [of_call(Some("f"), r#"{"b":"#), of_call(None, "1}")] {
            writer.part(piece, &mut events);
        }
        writer.finish(&mut events);
        let names: Vec<_> = events.iter().map(MessageEvent::name).collect();
        let start = "content_block_start";
        let (delta, stop) = ("content_block_delta", "content_block_stop");
        let expected = [
            start, "ping", delta, delta, delta, stop, // thoughts and their signature
            start, delta, delta, stop, // words
            start, delta, delta, stop, // the call
        ];
        assert_eq!(names, expected);
        let written: Vec<_> = events
            .iter()
            .map(|event| serde_json::to_value(event).unwrap())
            .collect();
        assert_eq!(written[4]["delta"]["type"], "signature_delta");
        assert_eq!(
            (&written[6]["index"], &written[10]["index"]),
            (&1.into(), &2.into())
        );
        assert_eq!(written[10]["content_block"]["input"], serde_json::json!({}));
        let arguments = written[11]["delta"]["partial_json"].as_str().unwrap();
        assert_eq!(arguments, r#"{"b":"#);
        assert_eq!(written[10]["content_block"]["id"], "toolu_1");
    }

    #[test]
    fn an_answer_of_nothing_has_no_blocks() {
        let mut events = Vec::new();
        let mut nothing = answer(AnswerEnd::Model, Vec::new());
        nothing.content.clear();
        BlockWriter::default().finish(&mut events);
        assert!(events.is_empty());
        assert!(blocks(&nothing).is_empty());
    }

    #[test]
    fn an_end_has_its_reason() {
        let cases = [
            (AnswerEnd::Model, vec![], 9, (StopReason::EndTurn, None)),
            (
                AnswerEnd::Model,
                vec![call()],
                9,
                (StopReason::ToolUse, None),
            ),
            (AnswerEnd::Length, vec![], 3, (StopReason::MaxTokens, None)),
            (
                AnswerEnd::Length,
                vec![],
                4,
                (StopReason::ModelContextWindowExceeded, None),
            ),
            (
                AnswerEnd::Text("END".to_owned()),
                vec![],
                9,
                (StopReason::StopSequence, Some("END".to_owned())),
            ),
        ];
        for (end, calls, asked, expected) in cases {
            assert_eq!(stop_reason(&answer(end, calls), asked), expected);
        }
    }
}
