//! Teaches a small model to write as a large one does: the student writes, the teacher judges
//! every token.
//!
//! Both models must have the same tokenizer. The file holds one question a line.
//!
//! ```sh
//! TINKER_API_KEY=… cargo run --release -p tinkrs-recipes --example distill_on_policy -- \
//!     questions.txt runs/distilled
//! ```
#![expect(
    clippy::print_stdout,
    reason = "an example prints for the person who runs it"
)]

use anyhow::{Context, Result};
use tinkrs::{ServiceClient, TokenizerSource};
use tinkrs_chat::{Conversation, Message, Renderer};
use tinkrs_recipes::distill::{self, OnPolicyConfig};
use tinkrs_recipes::rl::PolicyConfig;
use tinkrs_recipes::run::Hooks;
use tinkrs_recipes::{Schedule, report};

const STUDENT: &str = "Qwen/Qwen3-8B";
const TEACHER: &str = "Qwen/Qwen3-32B";

fn settings() -> OnPolicyConfig {
    OnPolicyConfig {
        learning_rate: Schedule::new(1e-4),
        policy: PolicyConfig {
            steps: 100,
            problems_per_step: 64,
            group_size: 4,
            ..PolicyConfig::default()
        },
        ..OnPolicyConfig::new(STUDENT)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().context("which file of questions?")?;
    let folder = arguments.next().context("which folder for the run?")?;

    let tokenizer = TokenizerSource::new(STUDENT).load()?;
    let renderer = Renderer::of_model(STUDENT, tokenizer)?;
    let questions = std::fs::read_to_string(&file).context("could not read the questions")?;
    let prompt = |line: &str| renderer.prompt(&Conversation::from([Message::user(line)]));
    let prompts = questions
        .lines()
        .map(prompt)
        .collect::<Result<Vec<_>, _>>()?;

    let service = ServiceClient::from_env();
    let teacher = service.create_sampling_client(TEACHER).await?;
    let hooks = Hooks::default().on_step(|report| {
        let (step, steps) = (report.step + 1, report.steps);
        let distance = report.numbers["kl_reference"];
        println!("step {step}/{steps}: {distance:.4} nats a token from the teacher");
    });
    let params = renderer.sampling_params(512);
    let (config, folder) = (settings(), folder.as_str());
    let run = distill::on_policy(&service, &config, teacher, &prompts, &params, folder, hooks);
    let sampler = run.await?.sampler;
    let page = report::write(folder)?;
    match sampler {
        Some(sampler) => println!("sample from {sampler}; see {}", page.display()),
        None => println!("stopped; run the same command to go on"),
    }
    Ok(())
}
