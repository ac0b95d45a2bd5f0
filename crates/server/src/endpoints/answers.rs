//! Answers to a conversation: thoughts, words and calls, as they are drawn and as a whole.

use std::sync::Arc;

use tinkrs_chat::{AnswerStream, CallPart, CallReader, Delta, Json, Renderer, Response, ToolCall};
use tinkrs_types::SampleOutput;
use tinkrs_types::sampling::{SampledSequence, StopReason};

use super::generation::Generation;
use super::text::{Prefill, StopCut};
use crate::error::{ApiError, chain};
use crate::token_watch::DrawnToken;

/// Answers that are being drawn. Dropping it cancels them.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) prompt: Vec<u32>,
    generation: Generation,
    renderer: Renderer,
    /// What the prompt has begun of each answer.
    begun: String,
    /// What of that is the client's: it is no part of an answer, nor are stop texts looked for in it.
    prefill: Prefill,
    stops: Arc<[String]>,
    parallel_calls: bool,
    samples: Vec<Sample>,
    /// Whether an answer is a call in JSON, whatever the format writes.
    is_call: bool,
    /// The model's own end, where that is not one of the format.
    end_of_sequence: Vec<u32>,
}

#[derive(Debug)]
struct Sample {
    stream: AnswerStream,
    prefill: Prefill,
    content: StopCut,
    thinking: StopCut,
    /// Reads the answer, where that is a call in JSON.
    call: Option<CallReader>,
    /// How many calls may be returned.
    most_calls: usize,
}

/// What is new in an answer.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) thinking: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<NewCall>,
}

/// What is new in a call.
#[derive(Debug, Default)]
pub(crate) struct NewCall {
    /// Which call of the answer it is, from 0.
    pub(crate) index: usize,
    /// Its id and name, at its beginning.
    pub(crate) begin: Option<(String, String)>,
    /// The next characters of its arguments.
    pub(crate) arguments: String,
}

impl From<CallPart> for NewCall {
    fn from(part: CallPart) -> Self {
        Self {
            index: part.index,
            begin: part.name.map(|name| (random_id("call_"), name)),
            arguments: part.arguments,
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerEnd {
    /// The model ended it.
    Model,
    /// This stop text came.
    Text(String),
    /// It has as many tokens as it may.
    Length,
}

/// An answer as a whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) content: String,
    pub(crate) thinking: Option<String>,
    /// Each has an id.
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) end: AnswerEnd,
    pub(crate) sequence: SampledSequence,
}

/// What comes next of several answers.
#[derive(Debug)]
pub(crate) enum AnswerEvent {
    /// A token of an answer.
    Token { drawn: DrawnToken, part: Part },
    /// All answers have ended, with what was held back of each.
    Ended {
        answers: Vec<(Part, Answer)>,
        cached_tokens: u32,
    },
}

impl Answers {
    #[expect(clippy::too_many_arguments, reason = "one for each field")]
    pub(super) fn new(
        prompt: Vec<u32>,
        generation: Generation,
        renderer: &Renderer,
        begun: String,
        prefill: Prefill,
        stops: Arc<[String]>,
        parallel_calls: bool,
        is_call: bool,
        end_of_sequence: Vec<u32>,
        samples: u32,
    ) -> Self {
        let samples = (0..samples).map(|_| Sample {
            stream: renderer.stream_after(&begun),
            prefill: prefill.clone(),
            content: StopCut::new(&stops),
            thinking: StopCut::new(&stops),
            call: is_call.then(CallReader::default),
            most_calls: if parallel_calls { usize::MAX } else { 1 },
        });
        Self {
            samples: samples.collect(),
            prompt,
            generation,
            renderer: renderer.clone(),
            begun,
            prefill,
            stops,
            parallel_calls,
            is_call,
            end_of_sequence,
        }
    }

    /// Returns the id of the request.
    pub(crate) fn id(&self) -> &tinkrs_types::RequestId {
        self.generation.id()
    }

    /// Waits for what comes next. After [`AnswerEvent::Ended`] nothing does.
    pub(crate) async fn next(&mut self) -> Result<AnswerEvent, ApiError> {
        if let Some(drawn) = self.generation.next().await? {
            let part = match self.samples.get_mut(drawn.sample) {
                Some(sample) if !self.end_of_sequence.contains(&drawn.token) => {
                    let delta = sample.stream.push(drawn.token).map_err(undecodable)?;
                    sample.part(delta)
                }
                _ => Part::default(),
            };
            return Ok(AnswerEvent::Token { drawn, part });
        }
        let output = self.generation.finish().await?;
        let cached_tokens = output.prompt_cache_hit_tokens;
        let streams = std::mem::take(&mut self.samples).into_iter();
        let ended = streams.zip(output.sequences).map(|(mut sample, sequence)| {
            let ended = self.renderer.stream_after("");
            let stream = std::mem::replace(&mut sample.stream, ended);
            let (rest, response) = stream.finish().map_err(undecodable)?;
            let answer = self.read(response, sequence);
            Ok((sample.last(rest, &answer), answer))
        });
        let answers = ended.collect::<Result<_, ApiError>>()?;
        Ok(AnswerEvent::Ended {
            answers,
            cached_tokens,
        })
    }

    /// Waits for all answers as a whole. Returns them with how many tokens of the prompt were cached.
    pub(crate) async fn finish(mut self) -> Result<(Vec<Answer>, u32), ApiError> {
        let SampleOutput {
            sequences,
            prompt_cache_hit_tokens,
            ..
        } = self.generation.finish().await?;
        let answers = sequences.into_iter().map(|sequence| {
            // With `ignore_eos` an answer goes on behind one.
            let tokens = sequence.tokens.iter().copied();
            let is_said = |token: &u32| !self.end_of_sequence.contains(token);
            let tokens: Vec<u32> = tokens.filter(is_said).collect();
            let response = self.renderer.parse_after(&self.begun, &tokens);
            Ok(self.read(response.map_err(undecodable)?, sequence))
        });
        let answers = answers.collect::<Result<_, ApiError>>()?;
        Ok((answers, prompt_cache_hit_tokens))
    }

    fn read(&self, response: Response, sequence: SampledSequence) -> Answer {
        let mut message = response.message;
        if self.is_call
            && let Some(call) = call_in(&message.content)
        {
            message.content.clear();
            message.tool_calls = vec![call];
        }
        let said = self.prefill.clone().skip(&message.content).to_owned();
        let (content, found) = StopCut::cut(&self.stops, &said);
        let thinking = message.thinking.take();
        let thinking = thinking.map(|thinking| StopCut::cut(&self.stops, &thinking));
        let (thinking, found_before) =
            thinking.map_or((None, None), |(text, found)| (Some(text), found));
        if !self.parallel_calls {
            message.tool_calls.truncate(1);
        }
        for call in &mut message.tool_calls {
            call.id.get_or_insert_with(|| random_id("call_"));
        }
        let end = match (sequence.stop_reason, found_before.or(found)) {
            (_, Some(text)) => AnswerEnd::Text(text),
            (StopReason::Length, None) => AnswerEnd::Length,
            (_, None) => AnswerEnd::Model,
        };
        Answer {
            content,
            thinking,
            calls: message.tool_calls,
            end,
            sequence,
        }
    }
}

impl Sample {
    fn part(&mut self, delta: Delta) -> Part {
        let thinking = self.thinking.push(&delta.thinking);
        if let Some(call) = &mut self.call {
            let part = call.push(&delta.content);
            return Part {
                thinking,
                content: String::new(),
                calls: part.into_iter().map(NewCall::from).collect(),
            };
        }
        let calls = delta.call_parts.into_iter();
        let calls = calls.filter(|part| part.index < self.most_calls);
        let said = self.prefill.skip(&delta.content);
        Part {
            thinking,
            content: self.content.push(said),
            calls: calls.map(NewCall::from).collect(),
        }
    }

    /// Returns what was held back of an answer that has ended.
    fn last(mut self, rest: Delta, answer: &Answer) -> Part {
        let mut part = self.part(rest);
        part.thinking += &self.thinking.finish();
        match &self.call {
            None => part.content += &self.content.finish(),
            // What was to be a call and did not get as far as its arguments is words.
            Some(call) if !call.has_begun() => part.content.clone_from(&answer.content),
            Some(_) => {}
        }
        part
    }
}

/// Reads a call that was drawn as JSON. One that was cut off is none.
fn call_in(text: &str) -> Option<ToolCall> {
    let json = Json::parse(text.trim()).ok()?;
    let name = json.get("name")?.as_str()?;
    Some(ToolCall::new(name, json.get("arguments")?.clone()))
}

fn undecodable(error: tinkrs_chat::Error) -> ApiError {
    ApiError::unavailable(chain(&error))
}

/// Makes an id that nothing else has.
pub(crate) fn random_id(prefix: &str) -> String {
    let letters = std::iter::repeat_with(fastrand::alphanumeric).take(24);
    format!("{prefix}{}", letters.collect::<String>())
}
