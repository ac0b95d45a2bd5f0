//! Messages as they are drawn.

use std::time::Duration;

use bytes::Bytes;
use tinkrs_wire::anthropic::{AnthropicError, MessageChange, MessageEvent, MessageUsage};

use super::blocks::{BlockWriter, stop_reason};
use super::messages::Begun;
use crate::endpoints::answers::{Answer, AnswerEvent, Answers, Part};
use crate::endpoints::dialect::legible;
use crate::endpoints::server_sent::{Events, named};
use crate::error::ApiError;

/// How long nothing may be sent before the client is told that the connection is alive.
const PING_INTERVAL: Duration = Duration::from_secs(15);

pub(super) struct MessageStream {
    begun: Begun,
    /// `None` when all was sent.
    answers: Option<Answers>,
    has_begun: bool,
    writer: BlockWriter,
}

impl MessageStream {
    pub(super) fn new(begun: Begun, answers: Answers) -> Self {
        Self {
            begun,
            answers: Some(answers),
            has_begun: false,
            writer: BlockWriter::default(),
        }
    }

    fn end(&mut self, part: Part, answer: &Answer, cached: u32, to: &mut Vec<MessageEvent>) {
        self.writer.part(part, to);
        self.writer.finish(to);
        let (stop_reason, stop_sequence) = stop_reason(answer, self.begun.max_tokens);
        let drawn = answer.sequence.tokens.len() as u64;
        to.push(MessageEvent::MessageDelta {
            delta: MessageChange {
                stop_reason: Some(stop_reason),
                stop_sequence,
            },
            usage: MessageUsage::new(self.begun.prompt_tokens, cached.into(), drawn),
        });
        to.push(MessageEvent::MessageStop);
    }
}

impl Events for MessageStream {
    async fn next(&mut self) -> Option<Bytes> {
        let mut events = Vec::new();
        if !self.has_begun {
            self.has_begun = true;
            let message = self.begun.message();
            events.push(MessageEvent::MessageStart { message });
        }
        // A token may say nothing yet.
        while events.is_empty() {
            let answers = self.answers.as_mut()?;
            let Ok(event) = tokio::time::timeout(PING_INTERVAL, answers.next()).await else {
                events.push(MessageEvent::Ping);
                break;
            };
            match event {
                Ok(AnswerEvent::Token { part, .. }) => self.writer.part(part, &mut events),
                Ok(AnswerEvent::Ended {
                    answers,
                    cached_tokens,
                }) => {
                    self.answers = None;
                    if let Some((part, answer)) = answers.into_iter().next() {
                        self.end(part, &answer, cached_tokens, &mut events);
                    }
                }
                Err(error) => {
                    self.answers = None;
                    events.push(failed(&error));
                }
            }
        }
        let mut to = Vec::new();
        for event in &events {
            named(&mut to, event.name(), event);
        }
        Some(to.into())
    }
}

fn failed(error: &ApiError) -> MessageEvent {
    MessageEvent::Error {
        error: AnthropicError::new(error.status().as_u16(), legible(error.detail())),
    }
}
