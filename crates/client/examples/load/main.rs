//! Measures what the client costs: time, processor time and memory.
//!
//! ```text
//! load sample N PROMPT_TOKENS [IN_FLIGHT]  N samples of 128 tokens, so many at once, or all
//! load train STEPS DATUMS TOKENS           pipelined forward_backward and optim_step
//! load raw N PROMPT_TOKENS [IN_FLIGHT]     what `sample` sends, from a bare loop over hyper
//! load rl MODEL GROUP TOKENS               steps of reinforcement learning
//! load adapters MODEL ADAPTERS N TOKENS    N samples in turns with so many adapters
//! ```
//!
//! The server is at `TINKER_BASE_URL`. The first three need `null/model`, which the example
//! `null_server` of `tinkrs-testkit` offers, and run once; the others warm up, then take a round for
//! each line of stdin. A run, or round, prints one line of JSON. `bench/run` compares them with the
//! same work of the official SDK (`bench/client_python.py`).

mod adapters;
mod measure;
mod raw;
mod rl;
mod sample;
mod train;

use anyhow::{Context, Result, bail};

/// The base model that everything is asked of.
const BASE_MODEL: &str = "null/model";
/// How many tokens a sample may have, and has.
const MAX_TOKENS: u32 = 128;
/// The key, if the environment has none. The server does not care.
const KEY: &str = "tml-bench";

const USAGE: &str = "usage: load sample N PROMPT_TOKENS [IN_FLIGHT] | train STEPS DATUMS TOKENS | \
                     raw N PROMPT_TOKENS [IN_FLIGHT] | rl MODEL GROUP TOKENS | \
                     adapters MODEL ADAPTERS N TOKENS";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["sample", n, prompt, ref in_flight @ ..] if in_flight.len() < 2 => {
            let in_flight = in_flight.first().unwrap_or(&n);
            sample::run(number(n)?, number(prompt)?, number(in_flight)?).await
        }
        ["raw", n, prompt, ref in_flight @ ..] if in_flight.len() < 2 => {
            let in_flight = in_flight.first().unwrap_or(&n);
            raw::run(number(n)?, number(prompt)?, number(in_flight)?).await
        }
        ["train", steps, datums, tokens] => {
            train::run(number(steps)?, number(datums)?, number(tokens)?).await
        }
        ["rl", model, group, tokens] => rl::run(model, number(group)?, number(tokens)?).await,
        ["adapters", model, adapters, n, tokens] => {
            adapters::run(model, number(adapters)?, number(n)?, number(tokens)?).await
        }
        _ => bail!(USAGE),
    }
}

fn number(text: &str) -> Result<usize> {
    text.parse().with_context(|| format!("`{text}`"))
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
