//! Completions as they are drawn.
//!
//! The answers to several prompts are drawn at the same time, and sent prompt by prompt.

use std::collections::VecDeque;

use bytes::Bytes;
use tinkrs_chat::TextStream;
use tinkrs_types::SampleOutput;
use tinkrs_wire::openai::completions::CompletionChoice;

use super::chat_stream::DONE;
use super::completions::{Asked, Counts, completion, finish_reason, of_prompt};
use super::logprobs::{self, Scored};
use crate::endpoints::dialect::openai_event;
use crate::endpoints::generation::Generation;
use crate::endpoints::server_sent::{Events, data};
use crate::endpoints::text::StopCut;
use crate::error::{ApiError, chain};

pub(super) struct CompletionStream {
    asked: Asked,
    generations: VecDeque<Generation>,
    /// The prompt whose answers are sent.
    prompt: usize,
    /// Its answers.
    samples: Vec<Sample>,
    usage: Counts,
}

struct Sample {
    text: TextStream,
    cut: StopCut,
    /// Where the text of the next token begins.
    offset: u64,
    begun: bool,
}

impl CompletionStream {
    pub(super) fn new(asked: Asked, generations: Vec<Generation>) -> Self {
        Self {
            samples: samples(&asked),
            asked,
            generations: generations.into(),
            prompt: 0,
            usage: Counts::default(),
        }
    }

    fn send(&self, to: &mut Vec<u8>, choice: CompletionChoice) {
        data(to, &completion(&self.asked, vec![choice]));
    }

    fn choice(&self, sample: usize, text: String) -> CompletionChoice {
        let index = self.prompt * self.asked.n + sample;
        CompletionChoice {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            text,
            logprobs: None,
            finish_reason: None,
            token_ids: None,
            prompt_token_ids: None,
        }
    }

    /// Writes the prompt before its answer, if that is asked for. Its log-probabilities are known with the result only.
    fn begin(&mut self, to: &mut Vec<u8>, sample: usize, output: Option<&SampleOutput>) {
        let prompt = &self.asked.prompts[self.prompt];
        if std::mem::replace(&mut self.samples[sample].begun, true) {
            return;
        }
        let (echo, wants_ids) = (self.asked.echo, self.asked.wants_token_ids);
        if !echo && !wants_ids {
            return;
        }
        let mut first = self.choice(sample, String::new());
        if echo {
            first.text.clone_from(&prompt.text);
            let offset = &mut self.samples[sample].offset;
            if let Some(output) = output {
                let tokens = of_prompt(prompt, output);
                first.logprobs = Some(logprobs::text(&self.asked.weights.base, tokens, offset));
            } else {
                *offset = prompt.text.chars().count() as u64;
            }
        }
        first.prompt_token_ids = wants_ids.then(|| prompt.tokens.clone());
        self.send(to, first);
    }

    fn token(&mut self, to: &mut Vec<u8>, index: usize, drawn: Scored) -> Result<(), ApiError> {
        self.begin(to, index, None);
        let asked = &self.asked;
        let base = &asked.weights.base;
        let (token, sample) = (drawn.token, &mut self.samples[index]);
        let mut text = String::new();
        if let Some(tokenizer) = &base.tokenizer
            && !asked.end_tokens.contains(&token)
        {
            let new = sample.text.push(token, tokenizer);
            let new = new.map_err(|error| ApiError::unavailable(chain(&error)))?;
            text = sample.cut.push(&new);
        }
        let scores = asked.wants_logprobs.then(|| {
            let tokens = std::iter::once(drawn);
            logprobs::text(base, tokens, &mut sample.offset)
        });
        let mut new = self.choice(index, text);
        new.logprobs = scores;
        new.token_ids = self.asked.wants_token_ids.then(|| vec![token]);
        if !new.text.is_empty() || new.logprobs.is_some() || new.token_ids.is_some() {
            self.send(to, new);
        }
        Ok(())
    }

    /// Writes how the answers to a prompt end.
    fn end(&mut self, to: &mut Vec<u8>, output: &SampleOutput) -> Result<(), ApiError> {
        for (index, sequence) in output.sequences.iter().enumerate() {
            self.begin(to, index, None);
            let sample = &mut self.samples[index];
            let rest = match &self.asked.weights.base.tokenizer {
                Some(tokenizer) if !self.asked.nothing_drawn => sample.text.rest(tokenizer),
                _ => Ok(String::new()),
            };
            let rest = rest.map_err(|error| ApiError::unavailable(chain(&error)))?;
            let text = sample.cut.push(&rest) + &sample.cut.finish();
            let mut last = self.choice(index, text);
            last.finish_reason = Some(finish_reason(&self.asked, sequence.stop_reason));
            self.send(to, last);
        }
        Ok(())
    }

    /// Waits for what comes next of the first prompt that has not ended.
    async fn advance(&mut self, to: &mut Vec<u8>) -> Result<(), ApiError> {
        let asked = &self.asked;
        // With these, what is sent first is known last.
        let waits = asked.nothing_drawn || (asked.echo && asked.wants_logprobs);
        let Some(generation) = self.generations.front_mut() else {
            return Ok(());
        };
        if !waits && let Some(drawn) = generation.next().await? {
            return self.token(to, drawn.sample, Scored::from(&drawn));
        }
        let output = generation.finish().await?;
        if waits {
            self.send_known(to, &output)?;
        }
        self.end(to, &output)?;
        self.usage
            .add(&self.asked, &self.asked.prompts[self.prompt], &output);
        self.generations.pop_front();
        self.prompt += 1;
        self.samples = samples(&self.asked);
        if self.generations.is_empty() {
            if self.asked.includes_usage {
                let mut last = completion(&self.asked, Vec::new());
                last.usage = Some(self.usage.total());
                data(to, &last);
            }
            to.extend_from_slice(DONE);
        }
        Ok(())
    }

    /// Writes a prompt with its log-probabilities, and all tokens that were drawn in the meantime.
    fn send_known(&mut self, to: &mut Vec<u8>, output: &SampleOutput) -> Result<(), ApiError> {
        for (index, sequence) in output.sequences.iter().enumerate() {
            let known = Some(output).filter(|_| self.asked.wants_logprobs);
            self.begin(to, index, known);
            if self.asked.nothing_drawn {
                continue;
            }
            for drawn in logprobs::of_sequence(sequence) {
                self.token(to, index, drawn)?;
            }
        }
        Ok(())
    }
}

fn samples(asked: &Asked) -> Vec<Sample> {
    let sample = || Sample {
        text: TextStream::new(),
        cut: StopCut::new(&asked.stops),
        offset: 0,
        begun: false,
    };
    std::iter::repeat_with(sample).take(asked.n).collect()
}

impl Events for CompletionStream {
    async fn next(&mut self) -> Option<Bytes> {
        let mut to = Vec::new();
        while to.is_empty() {
            if self.generations.is_empty() {
                return None;
            }
            if let Err(error) = self.advance(&mut to).await {
                data(&mut to, &openai_event(&error));
                self.generations.clear();
            }
        }
        Some(to.into())
    }
}
