//! `tinkrs chat`: a conversation with a model.

use std::io::{BufRead, IsTerminal, Write};

use tinkrs_recipes::renderer::{Conversation, Message};

use super::sample::SamplingArgs;
use crate::backend::{Backend, BackendArgs};
use crate::report::{note, say};

/// Talk to a model
///
/// Reads what you say line by line; an empty line or the end of the input ends the conversation.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: BackendArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// What the model is told first
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let backend = Backend::open(&args.backend).await?;
    let renderer = backend.renderer()?;
    let sampler = args.sampling.sampler(&backend).await?;
    let params = args.sampling.apply(renderer.sampling_params(128));
    let mut messages: Vec<Message> = args.system.iter().map(Message::system).collect();
    note("an empty line ends the conversation");
    while let Some(said) = listen()? {
        messages.push(Message::user(said));
        let prompt = renderer.prompt(&Conversation::from(messages.clone()))?;
        let output = sampler.sample(prompt, params.clone()).await?;
        let Some(sequence) = output.sequences.first() else {
            break;
        };
        let answer = renderer.parse(&sequence.tokens)?.message;
        say(&answer.content)?;
        messages.push(answer);
    }
    backend.close().await
}

/// Reads a line, if there is one that says something.
fn listen() -> anyhow::Result<Option<String>> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        let mut stderr = std::io::stderr();
        write!(stderr, "> ")?;
        stderr.flush()?;
    }
    let mut line = String::new();
    stdin.lock().read_line(&mut line)?;
    let line = line.trim();
    Ok((!line.is_empty()).then(|| line.to_owned()))
}
