//! Fine-tunes a model on a file of chats or prompt/completion pairs.
//!
//! ```sh
//! TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local \
//!     cargo run --release -p tinkrs-recipes --example sft -- data.jsonl runs/first
//! ```
#![expect(
    clippy::print_stdout,
    reason = "an example prints for the person who runs it"
)]

use anyhow::{Context, Result};
use tinkrs::{ServiceClient, TokenizerSource};
use tinkrs_chat::{Renderer, TrainOn};
use tinkrs_recipes::data::{Examples, TooLong};
use tinkrs_recipes::run::{Evaluation, Hooks, Passes};
use tinkrs_recipes::{Decay, Schedule, report, sft};

fn settings(model: &str) -> sft::Config {
    sft::Config {
        learning_rate: Schedule {
            warmup_steps: 10,
            decay: Decay::Cosine,
            ..Schedule::new(2e-4)
        },
        passes: Passes {
            batch_size: 16,
            epochs: 2,
            ..Passes::default()
        },
        evaluation: Evaluation {
            every: 20,
            ..Evaluation::default()
        },
        checkpoint_every: 50,
        ..sft::Config::new(model)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().context("which file of examples?")?;
    let folder = arguments.next().context("which folder for the run?")?;
    let model = arguments.next().unwrap_or("Qwen/Qwen3-8B".to_owned());

    let tokenizer = TokenizerSource::new(&model).load()?;
    let renderer = Renderer::of_model(&model, tokenizer)?;
    let train_on = TrainOn::LastAssistantMessage;
    let examples = Examples::read(&file, &renderer, train_on, 2048, TooLong::Skip)?;
    let eval = examples.train.len() / 20;
    let examples = examples.split_eval(eval, 0)?;
    println!(
        "{} examples, {} too long",
        examples.train.len(),
        examples.skipped
    );

    let service = ServiceClient::from_env();
    let hooks = Hooks::default();
    // Ctrl-C saves a checkpoint; running the same command again goes on from there.
    let interrupt = hooks.interrupt.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupt.set();
        }
    });
    let hooks = hooks.on_step(|report| {
        println!(
            "step {}/{}: loss {:.4}",
            report.step + 1,
            report.steps,
            report.numbers["loss"]
        );
    });
    let outcome = sft::train(&service, &settings(&model), &examples, &folder, hooks).await?;
    let page = report::write(&folder)?;
    match outcome.sampler {
        Some(sampler) => println!("sample from {sampler}; see {}", page.display()),
        None => println!("stopped; run the same command to go on"),
    }
    Ok(())
}
