//! `tinkrs train distill`: learning from another model, or from instructions.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, ensure};
use tinkrs::{SampleFrom, TinkerPath};
use tinkrs_chat::Conversation;
use tinkrs_recipes::data::{Task, read_numbered};
use tinkrs_recipes::distill::{self, PromptConfig};
use tinkrs_recipes::run::Hooks;
use tinkrs_recipes::{Error, Tokens};

use super::Training;
use super::options::RunArgs;
use super::rl::{AnswerArgs, PlayArgs};
use super::sft::{self, PassArgs};
use crate::context::Context;
use crate::human::counted;
use crate::local_model::{self, Wanted};
use crate::report::{Hint, note};

const ON_POLICY: &str = "Only with --mode on-policy";
const PROMPT: &str = "Only with --mode prompt";
const OPEN_TEACHER: &str = "open the teacher";

/// Learn from a teacher, or to follow instructions without being given them
///
/// Each line of the file is {"prompt": "…"}, where the prompt is what a user asks, or {"messages": […]}.
/// With `--mode on-policy` the model answers and the teacher says how likely each token was; both must
/// have the same tokenizer. With `--mode prompt` the teacher answers under instructions, and the model
/// learns those answers without seeing the instructions. Ctrl-C saves a checkpoint; the same command goes
/// on from there.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,

    /// What is learned from the teacher. Required, here or in `--config`
    #[arg(long, value_name = "MODE", value_enum)]
    mode: Option<Mode>,

    /// The teacher: a base model's name, NAME=PATH, or a checkpoint tinker://…; for `prompt`, the model
    /// itself unless given
    #[arg(long, value_name = "MODEL")]
    teacher: Option<String>,

    #[command(flatten)]
    answer: AnswerArgs,

    #[command(flatten, next_help_heading = ON_POLICY)]
    play: PlayArgs,

    /// How much each nat of distance from the teacher counts. Default 1
    #[arg(long, value_name = "X", help_heading = ON_POLICY)]
    kl_weight: Option<f64>,

    #[command(flatten, next_help_heading = PROMPT)]
    passes: PassArgs,

    /// What the teacher is told
    #[arg(long, value_name = "TEXT", conflicts_with = "instructions_file", help_heading = PROMPT)]
    instructions: Option<String>,

    /// File with what the teacher is told
    #[arg(long, value_name = "FILE", help_heading = PROMPT)]
    instructions_file: Option<PathBuf>,

    /// The teacher's answers to each question. Default 1
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = PROMPT
    )]
    answers: Option<u32>,

    /// The teacher's temperature. Default 1
    #[arg(long, value_name = "T", help_heading = PROMPT)]
    temperature: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Mode {
    /// The model answers, the teacher judges every token
    OnPolicy,
    /// The teacher answers under instructions, the model learns to answer like that without them
    Prompt,
}

impl Args {
    /// Returns the mode, and refuses options that it does not have: they would do nothing.
    fn mode(&self) -> anyhow::Result<Mode> {
        let mode = self.mode.ok_or_else(|| {
            anyhow!("what is to be learned from the teacher?")
                .context(Hint("choose `--mode on-policy` or `--mode prompt`"))
        })?;
        let (play, passes) = (&self.play, &self.passes);
        let foreign: &[_] = match mode {
            Mode::OnPolicy => &[
                ("epochs", passes.epochs.is_some()),
                ("batch-size", passes.batch_size.is_some()),
                ("max-steps", passes.max_steps.is_some()),
                ("instructions", self.instructions.is_some()),
                ("instructions-file", self.instructions_file.is_some()),
                ("answers", self.answers.is_some()),
                ("temperature", self.temperature.is_some()),
            ],
            Mode::Prompt => &[
                ("steps", play.steps.is_some()),
                ("problems-per-step", play.problems_per_step.is_some()),
                ("group-size", play.group_size.is_some()),
                ("max-staleness", play.max_staleness.is_some()),
                ("loss", play.loss.is_some()),
                ("clip-low", play.clip_low.is_some()),
                ("clip-high", play.clip_high.is_some()),
                ("kl-weight", self.kl_weight.is_some()),
            ],
        };
        match foreign.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(anyhow!("`--{name}` belongs to the other mode")),
            None => Ok(mode),
        }
    }

    fn instructions(&self) -> anyhow::Result<String> {
        let text = match (&self.instructions, &self.instructions_file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => std::fs::read_to_string(path)
                .with_context(|| format!("could not read {}", path.display()))?,
            (None, None) => {
                return Err(anyhow!("the teacher has no instructions").context(Hint(
                    "give them with `--instructions TEXT` or `--instructions-file FILE`",
                )));
            }
        };
        let text = text.trim();
        ensure!(!text.is_empty(), "the instructions are empty");
        Ok(text.to_owned())
    }
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    match args.mode()? {
        Mode::OnPolicy => on_policy(ctx, args).await,
        Mode::Prompt => prompt(ctx, args).await,
    }
}

async fn on_policy(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let teacher = args.teacher.as_deref().ok_or_else(|| {
        anyhow!("there is no teacher")
            .context(Hint("name a model or a checkpoint with `--teacher`"))
    })?;
    let weight = args.kl_weight.unwrap_or(1.0);
    ensure!(
        weight > 0.0 && weight.is_finite(),
        "kl_weight: {weight}, expected a positive number"
    );
    let training = Training::open(ctx, &args.run, Some(teacher)).await?;
    let questions = questions(args, &training)?;
    let config = args.play.settings(&args.run, &training.backend.model)?;
    let config = tinkrs_recipes::rl::Config {
        kl_penalty: weight,
        ..config
    };
    config.check().map_err(super::in_our_words)?;
    let prompts: Vec<_> = questions.into_iter().map(|(_, prompt)| prompt).collect();
    note(format_args!(
        "{} questions, {} in a step, {} answers to each: {}",
        prompts.len(),
        config.problems_per_step.min(prompts.len()),
        config.group_size,
        counted(config.steps as u64, "step")
    ));
    let answer_tokens = args.answer.max_tokens();
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let tokens = Tokens::of_rl(&config, longest, answer_tokens);
    let teacher = source(teacher)?;
    let params = training.renderer.sampling_params(answer_tokens);
    let finished = distill::on_policy_finished(&config, &prompts, &params, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let (service, folder) = (&training.backend.service, &training.folder);
        let teacher = training.sampler(teacher, OPEN_TEACHER).await?;
        Ok(distill::on_policy(service, &config, teacher, &prompts, &params, folder, hooks).await?)
    };
    training.run("kl_reference", &tokens, finished, train).await
}

async fn prompt(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let instructions = args.instructions()?;
    let training = Training::open(ctx, &args.run, args.teacher.as_deref()).await?;
    let questions = questions(args, &training)?;
    let model = &training.backend.model;
    let default = PromptConfig::new(model, instructions);
    let config = PromptConfig {
        sft: sft::settings(&args.run, &args.passes, model)?,
        answers: args.answers.unwrap_or(default.answers),
        max_tokens: args.answer.max_tokens(),
        temperature: args.temperature.unwrap_or(default.temperature),
        ..default
    };
    config.check().map_err(super::in_our_words)?;
    note(format_args!(
        "{} questions, {} answers of the teacher to each",
        questions.len(),
        config.answers
    ));
    let tokens = Tokens::of_prompt_distillation(&config, &training.renderer, &questions)?;
    let teacher = match &args.teacher {
        Some(teacher) => source(teacher)?,
        None => SampleFrom::BaseModel(model.clone()),
    };
    let questions: Vec<_> = questions
        .into_iter()
        .map(|(question, _)| question)
        .collect();
    let (renderer, folder) = (&training.renderer, &training.folder);
    let finished = distill::prompt_finished(&config, renderer, &questions, folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let (service, renderer) = (&training.backend.service, &training.renderer);
        let folder = &training.folder;
        let teacher = training.sampler(teacher, OPEN_TEACHER).await?;
        let outcome = distill::prompt(
            service, &config, &teacher, renderer, &questions, folder, hooks,
        );
        Ok(outcome.await?)
    };
    training.run("loss", &tokens, finished, train).await
}

/// Reads the questions, each with its tokens.
fn questions(
    args: &Args,
    training: &Training<'_>,
) -> anyhow::Result<Vec<(Conversation, Vec<u32>)>> {
    let file = args.run.data()?;
    let tasks = read_numbered::<Task>(file)?;
    super::not_empty(&tasks, 0, file)?;
    let question = |(line, task): (usize, Task)| {
        let tokens = training.renderer.prompt(&task.question);
        let tokens = tokens.map_err(|error| Error::from(error).in_line(file, line))?;
        Ok((task.question, tokens))
    };
    tasks.into_iter().map(question).collect()
}

/// Reads what a teacher is: a checkpoint, or a base model by name.
fn source(teacher: &str) -> anyhow::Result<SampleFrom> {
    if teacher.starts_with("tinker://") {
        let path = teacher.parse::<TinkerPath>();
        let path = path.with_context(|| format!("`{teacher}` is not a checkpoint"))?;
        return Ok(SampleFrom::Checkpoint(path));
    }
    let found = local_model::find(teacher)?;
    let name = found.as_ref().map_or(teacher, Wanted::name);
    Ok(SampleFrom::BaseModel(name.to_owned()))
}
