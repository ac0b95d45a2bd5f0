//! How to draw, as the OpenAI API says it.

use tinkrs_backend::SamplingExtras;
use tinkrs_types::SamplingParams;
use tinkrs_types::sampling::SampleOptions;
use tinkrs_wire::openai::SamplingMembers;

use super::found;
use crate::endpoints::question::Draw;
use crate::endpoints::text::stop_texts;
use crate::error::ApiError;

/// Most answers to a prompt, as the OpenAI API has it.
pub(super) const MOST_ANSWERS: u32 = 128;
/// Most likeliest tokens at a place.
const MOST_TOP_LOGPROBS: u32 = 20;

/// Reads how to draw. `top_logprobs` is how many of the likeliest tokens are reported, if they are.
pub(super) fn draw(
    members: SamplingMembers,
    top_logprobs: Option<(&str, u32)>,
) -> Result<Draw, ApiError> {
    let num_samples = members.n.unwrap_or(1);
    check_count("n", num_samples, 1, MOST_ANSWERS)?;
    if let Some((member, count)) = top_logprobs {
        check_count(member, count, 0, MOST_TOP_LOGPROBS)?;
    }
    let stops = members.stop.iter();
    let stops = stops.flat_map(|stop| stop.texts().iter().cloned());
    let stops = stop_texts("stop", stops)?;
    let defaults = SamplingParams::default();
    let params = SamplingParams {
        seed: members.seed,
        temperature: members.temperature.unwrap_or(defaults.temperature),
        top_p: members.top_p.unwrap_or(defaults.top_p),
        // Other servers say 0 for all, too.
        top_k: members.top_k.filter(|k| *k != 0).unwrap_or(defaults.top_k),
        ..defaults
    };
    let extras = SamplingExtras {
        logit_bias: biases(&members)?,
        presence_penalty: members.presence_penalty.unwrap_or(0.0),
        frequency_penalty: members.frequency_penalty.unwrap_or(0.0),
        repetition_penalty: members.repetition_penalty.unwrap_or(1.0),
        min_p: members.min_p.unwrap_or(0.0),
        min_tokens: members.min_tokens.unwrap_or(0),
        ..SamplingExtras::default()
    };
    Ok(Draw {
        num_samples,
        params,
        extras,
        stops,
        stop_tokens: members.stop_token_ids.unwrap_or_default(),
        ignore_eos: members.ignore_eos,
        options: SampleOptions {
            topk_sample_logprobs: top_logprobs.map_or(0, |(_, count)| count),
            ..SampleOptions::default()
        },
    })
}

fn biases(members: &SamplingMembers) -> Result<Vec<(u32, f32)>, ApiError> {
    let biases = members.logit_bias.iter().flatten();
    let biases = biases.map(|(token, bias)| match token.parse() {
        Ok(token) => Ok((token, *bias as f32)),
        Err(_) => Err(found(
            "logit_bias",
            format!("`{token}`"),
            "the ids of tokens",
        )),
    });
    biases.collect()
}

pub(super) fn check_count(member: &str, count: u32, least: u32, most: u32) -> Result<(), ApiError> {
    if (least..=most).contains(&count) {
        return Ok(());
    }
    Err(found(member, count, format!("{least} to {most}")))
}
