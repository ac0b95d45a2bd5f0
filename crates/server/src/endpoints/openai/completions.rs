//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use tinkrs_types::SampleOutput;
use tinkrs_types::sampling::{SampledSequence, StopReason};
use tinkrs_wire::openai::completions::{
    Completion, CompletionChoice, CompletionRequest, Prompt, TextLogprobs,
};
use tinkrs_wire::openai::{FinishReason, TokenUsage};

use super::completion_stream::CompletionStream;
use super::found;
use super::logprobs::{self, Scored};
use super::sampling::{MOST_ANSWERS, check_count, draw};
use super::{missing, now, read};
use crate::Server;
use crate::api::Plain;
use crate::api::sampling::Weights;
use crate::auth::Owner;
use crate::endpoints::generation::{Generation, check_text};
use crate::endpoints::server_sent;
use crate::endpoints::text::StopCut;
use crate::error::{ApiError, chain};
use crate::extract::Caller;
use crate::intake::Upload;

/// Most prompts of a request.
const MOST_PROMPTS: usize = 256;
/// As the OpenAI API has it.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// What is needed to write the answers to a request.
pub(super) struct Asked {
    pub(super) id: String,
    pub(super) created: i64,
    pub(super) model: String,
    pub(super) weights: Weights,
    pub(super) prompts: Vec<PromptTokens>,
    /// How many answers there are to each prompt.
    pub(super) n: usize,
    pub(super) echo: bool,
    pub(super) wants_logprobs: bool,
    pub(super) wants_token_ids: bool,
    pub(super) includes_usage: bool,
    pub(super) stops: Arc<[String]>,
    /// Tokens that end an answer, or that it went on behind: they are not a part of its text.
    pub(super) end_tokens: Vec<u32>,
    /// Whether only the prompt is asked for.
    pub(super) nothing_drawn: bool,
    streams: bool,
}

/// A prompt as the model reads it.
#[derive(Clone)]
pub(super) struct PromptTokens {
    /// As it was sent, if answers begin with it.
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
}

pub(crate) async fn complete(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Upload,
) -> Result<Response, ApiError> {
    let begin = {
        let server = server.clone();
        move |request, _: &[u8]| begin(&server, owner, request)
    };
    let (asked, generations) = read(&server, body, begin).await?;
    if asked.streams {
        let stream = CompletionStream::new(asked, generations);
        return Ok(server_sent::respond(stream));
    }
    whole(&asked, generations)
        .await
        .map(IntoResponse::into_response)
}

/// Reads a request, and begins to draw the answers to each prompt.
fn begin(
    server: &Server,
    owner: Owner,
    request: CompletionRequest,
) -> Result<(Asked, Vec<Generation>), ApiError> {
    let weights = server.served_model(owner, &request.model)?;
    let (echo, streams) = (request.echo.unwrap_or(false), request.streams());
    let prompts = prompts(&weights, request.prompt.as_ref(), echo)?;
    let n = request.n.unwrap_or(1);
    check_count("n", n, 1, MOST_ANSWERS)?;
    let best_of = request.best_of.unwrap_or(n);
    if best_of < n {
        return Err(found("best_of", best_of, format!("at least `n`, {n}")));
    }
    check_count("best_of", best_of, 1, MOST_ANSWERS)?;
    if streams && best_of > n {
        return Err(found("best_of", best_of, "`n` or nothing with `stream`"));
    }
    let max_tokens = request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    if max_tokens == 0 && !echo {
        return Err(found("max_tokens", 0, "1 or more without `echo`"));
    }
    let members = request.sampling();
    let mut end_tokens = members.stop_token_ids.clone().unwrap_or_default();
    end_tokens.extend(&weights.base.description.end_of_sequence);
    let top = request.logprobs.map(|count| ("logprobs", count));
    let mut stops = Arc::default();
    let mut generations = Vec::with_capacity(prompts.len());
    for prompt in &prompts {
        let mut draw = draw(members.clone(), top)?;
        stops = Arc::clone(&draw.stops);
        draw.num_samples = best_of;
        if echo && request.logprobs.is_some() {
            draw.options.prompt_logprobs = true;
            draw.options.topk_prompt_logprobs = draw.options.topk_sample_logprobs;
        }
        // The sampler draws one token at least.
        let sample = draw.request(prompt.tokens.clone(), max_tokens.max(1), None);
        generations.push(server.generate(owner, &weights, sample, "prompt")?);
    }
    let first = generations.first().expect("there is at least one prompt");
    let asked = Asked {
        id: format!("cmpl-{}", first.id()),
        created: now(),
        weights,
        prompts,
        n: n as usize,
        echo,
        wants_logprobs: request.logprobs.is_some(),
        wants_token_ids: request.wants_token_ids(),
        includes_usage: request.includes_usage(),
        stops,
        end_tokens,
        nothing_drawn: max_tokens == 0,
        streams,
        model: request.model,
    };
    Ok((asked, generations))
}

/// Reads the prompts, of which there is one at least. Their texts are kept for `echo` only.
fn prompts(
    weights: &Weights,
    prompt: Option<&Prompt>,
    echo: bool,
) -> Result<Vec<PromptTokens>, ApiError> {
    let base = &weights.base;
    let tokenizer = base.tokenizer.as_ref();
    let failed = |error| ApiError::bad_request(format!("`prompt`: {}", chain(&error)));
    let of_text = |text: &String| {
        let tokenizer = tokenizer.ok_or_else(|| {
            let expected = format!("token ids: `{}` has no tokenizer", base.name);
            found("prompt", "a text", expected)
        })?;
        check_text(base, text.len(), "prompt")?;
        Ok(PromptTokens {
            text: if echo { text.clone() } else { String::new() },
            tokens: tokenizer.encode(text).map_err(failed)?,
        })
    };
    let of_tokens = |tokens: &Vec<u32>| {
        Ok(PromptTokens {
            text: tokenizer
                .filter(|_| echo)
                .map_or(Ok(String::new()), |tokenizer| tokenizer.decode(tokens))
                .map_err(failed)?,
            tokens: tokens.clone(),
        })
    };
    let prompts: Vec<PromptTokens> = match prompt.ok_or_else(|| missing("prompt"))? {
        Prompt::Text(text) => vec![of_text(text)?],
        Prompt::Texts(texts) => texts.iter().map(of_text).collect::<Result<_, ApiError>>()?,
        Prompt::Tokens(tokens) => vec![of_tokens(tokens)?],
        Prompt::TokenLists(lists) => lists
            .iter()
            .map(of_tokens)
            .collect::<Result<_, ApiError>>()?,
    };
    if !(1..=MOST_PROMPTS).contains(&prompts.len()) {
        let expected = format!("1 to {MOST_PROMPTS}");
        return Err(found(
            "prompt",
            format!("{} prompts", prompts.len()),
            expected,
        ));
    }
    Ok(prompts)
}

async fn whole(asked: &Asked, generations: Vec<Generation>) -> Result<Plain<Completion>, ApiError> {
    let (mut choices, mut usage) = (Vec::new(), Counts::default());
    for (mut generation, prompt) in generations.into_iter().zip(&asked.prompts) {
        let mut output = generation.finish().await?;
        usage.add(asked, prompt, &output);
        let sequences = best(std::mem::take(&mut output.sequences), asked.n);
        for sequence in sequences {
            let index = u32::try_from(choices.len()).unwrap_or(u32::MAX);
            choices.push(choice(asked, index, prompt, &output, sequence)?);
        }
    }
    Ok(Plain(Completion {
        usage: Some(usage.total()),
        ..completion(asked, choices)
    }))
}

pub(super) fn completion(asked: &Asked, choices: Vec<CompletionChoice>) -> Completion {
    Completion {
        id: asked.id.clone(),
        object: "text_completion".to_owned(),
        created: asked.created,
        model: asked.model.clone(),
        choices,
        usage: None,
    }
}

/// Returns the likeliest samples for each of their tokens, in the order in which they were drawn.
fn best(mut sequences: Vec<SampledSequence>, n: usize) -> Vec<SampledSequence> {
    let mean = |sequence: &SampledSequence| {
        let logprobs = sequence.logprobs.as_deref().unwrap_or_default();
        let sum: f64 = logprobs.iter().map(|logprob| f64::from(*logprob)).sum();
        sum / logprobs.len().max(1) as f64
    };
    while sequences.len() > n {
        let worst = sequences.iter().enumerate().rev();
        let worst = worst.min_by(|(_, a), (_, b)| mean(a).total_cmp(&mean(b)));
        let worst = worst.map_or(0, |(index, _)| index);
        sequences.remove(worst);
    }
    sequences
}

/// Tokens of all prompts together.
#[derive(Default)]
pub(super) struct Counts {
    prompt: u64,
    cached: u64,
    drawn: u64,
}

impl Counts {
    pub(super) fn add(&mut self, asked: &Asked, prompt: &PromptTokens, output: &SampleOutput) {
        self.prompt += prompt.tokens.len() as u64;
        self.cached += u64::from(output.prompt_cache_hit_tokens);
        if !asked.nothing_drawn {
            let drawn = output
                .sequences
                .iter()
                .map(|sequence| sequence.tokens.len());
            self.drawn += drawn.sum::<usize>() as u64;
        }
    }

    pub(super) fn total(&self) -> TokenUsage {
        TokenUsage::new(self.prompt, self.cached, self.drawn)
    }
}

fn choice(
    asked: &Asked,
    index: u32,
    prompt: &PromptTokens,
    output: &SampleOutput,
    sequence: SampledSequence,
) -> Result<CompletionChoice, ApiError> {
    let base = &asked.weights.base;
    let (mut text, mut offset) = (String::new(), 0);
    let mut scores = asked.wants_logprobs.then(TextLogprobs::default);
    if asked.echo {
        text.push_str(&prompt.text);
        if asked.wants_logprobs {
            scores = Some(logprobs::text(base, of_prompt(prompt, output), &mut offset));
        } else {
            offset = prompt.text.chars().count() as u64;
        }
    }
    if !asked.nothing_drawn {
        let said = said(asked, &sequence.tokens)?;
        text.push_str(&StopCut::cut(&asked.stops, &said).0);
        if let Some(scores) = &mut scores {
            let drawn = logprobs::text(base, logprobs::of_sequence(&sequence), &mut offset);
            scores.tokens.extend(drawn.tokens);
            scores.token_logprobs.extend(drawn.token_logprobs);
            scores.top_logprobs.extend(drawn.top_logprobs);
            scores.text_offset.extend(drawn.text_offset);
        }
    }
    let drawn = if asked.nothing_drawn {
        Vec::new()
    } else {
        sequence.tokens
    };
    Ok(CompletionChoice {
        index,
        text,
        logprobs: scores,
        finish_reason: Some(finish_reason(asked, sequence.stop_reason)),
        token_ids: asked.wants_token_ids.then_some(drawn),
        prompt_token_ids: asked.wants_token_ids.then(|| prompt.tokens.clone()),
    })
}

pub(super) fn finish_reason(asked: &Asked, reason: StopReason) -> FinishReason {
    match reason {
        StopReason::Stop if !asked.nothing_drawn => FinishReason::Stop,
        _ => FinishReason::Length,
    }
}

/// Returns the text of a sample, without the tokens that end it.
fn said(asked: &Asked, tokens: &[u32]) -> Result<String, ApiError> {
    let tokens = tokens.iter().copied();
    let tokens: Vec<u32> = tokens
        .filter(|token| !asked.end_tokens.contains(token))
        .collect();
    let tokenizer = asked.weights.base.tokenizer.as_ref();
    let text = tokenizer.map_or(Ok(String::new()), |tokenizer| tokenizer.decode(&tokens));
    text.map_err(|error| ApiError::unavailable(chain(&error)))
}

/// Returns the tokens of a prompt with their log-probabilities.
pub(super) fn of_prompt(
    prompt: &PromptTokens,
    output: &SampleOutput,
) -> impl Iterator<Item = Scored> {
    let topk = output.topk_prompt_logprobs.as_ref();
    prompt
        .tokens
        .iter()
        .enumerate()
        .map(move |(index, token)| Scored {
            token: *token,
            logprob: output.prompt_logprob(index),
            alternatives: logprobs::row(topk, index),
        })
}
