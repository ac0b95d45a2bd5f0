//! Responses as they are drawn: events in the order that the OpenAI API documents.

use bytes::Bytes;
use serde_json::{Value, json};

use super::responses::{Responding, call_item, message_item, reasoning_item, status, text_part};
use crate::endpoints::answers::{Answer, AnswerEvent, Answers, NewCall, Part, random_id};
use crate::endpoints::dialect::openai_event;
use crate::endpoints::server_sent::{Events, named};

pub(super) struct ResponsesStream {
    responding: Responding,
    /// `None` when all was sent.
    answers: Option<Answers>,
    number: u64,
    output: Vec<Value>,
    open: Option<Open>,
}

/// An item that is being written.
struct Open {
    kind: Kind,
    id: String,
    /// What was said, or the arguments of a call.
    text: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, name: String },
}

impl ResponsesStream {
    pub(super) fn new(responding: Responding, answers: Answers) -> Self {
        Self {
            responding,
            answers: Some(answers),
            number: 0,
            output: Vec::new(),
            open: None,
        }
    }

    fn send(&mut self, to: &mut Vec<u8>, name: &str, mut event: Value) {
        event["type"] = name.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        named(to, name, &event);
    }

    /// Writes an event about the item that is being written.
    fn send_of_item(&mut self, to: &mut Vec<u8>, name: &str, id: &str, mut event: Value) {
        event["item_id"] = id.into();
        event["output_index"] = self.output.len().into();
        event["content_index"] = 0.into();
        self.send(to, name, event);
    }

    fn part(&mut self, to: &mut Vec<u8>, part: &Part) {
        self.write(to, Kind::Reasoning, &part.thinking);
        self.write(to, Kind::Message, &part.content);
        for call in &part.calls {
            self.call(to, call);
        }
    }

    fn call(&mut self, to: &mut Vec<u8>, call: &NewCall) {
        if let Some((call_id, name)) = &call.begin {
            self.close(to, "completed");
            let (call_id, name) = (call_id.clone(), name.clone());
            self.open(to, Kind::Call { call_id, name });
        }
        let index = self.output.len();
        let Some(open) = &mut self.open else { return };
        if !matches!(open.kind, Kind::Call { .. }) || call.arguments.is_empty() {
            return;
        }
        open.text.push_str(&call.arguments);
        let id = open.id.clone();
        let delta = json!({"item_id": id, "output_index": index, "delta": call.arguments});
        self.send(to, "response.function_call_arguments.delta", delta);
    }

    fn write(&mut self, to: &mut Vec<u8>, kind: Kind, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.open.as_ref().is_some_and(|open| open.kind != kind) {
            self.close(to, "completed");
        }
        let name = match kind {
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Message | Kind::Call { .. } => "response.output_text.delta",
        };
        if self.open.is_none() {
            self.open(to, kind);
        }
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let id = open.id.clone();
        self.send_of_item(to, name, &id, json!({"delta": text, "logprobs": []}));
    }

    fn open(&mut self, to: &mut Vec<u8>, kind: Kind) {
        let (id, item) = match &kind {
            Kind::Call { call_id, name } => {
                let id = random_id("fc_");
                let item = call_item(&id, call_id, name, "", "in_progress");
                (id, item)
            }
            Kind::Reasoning => {
                let id = random_id("rs_");
                let mut item = reasoning_item(&id, "");
                item["content"] = json!([]);
                (id, item)
            }
            Kind::Message => {
                let id = random_id("msg_");
                let mut item = message_item(&id, "in_progress", "");
                item["content"] = json!([]);
                (id, item)
            }
        };
        let index = self.output.len();
        let added = json!({"output_index": index, "item": item});
        self.send(to, "response.output_item.added", added);
        if kind == Kind::Message {
            let part = json!({"part": text_part("")});
            self.send_of_item(to, "response.content_part.added", &id, part);
        }
        let text = String::new();
        self.open = Some(Open { kind, id, text });
    }

    fn close(&mut self, to: &mut Vec<u8>, status: &str) {
        let Some(Open { kind, id, text }) = self.open.take() else {
            return;
        };
        let item = match kind {
            Kind::Call { call_id, name } => {
                let index = self.output.len();
                let done =
                    json!({"item_id": id, "output_index": index, "arguments": text, "name": name});
                self.send(to, "response.function_call_arguments.done", done);
                call_item(&id, &call_id, &name, &text, status)
            }
            Kind::Reasoning => {
                let done = json!({"text": text});
                self.send_of_item(to, "response.reasoning_text.done", &id, done);
                reasoning_item(&id, &text)
            }
            Kind::Message => {
                let done = json!({"text": text, "logprobs": []});
                self.send_of_item(to, "response.output_text.done", &id, done);
                let part = json!({"part": text_part(&text)});
                self.send_of_item(to, "response.content_part.done", &id, part);
                message_item(&id, status, &text)
            }
        };
        self.finish_item(to, item);
    }

    fn finish_item(&mut self, to: &mut Vec<u8>, item: Value) {
        let index = self.output.len();
        let done = json!({"output_index": index, "item": item.clone()});
        self.send(to, "response.output_item.done", done);
        self.output.push(item);
    }

    fn end(&mut self, to: &mut Vec<u8>, answer: &Answer, prompt: usize, cached: u32) {
        // There is a message where nothing is called, if only an empty one.
        if answer.content.is_empty() && answer.calls.is_empty() {
            self.close(to, "completed");
            self.open(to, Kind::Message);
        }
        self.close(to, status(answer));
        let output = std::mem::take(&mut self.output);
        let response = self.responding.done(answer, output, prompt, cached);
        let name = match status(answer) {
            "incomplete" => "response.incomplete",
            _ => "response.completed",
        };
        self.send(to, name, json!({"response": response}));
    }
}

impl Events for ResponsesStream {
    async fn next(&mut self) -> Option<Bytes> {
        let mut to = Vec::new();
        if self.number == 0 {
            for name in ["response.created", "response.in_progress"] {
                let response = self.responding.begun();
                self.send(&mut to, name, json!({"response": response}));
            }
        }
        while to.is_empty() {
            let answers = self.answers.as_mut()?;
            match answers.next().await {
                Ok(AnswerEvent::Token { part, .. }) => self.part(&mut to, &part),
                Ok(AnswerEvent::Ended {
                    answers: ended,
                    cached_tokens,
                }) => {
                    let prompt = answers.prompt.len();
                    if let Some((rest, answer)) = ended.into_iter().next() {
                        self.part(&mut to, &rest);
                        self.end(&mut to, &answer, prompt, cached_tokens);
                    }
                    self.answers = None;
                }
                Err(error) => {
                    let error = self.responding.places.rename(error);
                    let error = openai_event(&error).error;
                    let event =
                        json!({"code": error.kind, "message": error.message, "param": error.param});
                    self.send(&mut to, "error", event);
                    self.answers = None;
                }
            }
            if to.is_empty() && self.answers.is_none() {
                return None;
            }
        }
        Some(to.into())
    }
}
