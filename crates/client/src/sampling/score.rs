//! Checking that a server did what was asked, where ignoring it would go unnoticed.

use crate::Error;
use tinkrs_types::SampleOutput;
use tinkrs_wire::op::asample::SampleRequest;

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
