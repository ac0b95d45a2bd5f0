//! Teaches a model to add, by rewarding right answers.
//!
//! ```sh
//! TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local \
//!     cargo run --release -p tinkrs-recipes --example rl -- runs/adding
//! ```
#![expect(
    clippy::print_stdout,
    reason = "an example prints for the person who runs it"
)]

use anyhow::{Context, Result};
use std::sync::Arc;
use tinkrs::{ServiceClient, TokenizerSource};
use tinkrs_chat::{Conversation, Message, Renderer};
use tinkrs_recipes::rl::{self, PolicyConfig, Problem, Question};
use tinkrs_recipes::run::Hooks;
use tinkrs_recipes::{Schedule, Tokens, report};

const ANSWER_TOKENS: u32 = 16;

fn settings(model: &str) -> rl::Config {
    rl::Config {
        learning_rate: Schedule::new(4e-5),
        policy: PolicyConfig {
            steps: 30,
            problems_per_step: 16,
            group_size: 8,
            max_staleness: 1, // sample the next episodes while this step trains
            ..PolicyConfig::default()
        },
        ..rl::Config::new(model)
    }
}

/// Asks for a sum. The right number alone earns 1, among other words half of that.
fn addition(renderer: &Renderer, a: u32, b: u32) -> Result<Arc<dyn Problem>> {
    let ask = format!("What is {a} + {b}? Answer with the number only.");
    let sum = (a + b).to_string();
    let chat = Conversation::from([Message::user(ask)]);
    let question = Question::new(renderer, &chat, ANSWER_TOKENS, move |answer| {
        let words = &answer.message.content;
        if *words == sum {
            1.0
        } else if words
            .split_whitespace()
            .any(|word| word.trim_matches('.') == sum)
        {
            0.5
        } else {
            0.0
        }
    });
    Ok(Arc::new(question?))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("which folder for the run?")?;
    let model = arguments
        .next()
        .unwrap_or("Qwen/Qwen3-4B-Instruct-2507".to_owned());
    let config = settings(&model);

    let tokenizer = TokenizerSource::new(&model).load()?;
    let renderer = Renderer::of_model(&model, tokenizer)?;
    let sums = (0..200).map(|n| addition(&renderer, 7 * n % 100, 13 * n % 100));
    let problems = sums.collect::<Result<Vec<_>>>()?;
    println!("at most {}", Tokens::of_rl(&config, 40, ANSWER_TOKENS, 0));

    let hooks = Hooks::default().on_step(|report| {
        let (step, steps) = (report.step + 1, report.steps);
        println!(
            "step {step}/{steps}: reward {:.3}",
            report.numbers["reward"]
        );
    });
    let service = ServiceClient::from_env();
    let outcome = rl::train(&service, &config, &problems, &folder, hooks).await?;
    let page = report::write(&folder)?;
    match outcome.sampler {
        Some(sampler) => println!("sample from {sampler}; see {}", page.display()),
        None => println!("stopped; run the same command to go on"),
    }
    Ok(())
}
