//! `tinkrs train distill`: learning from another model, or from instructions.
//!
//! The two modes are two recipes with settings of their own, and one command has the options of both.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, ensure};
use clap::{Arg, ArgMatches, FromArgMatches, ValueEnum};
use serde::{Deserialize, Serialize};
use tinkrs::SampleFrom;
use tinkrs_chat::Conversation;
use tinkrs_recipes::data::{Place, Task};
use tinkrs_recipes::distill::{self, OnPolicyConfig, PromptConfig};
use tinkrs_recipes::run::Hooks;
use tinkrs_recipes::{Error, Tokens};

use super::options::{AnswerArgs, RunArgs, announce, read_rows};
use super::{Training, teacher};
use crate::context::Context;
use crate::human::counted;
use crate::output::{Hint, note};
use crate::settings;

const OPEN_TEACHER: &str = "open the teacher";

/// What was typed for either mode.
#[derive(Clone, Debug)]
pub(crate) struct Args(ArgMatches);

/// What both modes have
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
struct TeacherArgs {
    /// What is learned from the teacher. Required, here or in `--config`
    #[arg(long, value_name = "MODE", value_enum)]
    mode: Option<Mode>,

    /// The teacher: a base model's name, NAME=PATH, or a checkpoint: tinker://…, `my-run` or `my-run@120`; for
    /// `prompt`, the model itself unless given
    #[arg(long, value_name = "MODEL")]
    teacher: Option<String>,
}

#[derive(Debug, clap::Args, Serialize, Deserialize)]
struct OnPolicyArgs {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    shared: TeacherArgs,

    #[command(flatten)]
    answer: AnswerArgs,

    #[command(flatten)]
    recipe: OnPolicyConfig,
}

impl Default for OnPolicyArgs {
    fn default() -> Self {
        Self {
            run: RunArgs::default(),
            shared: TeacherArgs::default(),
            answer: AnswerArgs::default(),
            recipe: OnPolicyConfig::new(tinkrs_nano::NAME),
        }
    }
}

#[derive(Debug, clap::Args, Serialize, Deserialize)]
struct PromptArgs {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    shared: TeacherArgs,

    #[command(flatten)]
    recipe: PromptConfig,

    /// File with the instructions
    #[arg(long, value_name = "FILE", conflicts_with = "instructions")]
    instructions_file: Option<PathBuf>,
}

impl Default for PromptArgs {
    fn default() -> Self {
        Self {
            run: RunArgs::default(),
            shared: TeacherArgs::default(),
            recipe: PromptConfig::new(tinkrs_nano::NAME, ""),
            instructions_file: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// The model answers, the teacher rates every token
    #[value(alias = "on_policy")]
    OnPolicy,
    /// The teacher answers under instructions, the model learns to answer like that without them
    Prompt,
}

impl Mode {
    fn options(self) -> clap::Command {
        match self {
            Self::OnPolicy => settings::command::<OnPolicyArgs>(),
            Self::Prompt => settings::command::<PromptArgs>(),
        }
    }

    fn other(self) -> Self {
        match self {
            Self::OnPolicy => Self::Prompt,
            Self::Prompt => Self::OnPolicy,
        }
    }
}

impl clap::Args for Args {
    fn augment_args(command: clap::Command) -> clap::Command {
        let (on_policy, prompt) = (Mode::OnPolicy.options(), Mode::Prompt.options());
        let same = |commands: &clap::Command, option: &Arg| {
            let mut options = commands.get_arguments();
            options
                .find(|other| other.get_id() == option.get_id())
                .cloned()
        };
        let of_on_policy = on_policy
            .get_arguments()
            .map(|option| match same(&prompt, option) {
                Some(other) => with_both_defaults(option.clone(), &other),
                None => option.clone().help_heading("Only with --mode on-policy"),
            });
        let of_prompt = prompt.get_arguments();
        let of_prompt = of_prompt.filter(|option| same(&on_policy, option).is_none());
        let of_prompt =
            of_prompt.map(|option| option.clone().help_heading("Only with --mode prompt"));
        command.args(of_on_policy.chain(of_prompt))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(typed: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(typed.clone()))
    }

    fn update_from_arg_matches(&mut self, typed: &ArgMatches) -> Result<(), clap::Error> {
        self.0 = typed.clone();
        Ok(())
    }
}

/// Shows the default of each mode where they differ.
fn with_both_defaults(on_policy: Arg, prompt: &Arg) -> Arg {
    if on_policy.get_default_values() == prompt.get_default_values() {
        return on_policy;
    }
    let text = |option: &Arg| match option.get_default_values() {
        [value, ..] => value.to_string_lossy().into_owned(),
        [] => "none".to_owned(),
    };
    let help = on_policy.get_help().cloned().unwrap_or_default();
    let help = format!(
        "{help} [default: {} with on-policy, {} with prompt]",
        text(&on_policy),
        text(prompt)
    );
    on_policy.help(help).hide_default_value(true)
}

impl Args {
    /// Returns the mode, and refuses options that it does not have: they would do nothing.
    fn mode(&self) -> anyhow::Result<Mode> {
        let typed = self.0.get_one::<Mode>("mode").copied();
        let in_file = settings::text_in_file(&self.0, "mode")?;
        let in_file = in_file.and_then(|name| Mode::from_str(&name.replace('_', "-"), false).ok());
        let mode = typed.or(in_file).ok_or_else(|| {
            anyhow!("no mode").context(Hint("choose `--mode on-policy` or `--mode prompt`"))
        })?;
        let (options, others) = (mode.options(), mode.other().options());
        let both = <Self as clap::Args>::augment_args(clap::Command::new("distill"));
        for id in settings::given(&both, &self.0)? {
            let has = |command: &clap::Command| {
                let mut options = command.get_arguments();
                options.find(|option| option.get_id() == &id).cloned()
            };
            if let (None, Some(option)) = (has(&options), has(&others)) {
                let name = option.get_long().unwrap_or(&id);
                return Err(anyhow!("`--{name}` belongs to the other mode"));
            }
        }
        Ok(mode)
    }
}

impl PromptArgs {
    fn instructions(&self) -> anyhow::Result<String> {
        let text = match &self.instructions_file {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("could not read {}", path.display()))?,
            None if self.recipe.instructions.is_empty() => {
                return Err(anyhow!("the teacher has no instructions").context(Hint(
                    "give them with `--instructions TEXT` or `--instructions-file FILE`",
                )));
            }
            None => self.recipe.instructions.clone(),
        };
        let text = text.trim();
        ensure!(!text.is_empty(), "the instructions are empty");
        Ok(text.to_owned())
    }
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    match args.mode()? {
        Mode::OnPolicy => on_policy(ctx, &settings::load(&args.0)?).await,
        Mode::Prompt => prompt(ctx, &settings::load(&args.0)?).await,
    }
}

async fn on_policy(ctx: &Context, args: &OnPolicyArgs) -> anyhow::Result<()> {
    let teacher = args.shared.teacher.as_deref().ok_or_else(|| {
        anyhow!("no teacher").context(Hint("name a model or a checkpoint with `--teacher`"))
    })?;
    args.recipe.check().map_err(super::in_our_words)?;
    let answer_tokens = args.answer.max_tokens()?;
    let learn = async |training: &Training<'_>| {
        learn_on_policy(training, args, teacher, answer_tokens).await
    };
    Training::with(ctx, &args.run, Some(teacher), learn).await
}

async fn learn_on_policy(
    training: &Training<'_>,
    args: &OnPolicyArgs,
    teacher: &str,
    answer_tokens: u32,
) -> anyhow::Result<()> {
    let config = OnPolicyConfig {
        adapter: training.adapter(&args.recipe.adapter),
        ..args.recipe.clone()
    };
    let questions = questions(&args.run, training)?;
    let prompts: Vec<_> = questions.into_iter().map(|(_, prompt)| prompt).collect();
    super::announce(prompts.len(), 0, &config.policy);
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let tokens = Tokens::of_on_policy(&config, longest, answer_tokens);
    let teacher = teacher::source(training.backend, teacher).await?;
    let params = training.renderer.sampling_params(answer_tokens);
    let finished = distill::on_policy_finished(&config, &prompts, &params, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let (service, folder) = (&training.backend.service, &training.folder);
        let teacher = training.sampler(teacher, OPEN_TEACHER).await?;
        Ok(distill::on_policy(service, &config, teacher, &prompts, &params, folder, hooks).await?)
    };
    let steps = config.policy.steps;
    let episodes = config
        .policy
        .problems_per_step
        .saturating_mul(config.policy.group_size);
    let longest = longest.saturating_add(answer_tokens as usize);
    let pass = super::pass_size(&config.adapter, episodes, longest);
    let number = "kl_reference";
    training
        .run(number, &tokens, steps, pass, finished, train)
        .await
}

async fn prompt(ctx: &Context, args: &PromptArgs) -> anyhow::Result<()> {
    let instructions = args.instructions()?;
    args.recipe.check().map_err(super::in_our_words)?;
    let teacher = args.shared.teacher.as_deref();
    let learn = async |training: &Training<'_>| learn_prompt(training, args, instructions).await;
    Training::with(ctx, &args.run, teacher, learn).await
}

async fn learn_prompt(
    training: &Training<'_>,
    args: &PromptArgs,
    instructions: String,
) -> anyhow::Result<()> {
    let teacher = args.shared.teacher.as_deref();
    let config = PromptConfig {
        adapter: training.adapter(&args.recipe.adapter),
        instructions,
        ..args.recipe.clone()
    };
    let questions = questions(&args.run, training)?;
    note(format_args!(
        "{}, {} of the teacher to each",
        counted(questions.len() as u64, "question"),
        counted(u64::from(config.answers), "answer")
    ));
    let tokens = Tokens::of_prompt_distillation(&config, &training.renderer, &questions)?;
    let teacher = match teacher {
        Some(teacher) => teacher::source(training.backend, teacher).await?,
        None => SampleFrom::BaseModel(training.backend.model.clone()),
    };
    let longest = questions.iter().map(|(_, prompt)| prompt.len()).max();
    let longest = longest
        .unwrap_or(0)
        .saturating_add(config.max_tokens as usize);
    let pass = super::pass_size(&config.adapter, config.passes.batch_size, longest);
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
    let examples = questions.len().saturating_mul(config.answers as usize);
    let steps = config.passes.steps(examples)?;
    training
        .run("loss", &tokens, steps, pass, finished, train)
        .await
}

/// Reads the questions, each with its tokens.
fn questions(
    run: &RunArgs,
    training: &Training<'_>,
) -> anyhow::Result<Vec<(Conversation, Vec<u32>)>> {
    let sources = run.data_without_weights()?;
    announce(&sources)?;
    let tasks = read_rows::<Task>(&sources)?;
    super::not_empty(tasks.len(), 0, &sources)?;
    let question = |(place, task): (Place, Task)| {
        let tokens = training.renderer.prompt(&task.question);
        let tokens = tokens.map_err(|error| Error::from(error).at(&place))?;
        Ok((task.question, tokens))
    };
    tasks.into_iter().map(question).collect()
}
