//! Chat completions as they are drawn.

use bytes::Bytes;
use tinkrs_wire::openai::TokenUsage;
use tinkrs_wire::openai::chat::{
    ChatCompletionChunk, ChatRole, ChunkChoice, FunctionCallDelta, MessageDelta, ToolCallDelta,
};

use super::chat::{Asked, finish_reason, usage};
use super::logprobs::{self, Scored};
use crate::endpoints::answers::{Answer, AnswerEvent, Answers, NewCall, Part};
use crate::endpoints::dialect::openai_event;
use crate::endpoints::server_sent::{Events, data};
use crate::token_watch::DrawnToken;

/// What ends every stream.
pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";

pub(super) struct ChatStream {
    asked: Asked,
    /// `None` when all was sent.
    answers: Option<Answers>,
    /// Which answers have begun.
    begun: Vec<bool>,
}

impl ChatStream {
    pub(super) fn new(asked: Asked, answers: Answers) -> Self {
        Self {
            asked,
            answers: Some(answers),
            begun: Vec::new(),
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<TokenUsage>) -> ChatCompletionChunk {
        ChatCompletionChunk {
            id: self.asked.id.clone(),
            object: "chat.completion.chunk".to_owned(),
            created: self.asked.created,
            model: self.asked.model.clone(),
            choices,
            usage,
            prompt_token_ids: None,
        }
    }

    /// Writes that an answer begins, unless it has begun.
    fn begin(&mut self, to: &mut Vec<u8>, sample: usize) {
        if self.begun.len() <= sample {
            self.begun.resize(sample + 1, false);
        }
        if std::mem::replace(&mut self.begun[sample], true) {
            return;
        }
        let delta = MessageDelta {
            role: Some(ChatRole::Assistant),
            content: Some(String::new()),
            ..MessageDelta::default()
        };
        let mut chunk = self.chunk(vec![choice(sample, delta)], None);
        let prompt = self.answers.as_ref().filter(|_| self.asked.wants_token_ids);
        chunk.prompt_token_ids = prompt.map(|answers| answers.prompt.clone());
        data(to, &chunk);
    }

    fn token(&mut self, to: &mut Vec<u8>, drawn: &DrawnToken, part: Part) {
        self.begin(to, drawn.sample);
        let mut new = choice(drawn.sample, delta(part));
        if self.asked.wants_logprobs {
            let tokens = std::iter::once(Scored::from(drawn));
            new.logprobs = Some(logprobs::chat(&self.asked.weights.base, tokens));
        }
        new.token_ids = self.asked.wants_token_ids.then(|| vec![drawn.token]);
        if new.delta != MessageDelta::default() || new.logprobs.is_some() || new.token_ids.is_some()
        {
            data(to, &self.chunk(vec![new], None));
        }
    }

    fn end(&mut self, to: &mut Vec<u8>, answers: Vec<(Part, Answer)>, cached: u32, prompt: usize) {
        let drawn = answers
            .iter()
            .map(|(_, answer)| answer.sequence.tokens.len());
        let usage = usage(prompt, cached, drawn.sum());
        for (sample, (part, answer)) in answers.into_iter().enumerate() {
            self.begin(to, sample);
            let rest = delta(part);
            if rest != MessageDelta::default() {
                data(to, &self.chunk(vec![choice(sample, rest)], None));
            }
            let mut last = choice(sample, MessageDelta::default());
            last.finish_reason = Some(finish_reason(&answer));
            data(to, &self.chunk(vec![last], None));
        }
        if self.asked.includes_usage {
            data(to, &self.chunk(Vec::new(), Some(usage)));
        }
        to.extend_from_slice(DONE);
    }
}

impl Events for ChatStream {
    async fn next(&mut self) -> Option<Bytes> {
        let mut to = Vec::new();
        // A token may say nothing yet.
        while to.is_empty() {
            let answers = self.answers.as_mut()?;
            match answers.next().await {
                Ok(AnswerEvent::Token { drawn, part }) => self.token(&mut to, &drawn, part),
                Ok(AnswerEvent::Ended {
                    answers: ended,
                    cached_tokens,
                }) => {
                    let prompt = answers.prompt.len();
                    self.end(&mut to, ended, cached_tokens, prompt);
                    self.answers = None;
                }
                Err(error) => {
                    data(&mut to, &openai_event(&error));
                    self.answers = None;
                }
            }
        }
        Some(to.into())
    }
}

fn choice(sample: usize, delta: MessageDelta) -> ChunkChoice {
    ChunkChoice {
        index: u32::try_from(sample).unwrap_or(u32::MAX),
        delta,
        logprobs: None,
        finish_reason: None,
        token_ids: None,
    }
}

fn delta(part: Part) -> MessageDelta {
    let some = |text: String| (!text.is_empty()).then_some(text);
    MessageDelta {
        role: None,
        content: some(part.content),
        reasoning_content: some(part.thinking),
        tool_calls: (!part.calls.is_empty())
            .then(|| part.calls.into_iter().map(call_delta).collect()),
    }
}

fn call_delta(call: NewCall) -> ToolCallDelta {
    let (id, name) = call.begin.unzip();
    ToolCallDelta {
        index: u32::try_from(call.index).unwrap_or(u32::MAX),
        kind: id.is_some().then(|| "function".to_owned()),
        id,
        function: FunctionCallDelta {
            name,
            arguments: call.arguments,
        },
    }
}
