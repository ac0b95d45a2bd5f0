//! Answers to a conversation: thoughts, words and calls, as they are drawn and as a whole.

use std::sync::Arc;

use serde_json::Value;
use tinkrs_backend::{self as backend, EndOfSequence, SamplingExtras};
use tinkrs_chat::{AnswerStream, Conversation, Json, RenderOptions, Renderer, Response, ToolCall};
use tinkrs_types::sampling::{SampleOptions, SampledSequence, Stop, StopReason};
use tinkrs_types::{SampleOutput, SamplingParams};

use super::generation::Generation;
use super::text::StopCut;
use crate::Server;
use crate::api::sampling::Weights;
use crate::auth::Owner;
use crate::error::{ApiError, chain};
use crate::grammar::{Shape, Thinking};
use crate::state::Base;
use crate::token_watch::DrawnToken;

/// How to draw, whichever API says so.
#[derive(Debug)]
pub(crate) struct Draw {
    pub(crate) num_samples: u32,
    /// Without `stop` and `max_tokens`.
    pub(crate) params: SamplingParams,
    /// Without what ends an answer.
    pub(crate) extras: SamplingExtras,
    /// Texts that end an answer and are not a part of it.
    pub(crate) stops: Arc<[String]>,
    /// Tokens that end an answer.
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) options: SampleOptions,
}

impl Draw {
    /// Makes the request for a prompt. `renderer` says what else ends an answer.
    pub(crate) fn request(
        self,
        prompt: Vec<u32>,
        max_tokens: u32,
        renderer: Option<&Renderer>,
    ) -> backend::SampleRequest {
        let mut texts = self.stops.to_vec();
        let mut extras = self.extras;
        extras.stop_tokens = self.stop_tokens;
        extras.end_of_sequence = EndOfSequence::Ignored;
        if !self.ignore_eos {
            extras.end_of_sequence = EndOfSequence::Always;
            match renderer.map(Renderer::stop) {
                Some(Stop::Text(text)) => texts.push(text),
                Some(Stop::AnyText(also)) => texts.extend(also),
                Some(Stop::AnyToken(tokens)) => extras.stop_tokens.extend(tokens),
                Some(Stop::Never) | None => {}
            }
        }
        let mut params = self.params;
        params.max_tokens = Some(max_tokens);
        params.stop = Some(Stop::from(texts));
        backend::SampleRequest {
            adapter: None,
            prompt,
            num_samples: self.num_samples,
            params,
            extras: Arc::new(extras),
            options: self.options,
            fallback_seed: fastrand::u64(..),
            share: 0,
        }
    }
}

/// A conversation that is to be continued.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) conversation: Conversation,
    pub(crate) options: RenderOptions,
    pub(crate) draw: Draw,
    /// As many as the context has room for, if it is `None`.
    pub(crate) max_tokens: Option<u32>,
    /// Whether an answer may have several calls.
    pub(crate) parallel_calls: bool,
    /// What an answer has to be.
    pub(crate) shape: Option<AnswerShape>,
}

/// What an answer has to be, besides the thoughts before it.
#[derive(Debug)]
pub(crate) enum AnswerShape {
    /// A JSON object.
    JsonObject,
    /// JSON that a schema allows, which was sent as this member.
    JsonSchema { member: &'static str, schema: Value },
    /// A call: an object with the `name` and the `arguments`, as the schema says, and nothing else.
    Call { schema: Value },
}

/// Answers that are being drawn. Dropping it cancels them.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) prompt: Vec<u32>,
    generation: Generation,
    renderer: Renderer,
    /// What the prompt has begun of each answer.
    begun: String,
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
    content: StopCut,
    thinking: StopCut,
}

/// What is new in an answer.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) thinking: String,
    pub(crate) content: String,
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

impl Server {
    /// Renders a conversation and begins to draw answers.
    pub(crate) fn ask(
        &self,
        owner: Owner,
        weights: &Weights,
        question: Question,
    ) -> Result<Answers, ApiError> {
        let Question {
            conversation,
            options,
            draw,
            max_tokens,
            parallel_calls,
            shape,
        } = question;
        let base = &weights.base;
        let renderer = renderer(weights)?;
        let prompt = prompt(renderer, &conversation, &options)?;
        let context = base.description.context;
        // A prompt that does not fit is refused with its length.
        let room = context.saturating_sub(prompt.len()).max(1);
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let stops = Arc::clone(&draw.stops);
        let mut request = draw.request(prompt.clone(), max_tokens.unwrap_or(room), Some(renderer));
        let begun = begun(renderer, &prompt, &options).map_err(unwritable)?;
        let is_call = matches!(shape, Some(AnswerShape::Call { .. }));
        if let Some(shape) = shape {
            let may_think = options.thinking != Some(false);
            constrain(
                base,
                renderer,
                &mut request,
                &shape,
                may_think.then_some(&begun),
            )?;
        }
        let (samples, stop_tokens) = (request.num_samples, request.extras.stop_tokens.clone());
        let generation = self.generate(owner, weights, request, "messages")?;
        let samples = (0..samples).map(|_| Sample {
            stream: renderer.stream_after(&begun),
            content: StopCut::new(&stops),
            thinking: StopCut::new(&stops),
        });
        let ends = base.description.end_of_sequence.iter().copied();
        let ends = ends.filter(|token| !stop_tokens.contains(token));
        Ok(Answers {
            samples: samples.collect(),
            prompt,
            generation,
            renderer: renderer.clone(),
            begun,
            stops,
            parallel_calls,
            is_call,
            end_of_sequence: ends.collect(),
        })
    }
}

/// What thoughts are written between, where a model has a token for it.
const THINK: (&str, &str) = ("<think>", "</think>");

/// Lets samples be nothing but what is asked for. `begun` is what the prompt has begun of an answer that may have thoughts
/// before it.
fn constrain(
    base: &Base,
    renderer: &Renderer,
    request: &mut backend::SampleRequest,
    shape: &AnswerShape,
    begun: Option<&String>,
) -> Result<(), ApiError> {
    let (member, shape) = match shape {
        AnswerShape::JsonObject => ("response_format", Shape::JsonObject),
        AnswerShape::JsonSchema { member, schema } => (*member, Shape::JsonSchema(schema)),
        AnswerShape::Call { schema } => ("tools", Shape::JsonSchema(schema)),
    };
    let grammars = base.grammars();
    let grammars = grammars.map_err(|why| {
        ApiError::bad_request(format!(
            "`{member}`: answers of `{}` cannot be constrained: {why}",
            base.name
        ))
    })?;
    let (opening, closing) = THINK;
    let has_token = renderer
        .vocabulary()
        .tokenizer()
        .token_id(opening)
        .is_some();
    let thinking = begun.filter(|_| has_token).map(|begun| Thinking {
        opening,
        closing,
        is_open: begun.trim_start().starts_with(opening),
    });
    let mut ends = base.description.end_of_sequence.clone();
    ends.extend(&request.extras.stop_tokens);
    let grammar = grammars.compile(member, &shape, &ends, thinking)?;
    Arc::make_mut(&mut request.extras).grammar = Some(grammar);
    Ok(())
}

/// Finds how the conversations of a model are written.
pub(crate) fn renderer(weights: &Weights) -> Result<&Renderer, ApiError> {
    let base = &weights.base;
    base.renderer.as_ref().ok_or_else(|| {
        ApiError::bad_request(format!(
            "`model`: `{}` has no chat format: ask for completions of a prompt instead",
            base.name
        ))
    })
}

/// Renders a conversation as the prompt for an answer.
pub(crate) fn prompt(
    renderer: &Renderer,
    conversation: &Conversation,
    options: &RenderOptions,
) -> Result<Vec<u32>, ApiError> {
    let rendered = renderer.render_with(conversation, options);
    Ok(rendered.map_err(unwritable)?.tokens)
}

fn unwritable(error: tinkrs_chat::Error) -> ApiError {
    ApiError::bad_request(format!("`messages`: {}", chain(&error)))
}

fn begun(
    renderer: &Renderer,
    prompt: &[u32],
    options: &RenderOptions,
) -> Result<String, tinkrs_chat::Error> {
    let end = &prompt[prompt.len().saturating_sub(8)..];
    let end = renderer.vocabulary().decode(end)?;
    let begun = renderer.format().begun(&end);
    Ok(format!(
        "{begun}{}",
        options.prefill.as_deref().unwrap_or_default()
    ))
}

impl Answers {
    /// Returns the id of the request.
    pub(crate) fn id(&self) -> &tinkrs_types::RequestId {
        self.generation.id()
    }

    /// Waits for what comes next. After [`AnswerEvent::Ended`] nothing does.
    pub(crate) async fn next(&mut self) -> Result<AnswerEvent, ApiError> {
        if let Some(drawn) = self.generation.next().await? {
            let part = match self.samples.get_mut(drawn.sample) {
                Some(sample) if !self.end_of_sequence.contains(&drawn.token) => {
                    let mut part = sample.push(drawn.token)?;
                    if self.is_call {
                        part.content.clear();
                    }
                    part
                }
                _ => Part::default(),
            };
            return Ok(AnswerEvent::Token { drawn, part });
        }
        let output = self.generation.finish().await?;
        let cached_tokens = output.prompt_cache_hit_tokens;
        let streams = std::mem::take(&mut self.samples).into_iter();
        let ended = streams.zip(output.sequences).map(|(mut sample, sequence)| {
            let (rest, response) = sample.stream.finish().map_err(undecodable)?;
            let mut part = Part {
                thinking: sample.thinking.push(&rest.thinking) + &sample.thinking.finish(),
                content: sample.content.push(&rest.content) + &sample.content.finish(),
            };
            let answer = self.read(response, sequence);
            if self.is_call {
                part.content.clone_from(&answer.content);
            }
            Ok((part, answer))
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
            let is_end = |token: &u32| self.end_of_sequence.contains(token);
            let end = sequence.tokens.iter().position(is_end);
            let tokens = &sequence.tokens[..end.unwrap_or(sequence.tokens.len())];
            let response = self.renderer.parse_after(&self.begun, tokens);
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
        let (content, found) = StopCut::cut(&self.stops, &message.content);
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
    fn push(&mut self, token: u32) -> Result<Part, ApiError> {
        let delta = self.stream.push(token).map_err(undecodable)?;
        Ok(Part {
            thinking: self.thinking.push(&delta.thinking),
            content: self.content.push(&delta.content),
        })
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
