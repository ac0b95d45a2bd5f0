//! Measures what the client costs: time, processor time and memory.
//!
//! ```text
//! load sample N PROMPT_TOKENS        N samples of 128 tokens, all submitted at once
//! load train STEPS DATUMS TOKENS     pipelined forward_backward and optim_step
//! load raw N [PROMPT_TOKENS]         what `sample` sends, from a bare loop over hyper
//! ```
//!
//! The server is at `TINKER_BASE_URL` and offers `null/model`, as the example `null_server` of
//! `tinkrs-testkit` does. `bench/client` runs everything. Each run prints one line of JSON.

mod measure;
mod raw;
mod sample;
mod train;

use anyhow::{Context, Result, bail};

/// The base model that everything is asked of.
const BASE_MODEL: &str = "null/model";
/// How many tokens a sample may have, and has.
const MAX_TOKENS: u32 = 128;
/// The key, if the environment has none. The server does not care.
const KEY: &str = "tml-bench";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mode, numbers) = arguments
        .split_first()
        .context("usage: load sample|train|raw")?;
    let numbers: Vec<usize> = numbers
        .iter()
        .map(|number| number.parse().with_context(|| format!("`{number}`")))
        .collect::<Result<_>>()?;
    match (mode.as_str(), &numbers[..]) {
        ("sample", [n, prompt_tokens]) => sample::run(*n, *prompt_tokens).await,
        ("train", [steps, datums, tokens]) => train::run(*steps, *datums, *tokens).await,
        ("raw", [n]) => raw::run(*n, 1_000).await,
        ("raw", [n, prompt_tokens]) => raw::run(*n, *prompt_tokens).await,
        _ => bail!(
            "usage: load sample N PROMPT_TOKENS | train STEPS DATUMS TOKENS | raw N [PROMPT_TOKENS]"
        ),
    }
}

/// Returns tokens as a prompt might have them: mostly of five digits.
fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32)
        .map(|i| 100 + (i * 7_919) % 150_000)
        .collect()
}

fn service() -> tinkrs::ServiceClient {
    let builder = tinkrs::ServiceClient::builder().telemetry(false);
    match std::env::var("TINKER_API_KEY") {
        Ok(key) if !key.is_empty() => builder.build(),
        _ => builder.api_key(KEY).build(),
    }
}
