//! Checking that a server did what was asked, where ignoring it would go unnoticed.

use crate::Error;
use tinkrs_types::input::Chunk;
use tinkrs_types::{ModelInput, SampleOutput};
use tinkrs_wire::op::asample::SampleRequest;

/// Gives each token of a prompt of text its place. Some servers leave out the first, which has no score.
pub(super) fn align(prompt: &ModelInput, output: &mut SampleOutput) {
    let is_text = |chunk: &Chunk| matches!(chunk, Chunk::Text(_));
    let tokens = prompt.len().filter(|_| prompt.chunks().iter().all(is_text));
    let (Some(tokens), Some(logprobs)) = (tokens, &mut output.prompt_logprobs) else {
        return;
    };
    if logprobs.len() + 1 == tokens {
        logprobs.insert(0, f32::NAN);
    }
}

pub(super) fn check(request: &SampleRequest, output: &SampleOutput) -> Result<(), Error> {
    let refuse = |message: &str| Err(Error::answer("sample", message.to_owned()));
    if request.prompt_alt_tokens_k > 0 && output.prompt_alt_tokens.is_none() {
        return refuse(
            "no alternatives to the prompt's tokens: the server is too old for `prompt_alt_tokens`",
        );
    }
    let (Some(last_n), Some(logprobs)) = (request.prompt_logprobs_last_n, &output.prompt_logprobs)
    else {
        return Ok(());
    };
    let before = logprobs.len().saturating_sub(last_n as usize);
    if logprobs[..before].iter().any(|logprob| !logprob.is_nan()) {
        return refuse(
            "scores outside the last positions: the server is too old for `prompt_logprobs_last_n`",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_stand_at_their_tokens_even_if_the_first_has_no_place() {
        let aligned = |prompt: &[u32], logprobs: &[f32]| {
            let mut output = SampleOutput::default();
            output.prompt_logprobs = Some(logprobs.to_vec());
            align(&prompt.into(), &mut output);
            output.prompt_logprobs.unwrap()
        };
        let short = aligned(&[7, 8, 9], &[-1.0, -2.0]);
        assert!(short[0].is_nan());
        assert_eq!(short[1..], [-1.0, -2.0]);
        let whole = aligned(&[7, 8, 9], &[f32::NAN, -1.0, -2.0]);
        assert_eq!(whole.len(), 3);
    }
}
