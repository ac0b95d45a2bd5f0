//! A sampling request, and its lowering into checked working values.
//!
//! Everything that can be wrong with a request is found here, before it is queued, and named by the
//! field that holds it; what comes after trusts the values.

use std::sync::Arc;

use tinkrs_backend::{SamplingExtras, check_limits};
use tinkrs_types::sampling::SampleOptions;
use tinkrs_types::{InvalidInput, SamplingParams};

use super::distribution::Rule;
use super::prefix_cache::WeightsId;
use super::scoring::Scoring;
use super::stop::StopMatcher;
use crate::{Error, ModelConfig};

/// What to sample, from which weights, and what to report.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    /// The base model, or an adapter that the sampler knows.
    pub weights: WeightsId,
    /// The prompt; at least one token.
    pub prompt: Vec<u32>,
    /// How many continuations to draw. They share one pass over the prompt.
    pub num_samples: u32,
    /// How to draw tokens. `max_tokens` is required.
    pub params: SamplingParams,
    /// How to draw them otherwise; nothing by default.
    pub extras: Arc<SamplingExtras>,
    /// What to report besides the samples. `record_stability_info` has no effect: no loss of the engine
    /// reads what it would record.
    pub options: SampleOptions,
    /// The seed to use where `params` has none; a caller that wants chance draws it at random.
    pub fallback_seed: u64,
    /// Whose request it is: room and prefill are divided evenly between shares.
    pub share: u64,
}

impl SampleRequest {
    /// Asks for one sample of the base model, of at most `max_tokens` tokens, with seed 0.
    #[must_use]
    pub fn new(prompt: impl Into<Vec<u32>>, max_tokens: u32) -> Self {
        Self {
            weights: WeightsId::BASE,
            prompt: prompt.into(),
            num_samples: 1,
            params: SamplingParams::new(max_tokens),
            extras: Arc::default(),
            options: SampleOptions::default(),
            fallback_seed: 0,
            share: 0,
        }
    }
}

/// A request whose values are known to be good.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) weights: WeightsId,
    pub(crate) prompt: Vec<u32>,
    pub(crate) samples: usize,
    pub(crate) max_tokens: usize,
    pub(crate) seed: u64,
    pub(crate) rule: Rule,
    pub(crate) extras: Arc<SamplingExtras>,
    pub(crate) vocab: usize,
    pub(crate) stop: StopMatcher,
    pub(crate) topk_sample_logprobs: usize,
    pub(crate) scoring: Scoring,
}

impl Checked {
    /// Checks every field of a request.
    ///
    /// # Errors
    ///
    /// Names the first field that cannot be used, and what it may hold.
    pub(crate) fn new(
        request: SampleRequest,
        config: &ModelConfig,
        can_detokenize: bool,
    ) -> Result<Self, Error> {
        let SampleRequest {
            weights,
            prompt,
            num_samples,
            params,
            extras,
            options,
            fallback_seed,
            share: _,
        } = request;
        let max_tokens = check_limits(num_samples, &params, &options)?;
        extras.check(config.vocab, max_tokens)?;
        if prompt.is_empty() {
            return Err(InvalidInput::new("prompt", "no tokens", "at least one token").into());
        }
        for (position, token) in prompt.iter().enumerate() {
            if *token as usize >= config.vocab {
                let found = format!("token {token} at position {position}");
                let allowed = format!("tokens below {}, the size of the vocabulary", config.vocab);
                return Err(InvalidInput::new("prompt", found, allowed).into());
            }
        }
        if prompt.len() + max_tokens > config.max_context {
            return Err(Error::PromptTooLong {
                prompt: prompt.len(),
                max_tokens,
                limit: config.max_context,
            });
        }
        let at_most_vocab = |field: &'static str, k: u32| {
            if k as usize <= config.vocab {
                return Ok(k as usize);
            }
            let allowed = format!("at most {}, the size of the vocabulary", config.vocab);
            Err(InvalidInput::new(field, k, allowed))
        };
        at_most_vocab("topk_prompt_logprobs", options.topk_prompt_logprobs)?;
        at_most_vocab("prompt_alt_tokens_k", options.prompt_alt_tokens_k)?;
        let topk_sample_logprobs =
            at_most_vocab("topk_sample_logprobs", options.topk_sample_logprobs)?;
        Ok(Self {
            weights,
            samples: num_samples as usize,
            max_tokens,
            seed: params.seed.map_or(fallback_seed, i64::cast_unsigned),
            rule: rule(&params, &extras),
            stop: StopMatcher::new(
                params.stop.as_ref(),
                &extras,
                &config.eos,
                config.vocab,
                can_detokenize,
            )?,
            topk_sample_logprobs,
            scoring: Scoring::new(&options, prompt.len(), config.vocab)?,
            vocab: config.vocab,
            extras,
            prompt,
        })
    }
}

fn rule(params: &SamplingParams, extras: &SamplingExtras) -> Rule {
    Rule {
        // A temperature too small for f32 must not turn into 0, which reports other log-probabilities.
        temperature: match params.temperature {
            0.0 => 0.0,
            temperature => (temperature as f32).clamp(f32::MIN_POSITIVE, f32::MAX),
        },
        top_k: usize::try_from(params.top_k).ok(),
        top_p: params.top_p,
        min_p: extras.min_p as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_backend::MAX_SAMPLES;
    use tinkrs_types::TensorData;
    use tinkrs_types::sampling::Stop;

    fn config() -> ModelConfig {
        ModelConfig {
            vocab: 50,
            max_context: 20,
            eos: vec![2],
            ..ModelConfig::tiny_qwen3()
        }
    }

    fn check(request: SampleRequest) -> Result<Checked, Error> {
        Checked::new(request, &config(), false)
    }

    #[test]
    fn the_whole_context_may_be_used_and_not_one_token_more() {
        assert!(check(SampleRequest::new([1; 12], 8)).is_ok());
        assert_eq!(
            check(SampleRequest::new([1; 12], 9))
                .unwrap_err()
                .to_string(),
            "Prompt length plus max_tokens exceeds the model's context window: 12 + 9 > 20"
        );
    }

    #[test]
    fn bad_fields_are_named() {
        let good = || SampleRequest::new([1, 2, 3], 4);
        let params = |change: fn(&mut SamplingParams)| {
            let mut request = good();
            change(&mut request.params);
            request
        };
        let options = |change: fn(&mut SampleOptions)| {
            let mut request = good();
            change(&mut request.options);
            request
        };
        let targets = |rows: &[[i64; 1]]| {
            let mut request = good();
            request.options.target_prompt_logprobs = Some(TensorData::from_rows(rows).unwrap());
            request
        };
        let cases = [
            ("prompt", SampleRequest::new([], 4)),
            ("position 1", SampleRequest::new([1, 50], 4)),
            (
                "num_samples",
                SampleRequest {
                    num_samples: 0,
                    ..good()
                },
            ),
            (
                "num_samples",
                SampleRequest {
                    num_samples: MAX_SAMPLES + 1,
                    ..good()
                },
            ),
            ("max_tokens", params(|p| p.max_tokens = None)),
            ("max_tokens", params(|p| p.max_tokens = Some(0))),
            ("temperature", params(|p| p.temperature = -1.0)),
            ("temperature", params(|p| p.temperature = f64::INFINITY)),
            ("top_p", params(|p| p.top_p = 0.0)),
            ("top_k", params(|p| p.top_k = 0)),
            ("stop", params(|p| p.stop = Some(Stop::AnyToken(vec![50])))),
            (
                "topk_prompt_logprobs",
                options(|o| o.topk_prompt_logprobs = 51),
            ),
            (
                "topk_sample_logprobs",
                options(|o| o.topk_sample_logprobs = 51),
            ),
            (
                "prompt_alt_tokens_k",
                options(|o| o.prompt_alt_tokens_k = 51),
            ),
            (
                "prompt_logprobs_last_n",
                options(|o| o.prompt_logprobs_last_n = Some(1)),
            ),
            (
                "prompt_logprobs_last_n",
                options(|o| {
                    o.prompt_logprobs = true;
                    o.prompt_logprobs_last_n = Some(3);
                }),
            ),
            ("target_prompt_logprobs", targets(&[[1]])),
            ("target_prompt_logprobs", targets(&[[1], [50]])),
            ("target_prompt_logprobs", targets(&[[1], [-2]])),
            ("target_prompt_logprobs", targets(&[[-1], [-1]])),
        ];
        for (name, request) in cases {
            let error = check(request.clone()).expect_err(name);
            assert!(error.is_bad_request(), "{error}");
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
        check(good()).unwrap();
    }

    #[test]
    fn a_given_seed_wins_over_the_fallback() {
        let mut request = SampleRequest {
            fallback_seed: 9,
            ..SampleRequest::new([1], 1)
        };
        assert_eq!(check(request.clone()).unwrap().seed, 9);
        request.params.seed = Some(-1);
        assert_eq!(check(request).unwrap().seed, u64::MAX);
    }

    #[test]
    fn tiny_temperatures_stay_above_greedy() {
        let mut request = SampleRequest::new([1], 1);
        request.params.temperature = 1e-300;
        assert!(check(request).unwrap().rule.temperature > 0.0);
    }
}
