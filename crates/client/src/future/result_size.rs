//! How long a result may be, from what was asked for.
//!
//! The server says what it likes; the client knows what it asked for. A result beyond these limits is a
//! fault or an attack, and is not read to its end. They are generous: the largest form of a number is a
//! JSON one, and servers may add numbers of their own.

use tinkrs_wire::op::asample::SampleRequest;

/// What any result may be: metrics, ids, messages.
pub(crate) const BASE_BYTES: usize = 16 << 20;
/// No result is longer, whatever was asked for.
const MAX_BYTES: usize = 1 << 30;
/// A number in JSON, with what is around it.
const NUMBER_BYTES: usize = 32;
/// For each number of a pass that was sent, in four bytes or more, two may come back.
const TIMES_SENT: usize = 2 * NUMBER_BYTES / 4;
/// The tokens of a prompt, or of an answer, whose number is not known: more than any model's context.
const MAX_TOKENS: usize = 1 << 20;

/// Returns the limit for a pass of which so many bytes were sent.
pub(crate) fn of_pass(sent_bytes: usize) -> usize {
    limit(sent_bytes.saturating_mul(TIMES_SENT))
}

/// Returns the limit for a sample with a prompt of so many tokens, as far as that is known.
pub(crate) fn of_sample(request: &SampleRequest, prompt_tokens: Option<usize>) -> usize {
    // A token and its probability, and as many pairs as there are alternatives.
    let pairs = |alternatives: usize| 2 * (1 + alternatives);
    let answer = request.sampling_params.max_tokens;
    let answer = answer.map_or(MAX_TOKENS, |tokens| tokens as usize);
    let prompt_tokens = prompt_tokens.unwrap_or(MAX_TOKENS);
    let answers = answer.saturating_mul(request.num_samples as usize);
    let in_prompt = request.topk_prompt_logprobs as usize + request.prompt_alt_tokens_k as usize;
    let targets = request.target_prompt_logprobs.as_ref();
    let numbers = answers
        .saturating_mul(pairs(request.topk_sample_logprobs as usize))
        .saturating_add(prompt_tokens.saturating_mul(pairs(in_prompt)))
        .saturating_add(targets.map_or(0, |targets| targets.values().len()));
    limit(numbers.saturating_mul(NUMBER_BYTES))
}

fn limit(bytes: usize) -> usize {
    BASE_BYTES.saturating_add(bytes).min(MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_grows_with_what_was_asked_for() {
        let mib = |n: usize| n << 20;
        assert_eq!(of_pass(0), BASE_BYTES);
        assert_eq!(of_pass(mib(5)), BASE_BYTES + mib(80));
        assert_eq!(of_pass(usize::MAX), MAX_BYTES);
        let request = serde_json::json!({
            "num_samples": 4, "prompt": {"chunks": []}, "sampling_params": {"max_tokens": 1_000},
        });
        let mut request: SampleRequest = serde_json::from_value(request).unwrap();
        assert_eq!(of_sample(&request, Some(0)), BASE_BYTES + 4_000 * 2 * 32);
        assert_eq!(
            of_sample(&request, Some(500)),
            BASE_BYTES + (4_000 + 500) * 2 * 32
        );
        request.topk_sample_logprobs = 9;
        assert_eq!(of_sample(&request, Some(0)), BASE_BYTES + 4_000 * 20 * 32);
        request.sampling_params.max_tokens = None;
        assert_eq!(of_sample(&request, Some(0)), MAX_BYTES);
    }
}
