//! `tinkrs sample`: what a model says to a prompt, or to many.

mod prompts;

use anyhow::{anyhow, bail, ensure};
use clap::FromArgMatches;
use clap::builder::Resettable;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tinkrs::sampling::{SampledSequence, StopReason};
use tinkrs::{CheckpointRef, SampleFrom, SamplingClient, SamplingParams};
use tinkrs_chat::{Conversation, Message, Renderer};

use crate::backend::{Backend, BackendArgs};
use crate::chat_api::ChatApi;
use crate::context::{Context, ascii};
use crate::output::say;
use prompts::{Ask, Source};

/// How many prompts of a file are under way at once.
const IN_FLIGHT: usize = 64;

/// Ask a model, once or several times, one prompt or a file of them
///
/// A file that ends in `.jsonl` has a prompt on each line: {"prompt": "…"} or {"messages": [{"role":
/// "user", "content": "…"}, …]}. Its answers are JSON too, a line for each, in the same order:
/// {"line": 1, "answers": [{"text": "…", "tokens": 7, "stop_reason": "stop"}]}, or {"line": 1, "error":
/// "…"} for a prompt that cannot be answered. Any other file is one prompt.
///
/// With `--base-url`, any server of the OpenAI API can be asked as well: a URL that ends in /v1, or one whose
/// server has no Tinker API. Its key is that in OPENAI_API_KEY.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: BackendArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// What to ask; `-` reads it from stdin
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    prompt: Option<String>,

    /// Read the prompt from this file, or many prompts if it ends in `.jsonl`
    #[arg(long, value_name = "FILE")]
    file: Option<std::path::PathBuf>,

    /// How many answers to each prompt
    #[arg(short, long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    num_samples: u32,

    /// Let the model continue the prompt as plain text instead of answering it
    #[arg(long)]
    raw: bool,
}

/// How to draw tokens
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SamplingArgs {
    /// Sample from this checkpoint: its path, such as tinker://…/sampler_weights/final, or its run, such as
    /// `my-run` or `my-run@120`. Needs no `--model`
    #[arg(long, value_name = "RUN")]
    pub(crate) checkpoint: Option<CheckpointRef>,

    /// The most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 128,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,

    /// Randomness; 0 always takes the likeliest token
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.7,
        allow_negative_numbers = true
    )]
    temperature: f64,

    /// Draw from the fewest tokens that together have this probability; 1 draws from all
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    top_p: f64,

    /// Draw from this many of the likeliest tokens; -1 draws from all
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    top_k: i32,

    /// Seed, for the same answer again
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<i64>,
}

/// The options that `/set` of a conversation changes.
const CHANGEABLE: [&str; 5] = ["temperature", "top-p", "top-k", "max-tokens", "seed"];

impl SamplingArgs {
    /// Adjusts what the chat format asks for.
    pub(crate) fn apply(&self, params: SamplingParams) -> SamplingParams {
        SamplingParams {
            max_tokens: Some(self.max_tokens),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            seed: self.seed,
            ..params
        }
    }

    /// Checks ranges, in the words of the options.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let checked = self.apply(SamplingParams::default()).check();
        checked.map_err(|error| {
            let mut text = error.to_string();
            for name in CHANGEABLE {
                let field = format!("sampling_params.{}", name.replace('-', "_"));
                text = text.replace(&field, &format!("--{name}"));
            }
            anyhow!(text)
        })
    }

    /// Changes one of the settings, as its option would: `temperature`, `0.3`.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let name = name.trim_start_matches('-').replace('_', "-");
        ensure!(
            CHANGEABLE.contains(&name.as_str()),
            "there is no setting `{name}`, only {}",
            CHANGEABLE.join(", ")
        );
        let mut changed = self.clone();
        if name == "seed" && value == "none" {
            changed.seed = None;
        } else {
            let options = <Self as clap::Args>::augment_args(clap::Command::new("set"));
            // A default must not replace what was set before.
            let options = options.mut_args(|option| option.default_value(Resettable::Reset));
            let typed = options
                .no_binary_name(true)
                .try_get_matches_from([format!("--{name}={value}")]);
            let updated = typed.and_then(|typed| changed.update_from_arg_matches(&typed));
            updated.map_err(|error| {
                let text = error.to_string();
                let line = text.lines().next().unwrap_or_default();
                anyhow!(line.trim_start_matches("error: ").to_owned())
            })?;
        }
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// Draws differently from now on, also if there is a seed.
    pub(crate) fn draw_anew(&mut self) {
        self.seed = self.seed.map(|seed| seed.wrapping_add(1));
    }

    /// Opens a sampler of the checkpoint, or of the base model.
    pub(crate) async fn sampler(&self, backend: &Backend) -> anyhow::Result<SamplingClient> {
        if let Some(checkpoint) = &self.checkpoint {
            return backend.sampler(checkpoint).await;
        }
        let source = SampleFrom::BaseModel(backend.model.clone());
        Ok(backend.service.create_sampling_client(source).await?)
    }
}

/// An answer.
struct Answered {
    text: String,
    tokens: usize,
    stop_reason: StopReason,
}

/// A model that is asked.
enum Oracle<'a> {
    Tinker(TinkerOracle),
    OpenAi(&'a ChatApi, &'a Args),
}

impl Oracle<'_> {
    async fn answers(&self, ask: &Ask) -> anyhow::Result<Vec<Answered>> {
        match self {
            Self::Tinker(oracle) => oracle.answers(ask).await,
            Self::OpenAi(api, args) => ask_api(api, args, ask).await,
        }
    }
}

/// Asks a server of the OpenAI API. Each answer is a request, since not all of them draw several at once.
async fn ask_api(api: &ChatApi, args: &Args, ask: &Ask) -> anyhow::Result<Vec<Answered>> {
    let answers = match ask {
        Ask::Text(text) if args.raw => {
            api.continuations(text, args.num_samples, &args.sampling)
                .await?
        }
        Ask::Chat(_) if args.raw => bail!(RAW_CHAT),
        Ask::Text(_) | Ask::Chat(_) => {
            let conversation = match ask {
                Ask::Chat(conversation) => conversation.clone(),
                Ask::Text(text) => Conversation::from([Message::user(text)]),
            };
            let mut sampling = args.sampling.clone();
            let mut answers = Vec::new();
            for _ in 0..args.num_samples {
                answers.push(api.answer(&conversation, &sampling, |_| Ok(())).await?);
                sampling.draw_anew();
            }
            answers
        }
    };
    let answered = answers.into_iter().map(|answer| Answered {
        text: answer.content,
        tokens: answer.tokens,
        stop_reason: if answer.is_cut_off {
            StopReason::Length
        } else {
            StopReason::Stop
        },
    });
    Ok(answered.collect())
}

const RAW_CHAT: &str = "`messages` are a conversation, and `--raw` is for plain text";

/// A model that is asked for tokens.
struct TinkerOracle {
    sampler: SamplingClient,
    renderer: Renderer,
    params: SamplingParams,
    count: u32,
    raw: bool,
}

impl TinkerOracle {
    fn prompt(&self, ask: &Ask) -> anyhow::Result<Vec<u32>> {
        Ok(match ask {
            Ask::Text(text) if self.raw => self.renderer.document(text)?,
            Ask::Text(text) => {
                let conversation = Conversation::from([Message::user(text)]);
                self.renderer.prompt(&conversation)?
            }
            Ask::Chat(_) if self.raw => bail!(RAW_CHAT),
            Ask::Chat(conversation) => self.renderer.prompt(conversation)?,
        })
    }

    async fn answers(&self, ask: &Ask) -> anyhow::Result<Vec<Answered>> {
        let sample = self.sampler.sample(self.prompt(ask)?, self.params.clone());
        let output = sample.num_samples(self.count).await?;
        let read = |sequence: SampledSequence| {
            let text = if self.raw {
                self.renderer.continuation(&sequence.tokens)?
            } else {
                self.renderer.parse(&sequence.tokens)?.message.content
            };
            Ok(Answered {
                text,
                tokens: sequence.tokens.len(),
                stop_reason: sequence.stop_reason,
            })
        };
        output.sequences.into_iter().map(read).collect()
    }
}

pub(crate) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    args.sampling.check()?;
    // What is wrong with the prompts is said before a model is loaded.
    let source = Source::read(args.prompt.as_deref(), args.file.as_deref())?;
    if let Some(api) = ChatApi::find(&args.backend, &args.sampling).await? {
        return answer(ctx, &Oracle::OpenAi(&api, args), &source).await;
    }
    let checkpoint = args.sampling.checkpoint.as_ref();
    let backend = Backend::open_for(ctx, &args.backend, checkpoint, Vec::new()).await?;
    let on_backend = async |backend: &Backend| {
        let renderer = backend.renderer()?;
        let params = renderer.sampling_params(args.sampling.max_tokens);
        let oracle = TinkerOracle {
            sampler: args.sampling.sampler(backend).await?,
            params: args.sampling.apply(params),
            renderer,
            count: args.num_samples,
            raw: args.raw,
        };
        answer(ctx, &Oracle::Tinker(oracle), &source).await
    };
    backend.until_ctrl_c(ctx, on_backend).await
}

async fn answer(ctx: &Context, oracle: &Oracle<'_>, source: &Source) -> anyhow::Result<()> {
    match source {
        Source::One(text) => one(ctx, oracle, &Ask::Text(text.clone())).await,
        Source::Many(asks) => many(oracle, asks).await,
    }
}

async fn one(ctx: &Context, oracle: &Oracle<'_>, ask: &Ask) -> anyhow::Result<()> {
    for answered in oracle.answers(ask).await? {
        if ctx.is_json() {
            say(ascii(&object(&answered).to_string()))?
        } else {
            say(answered.text)?
        }
    }
    Ok(())
}

/// Answers every prompt, in their order; those that fail say why.
async fn many(oracle: &Oracle<'_>, asks: &[(usize, Ask)]) -> anyhow::Result<()> {
    let answers = stream::iter(asks)
        .map(async |(line, ask)| (*line, oracle.answers(ask).await))
        .buffered(IN_FLIGHT);
    let mut answers = std::pin::pin!(answers);
    let mut failed = 0;
    while let Some((line, answer)) = answers.next().await {
        let line = match answer {
            Ok(answers) => {
                let answers = answers.iter().map(object);
                json!({"line": line, "answers": answers.collect::<Vec<_>>()})
            }
            Err(error) => {
                failed += 1;
                json!({"line": line, "error": format!("{error:#}")})
            }
        };
        say(ascii(&line.to_string()))?;
    }
    match failed {
        0 => Ok(()),
        _ => bail!("{failed} of {} prompts have no answer", asks.len()),
    }
}

fn object(answered: &Answered) -> Value {
    json!({
        "text": answered.text, "tokens": answered.tokens, "stop_reason": answered.stop_reason,
    })
}

impl std::fmt::Display for SamplingArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seed = self.seed.map_or("none".to_owned(), |seed| seed.to_string());
        write!(
            f,
            "temperature {}, top-p {}, top-k {}, max-tokens {}, seed {seed}",
            self.temperature, self.top_p, self.top_k, self.max_tokens
        )
    }
}
