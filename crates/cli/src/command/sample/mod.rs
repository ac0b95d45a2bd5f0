//! `tinkrs sample`: what a model says to a prompt.

use tinkrs::{SampleFrom, SamplingClient, SamplingParams, TinkerPath};
use tinkrs_recipes::renderer::{Conversation, Message};

use crate::backend::{Backend, BackendArgs};
use crate::context::Context;
use crate::report::say;

/// Ask a model, once or several times
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: BackendArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// What to ask
    prompt: String,

    /// How many answers
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    num_samples: u32,

    /// Let the model continue the prompt as plain text instead of answering it
    #[arg(long)]
    raw: bool,
}

/// How to draw tokens
#[derive(Debug, clap::Args)]
pub(crate) struct SamplingArgs {
    /// Sample from this checkpoint, such as tinker://…/sampler_weights/final
    #[arg(long, value_name = "PATH")]
    checkpoint: Option<TinkerPath>,

    /// The most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) max_tokens: u32,

    /// Randomness; 0 always takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    temperature: f64,

    /// Seed, for the same answer again
    #[arg(long, value_name = "N")]
    seed: Option<i64>,
}

impl SamplingArgs {
    /// Adjusts what the chat format asks for.
    pub(crate) fn apply(&self, params: SamplingParams) -> SamplingParams {
        SamplingParams {
            max_tokens: Some(self.max_tokens),
            temperature: self.temperature,
            seed: self.seed,
            ..params
        }
    }

    /// Opens a sampler of the checkpoint, or of the base model.
    pub(crate) async fn sampler(&self, backend: &Backend) -> anyhow::Result<SamplingClient> {
        let source = match &self.checkpoint {
            Some(path) => SampleFrom::Checkpoint(path.clone()),
            None => SampleFrom::BaseModel(backend.model.clone()),
        };
        Ok(backend.service.create_sampling_client(source).await?)
    }
}

pub(crate) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let backend = Backend::open(&args.backend).await?;
    let renderer = backend.renderer()?;
    let sampler = args.sampling.sampler(&backend).await?;
    let prompt = match args.raw {
        true => renderer.document(&args.prompt)?,
        false => renderer.prompt(&Conversation::from([Message::user(&args.prompt)]))?,
    };
    let params = args
        .sampling
        .apply(renderer.sampling_params(args.sampling.max_tokens));
    let output = sampler
        .sample(prompt, params)
        .num_samples(args.num_samples)
        .await?;
    for sequence in &output.sequences {
        let answer = renderer.parse(&sequence.tokens)?.message.content;
        match ctx.is_json() {
            true => say(&serde_json::json!({
                "text": answer, "tokens": sequence.tokens.len(), "stop_reason": sequence.stop_reason,
            }).to_string())?,
            false => say(&answer)?,
        }
    }
    backend.close().await
}
