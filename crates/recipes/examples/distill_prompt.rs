//! Teaches a model to follow instructions that it is no longer given.
//!
//! The first file holds the instructions, the second one question a line.
//!
//! ```sh
//! TINKER_API_KEY=… cargo run --release -p tinkrs-recipes --example distill_prompt -- \
//!     instructions.txt questions.txt runs/instructed
//! ```
#![expect(
    clippy::print_stdout,
    reason = "an example prints for the person who runs it"
)]

use anyhow::{Context, Result};
use tinkrs::{ServiceClient, TokenizerSource};
use tinkrs_chat::{Conversation, Message, Renderer};
use tinkrs_recipes::distill::{self, PromptConfig};
use tinkrs_recipes::run::{Hooks, Passes};
use tinkrs_recipes::{Schedule, report};

const MODEL: &str = "Qwen/Qwen3-4B-Instruct-2507";

fn settings(instructions: String) -> PromptConfig {
    PromptConfig {
        learning_rate: Schedule::new(2e-4),
        passes: Passes {
            epochs: 2,
            ..Passes::default()
        },
        answers: 4,
        max_tokens: 512,
        ..PromptConfig::new(MODEL, instructions)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let instructions = arguments.next().context("which file of instructions?")?;
    let questions = arguments.next().context("which file of questions?")?;
    let folder = arguments.next().context("which folder for the run?")?;

    let tokenizer = TokenizerSource::new(MODEL).load()?;
    let renderer = Renderer::of_model(MODEL, tokenizer)?;
    let config = settings(std::fs::read_to_string(&instructions)?.trim().to_owned());
    let questions = std::fs::read_to_string(&questions)?;
    let ask = |line: &str| Conversation::from([Message::user(line)]);
    let questions: Vec<Conversation> = questions.lines().map(ask).collect();

    let service = ServiceClient::from_env();
    let teacher = service.create_sampling_client(MODEL).await?;
    let hooks = Hooks::default().on_step(|report| {
        println!(
            "step {}/{}: loss {:.4}",
            report.step + 1,
            report.steps,
            report.numbers["loss"]
        );
    });
    let folder = folder.as_str();
    let run = distill::prompt(
        &service, &config, &teacher, &renderer, &questions, folder, hooks,
    );
    let sampler = run.await?.sampler;
    let page = report::write(folder)?;
    match sampler {
        Some(sampler) => println!("sample from {sampler}; see {}", page.display()),
        None => println!("stopped; run the same command to go on"),
    }
    Ok(())
}
