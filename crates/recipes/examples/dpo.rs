//! Trains a model on pairs of answers, one better than the other.
//!
//! A line of the file is `{"messages": […], "chosen": "…", "rejected": "…"}`.
//!
//! ```sh
//! TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local \
//!     cargo run --release -p tinkrs-recipes --example dpo -- preferences.jsonl runs/preferred
//! ```
#![expect(
    clippy::print_stdout,
    reason = "an example prints for the person who runs it"
)]

use anyhow::{Context, Result};
use tinkrs::{ServiceClient, TokenizerSource};
use tinkrs_chat::Renderer;
use tinkrs_recipes::data::{DataSet, TooLong};
use tinkrs_recipes::dpo::{self, Pair};
use tinkrs_recipes::run::{Hooks, Passes};
use tinkrs_recipes::{Schedule, report};

fn settings(model: &str) -> dpo::Config {
    dpo::Config {
        learning_rate: Schedule::new(1e-5),
        beta: 0.1,
        passes: Passes {
            batch_size: 32,
            epochs: 1,
            ..Passes::default()
        },
        ..dpo::Config::new(model)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().context("which file of preferences?")?;
    let folder = arguments.next().context("which folder for the run?")?;
    let model = arguments.next().unwrap_or("Qwen/Qwen3-8B".to_owned());

    let tokenizer = TokenizerSource::new(&model).load()?;
    let renderer = Renderer::of_model(&model, tokenizer)?;
    let pairs = DataSet::<Pair>::read(&file, &renderer, 4096, TooLong::Refuse)?;

    let hooks = Hooks::default().on_step(|report| {
        let (step, steps, numbers) = (report.step + 1, report.steps, &report.numbers);
        let (loss, right) = (numbers["loss"], numbers["accuracy"]);
        println!("step {step}/{steps}: loss {loss:.4}, right {right:.2}");
    });
    let service = ServiceClient::from_env();
    let outcome = dpo::train(&service, &settings(&model), &pairs, &folder, hooks).await?;
    let page = report::write(&folder)?;
    match outcome.sampler {
        Some(sampler) => println!("sample from {sampler}; see {}", page.display()),
        None => println!("stopped; run the same command to go on"),
    }
    Ok(())
}
