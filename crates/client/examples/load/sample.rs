//! Samples, all at once.

use crate::measure::{Start, print, rates};
use crate::{BASE_MODEL, MAX_TOKENS, service, tokens};
use anyhow::{Result, ensure};
use tinkrs::{ModelInput, Pending, SampleOutput, SamplingParams};

pub(crate) async fn run(n: usize, prompt_tokens: usize) -> Result<()> {
    let client = service().create_sampling_client(BASE_MODEL).await?;
    let prompt = ModelInput::from_tokens(tokens(prompt_tokens));

    let start = Start::now();
    let submit = |_| {
        let params = SamplingParams::new(MAX_TOKENS);
        client.sample(prompt.clone(), params).submit()
    };
    let pending: Vec<Pending<SampleOutput>> = (0..n).map(submit).collect();
    for output in pending {
        let output = output.await?;
        ensure!(output.sequences[0].tokens.len() == MAX_TOKENS as usize);
    }
    let measured = start.stop();
    print("tinkrs", "sample", n, &measured, &rates(n, &measured))
}
