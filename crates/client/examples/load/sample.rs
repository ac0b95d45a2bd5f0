//! Samples, so many at once.

use crate::measure::{Start, print, rates};
use crate::{BASE_MODEL, MAX_TOKENS, service, tokens};
use anyhow::{Result, ensure};
use std::collections::VecDeque;
use tinkrs::{ModelInput, Pending, SampleOutput, SamplingParams};

/// Takes `n` samples, of which `in_flight` are under way at any time. The oldest is awaited first.
pub(crate) async fn run(n: usize, prompt_tokens: usize, in_flight: usize) -> Result<()> {
    let client = service().create_sampling_client(BASE_MODEL).await?;
    let prompt = ModelInput::from_tokens(tokens(prompt_tokens));

    let start = Start::now();
    let mut pending: VecDeque<Pending<SampleOutput>> = VecDeque::new();
    for _ in 0..n {
        if pending.len() == in_flight {
            finish(pending.pop_front()).await?;
        }
        let params = SamplingParams::new(MAX_TOKENS);
        pending.push_back(client.sample(prompt.clone(), params).submit());
    }
    while !pending.is_empty() {
        finish(pending.pop_front()).await?;
    }
    let measured = start.stop();
    print("tinkrs", "sample", n, &measured, &rates(n, &measured))
}

async fn finish(pending: Option<Pending<SampleOutput>>) -> Result<()> {
    if let Some(pending) = pending {
        let output = pending.await?;
        ensure!(output.sequences[0].tokens.len() == MAX_TOKENS as usize);
    }
    Ok(())
}
