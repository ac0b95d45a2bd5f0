//! `tinkrs train distill`: learning from another model, or from instructions.
//!
//! The modes are recipes with settings of their own, and one command has the options of all.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use clap::{Arg, ArgMatches, FromArgMatches, ValueEnum};
use serde::{Deserialize, Serialize};
use tinkrs_chat::Conversation;
use tinkrs_recipes::data::{Place, Source, Task};
use tinkrs_recipes::distill::{self, OffPolicyConfig, OnPolicyConfig, PromptConfig, Teachers};
use tinkrs_recipes::run::{Hooks, ReferenceModel};
use tinkrs_recipes::{Error, Tokens};

use super::options::{self, AnswerArgs, RunArgs, announce, read_rows};
use super::rate::LearnsFrom;
use super::{RATE, Training};
use crate::context::Context;
use crate::human::counted;
use crate::other_model::Other;
use crate::output::{Hint, note};
use crate::settings;

const OPEN_TEACHER: &str = "open the teacher";

/// What was typed for any mode.
#[derive(Clone, Debug)]
pub(crate) struct Args(ArgMatches);

/// What all modes have
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

    /// Another file of questions, with a teacher of its own; may be repeated
    #[arg(long, value_name = "FILE=MODEL")]
    teacher_of: Vec<String>,

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
            teacher_of: Vec::new(),
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

    #[command(flatten)]
    file: InstructionsArgs,
}

/// Where instructions may be, too
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
struct InstructionsArgs {
    /// File with the instructions
    #[arg(long, value_name = "FILE", conflicts_with = "instructions")]
    instructions_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args, Serialize, Deserialize)]
struct OffPolicyArgs {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    shared: TeacherArgs,

    #[command(flatten)]
    recipe: OffPolicyConfig,

    #[command(flatten)]
    file: InstructionsArgs,
}

impl Default for OffPolicyArgs {
    fn default() -> Self {
        Self {
            run: RunArgs::default(),
            shared: TeacherArgs::default(),
            recipe: OffPolicyConfig::new(tinkrs_nano::NAME),
            file: InstructionsArgs::default(),
        }
    }
}

impl Default for PromptArgs {
    fn default() -> Self {
        Self {
            run: RunArgs::default(),
            shared: TeacherArgs::default(),
            recipe: PromptConfig::new(tinkrs_nano::NAME, ""),
            file: InstructionsArgs::default(),
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
    /// The teacher answers, the model learns its likeliest tokens at each place
    #[value(alias = "off_policy")]
    OffPolicy,
}

impl Mode {
    const ALL: [Self; 3] = [Self::OnPolicy, Self::Prompt, Self::OffPolicy];

    fn options(self) -> clap::Command {
        match self {
            Self::OnPolicy => settings::command::<OnPolicyArgs>(),
            Self::Prompt => settings::command::<PromptArgs>(),
            Self::OffPolicy => settings::command::<OffPolicyArgs>(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::OnPolicy => "on-policy",
            Self::Prompt => "prompt",
            Self::OffPolicy => "off-policy",
        }
    }

    /// Returns the modes that have an option, each with its form of it.
    fn having(id: &str) -> Vec<(Self, Arg)> {
        let option = |mode: Self| {
            let options = mode.options();
            let mut options = options.get_arguments();
            let option = options.find(|option| option.get_id() == id)?.clone();
            Some((mode, option))
        };
        Self::ALL.into_iter().filter_map(option).collect()
    }
}

/// Joins the names of modes.
fn names(modes: &[(Mode, Arg)]) -> String {
    let names: Vec<_> = modes.iter().map(|(mode, _)| mode.name()).collect();
    names.join(" or ")
}

impl clap::Args for Args {
    fn augment_args(command: clap::Command) -> clap::Command {
        let mut all: Vec<Arg> = Vec::new();
        for mode in Mode::ALL {
            for option in mode.options().get_arguments() {
                let id = option.get_id();
                if all.iter().any(|other| other.get_id() == id) {
                    continue;
                }
                let having = Mode::having(id.as_str());
                let option = with_all_defaults(option.clone(), &having);
                all.push(if having.len() == Mode::ALL.len() {
                    option
                } else {
                    option.help_heading(format!("Only with --mode {}", names(&having)))
                });
            }
        }
        command.args(all)
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
fn with_all_defaults(option: Arg, having: &[(Mode, Arg)]) -> Arg {
    let text = |option: &Arg| match option.get_default_values() {
        [value, ..] => value.to_string_lossy().into_owned(),
        [] => "none".to_owned(),
    };
    let mut defaults: Vec<(String, Vec<&str>)> = Vec::new();
    for (mode, option) in having {
        let default = text(option);
        match defaults.iter_mut().find(|(known, _)| *known == default) {
            Some((_, modes)) => modes.push(mode.name()),
            None => defaults.push((default, vec![mode.name()])),
        }
    }
    if defaults.len() < 2 {
        return option;
    }
    let defaults = defaults.into_iter();
    let defaults = defaults.map(|(default, modes)| format!("{default} with {}", modes.join(", ")));
    let defaults: Vec<_> = defaults.collect();
    let help = option.get_help().cloned().unwrap_or_default();
    let help = format!("{help} [default: {}]", defaults.join("; "));
    option.help(help).hide_default_value(true)
}

impl Args {
    /// Returns the ids of the options that were typed or stand in the file.
    fn given(&self) -> anyhow::Result<Vec<String>> {
        let all = <Self as clap::Args>::augment_args(clap::Command::new("distill"));
        settings::given(&all, &self.0)
    }

    /// Whether an option was typed or stands in the file.
    fn has(&self, id: &str) -> anyhow::Result<bool> {
        Ok(self.given()?.iter().any(|given| given == id))
    }

    /// Returns the mode, and refuses options that it does not have: they would do nothing.
    fn mode(&self) -> anyhow::Result<Mode> {
        let typed = self.0.get_one::<Mode>("mode").copied();
        let in_file = settings::text_in_file(&self.0, "mode")?;
        let in_file = in_file.and_then(|name| Mode::from_str(&name.replace('_', "-"), false).ok());
        let mode = typed.or(in_file).ok_or_else(|| {
            anyhow!("no mode").context(Hint(
                "choose `--mode on-policy`, `--mode off-policy` or `--mode prompt`",
            ))
        })?;
        for id in self.given()? {
            let having = Mode::having(&id);
            let Some((_, option)) = having.first() else {
                continue;
            };
            if having.iter().all(|(having, _)| *having != mode) {
                let (name, modes) = (option.get_long().unwrap_or(&id), names(&having));
                return Err(anyhow!("`--{name}` belongs to `--mode {modes}`"));
            }
        }
        Ok(mode)
    }
}

impl InstructionsArgs {
    /// Returns the instructions: what was typed, or what is in the file.
    fn instructions(&self, typed: &str) -> anyhow::Result<Option<String>> {
        let text = match &self.instructions_file {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("could not read {}", path.display()))?,
            None if typed.is_empty() => return Ok(None),
            None => typed.to_owned(),
        };
        let text = text.trim();
        ensure!(!text.is_empty(), "the instructions are empty");
        Ok(Some(text.to_owned()))
    }
}

impl TeacherArgs {
    fn teacher(&self) -> anyhow::Result<Option<Other>> {
        let teacher = self.teacher.as_deref();
        teacher
            .map(|text| Other::new("--teacher", text))
            .transpose()
    }

    fn required(&self) -> anyhow::Result<Other> {
        let teacher = self.teacher()?;
        teacher.ok_or_else(|| {
            anyhow!("no teacher").context(Hint("name a model or a checkpoint with `--teacher`"))
        })
    }
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let (mode, rate_is_given) = (args.mode()?, args.has(RATE)?);
    match mode {
        Mode::OnPolicy => on_policy(ctx, &settings::load(&args.0)?, rate_is_given).await,
        Mode::Prompt => prompt(ctx, &settings::load(&args.0)?, rate_is_given).await,
        Mode::OffPolicy => off_policy(ctx, &settings::load(&args.0)?, rate_is_given).await,
    }
}

async fn on_policy(ctx: &Context, args: &OnPolicyArgs, rate_is_given: bool) -> anyhow::Result<()> {
    let mut teachers = vec![args.shared.required()?];
    args.recipe.check().map_err(super::in_our_words)?;
    let mut files = vec![args.run.data_without_weights()?];
    for text in &args.teacher_of {
        let Some((file, teacher)) = text.split_once('=') else {
            return Err(anyhow!(
                "teacher_of: `{text}`, expected a file, `=` and its teacher"
            ));
        };
        options::readable(Path::new(file))?;
        files.push(args.run.as_said([Source::new(file)]));
        teachers.push(Other::new("--teacher-of", teacher)?);
    }
    let answer_tokens = args.answer.max_tokens()?;
    let learn = async |training: &Training<'_>| {
        learn_on_policy(training, args, &teachers, &files, answer_tokens).await
    };
    Training::with(ctx, &args.run, rate_is_given, &teachers, learn).await
}

async fn learn_on_policy(
    training: &Training<'_>,
    args: &OnPolicyArgs,
    teachers: &[Other],
    files: &[Vec<Source>],
    answer_tokens: u32,
) -> anyhow::Result<()> {
    let config = OnPolicyConfig {
        adapter: training.adapter(&args.recipe.adapter),
        learning_rate: training.learning_rate(args.recipe.learning_rate, LearnsFrom::Samples),
        ..args.recipe.clone()
    };
    let (mut prompts, mut of_prompt) = (Vec::new(), Vec::new());
    for (index, file) in files.iter().enumerate() {
        let questions = questions(file, training)?;
        of_prompt.extend(questions.iter().map(|_| index));
        prompts.extend(questions.into_iter().map(|(_, prompt)| prompt));
    }
    if teachers.len() == 1 {
        of_prompt.clear();
    }
    super::announce(prompts.len(), 0, &config.policy);
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let tokens = Tokens::of_on_policy(&config, longest, answer_tokens);
    let mut sources = Vec::new();
    for teacher in teachers {
        sources.push(teacher.source(training.backend).await?);
    }
    let params = training.renderer.sampling_params(answer_tokens);
    let folder = &training.folder;
    let finished = distill::on_policy_finished(&config, &prompts, &of_prompt, &params, folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let (service, folder) = (&training.backend.service, &training.folder);
        let mut samplers = Vec::new();
        for source in sources {
            samplers.push(training.other(source, OPEN_TEACHER).await?);
        }
        let teachers = Teachers::new(samplers, of_prompt.clone());
        let learn =
            distill::on_policy(service, &config, teachers, &prompts, &params, folder, hooks);
        Ok(learn.await?)
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

async fn off_policy(
    ctx: &Context,
    args: &OffPolicyArgs,
    rate_is_given: bool,
) -> anyhow::Result<()> {
    let teacher = args.shared.required()?;
    let instructions = args.file.instructions(&args.recipe.instructions)?;
    args.recipe.check().map_err(super::in_our_words)?;
    let learn = async |training: &Training<'_>| {
        let config = OffPolicyConfig {
            adapter: training.adapter(&args.recipe.adapter),
            learning_rate: training.learning_rate(args.recipe.learning_rate, LearnsFrom::Samples),
            instructions: instructions.unwrap_or_default(),
            ..args.recipe.clone()
        };
        learn_off_policy(training, args, config, &teacher).await
    };
    let others = std::slice::from_ref(&teacher);
    Training::with(ctx, &args.run, rate_is_given, others, learn).await
}

async fn learn_off_policy(
    training: &Training<'_>,
    args: &OffPolicyArgs,
    config: OffPolicyConfig,
    teacher: &Other,
) -> anyhow::Result<()> {
    let questions = questions(&args.run.data_without_weights()?, training)?;
    note(format_args!(
        "{}, {} of the teacher to each that has none, the {} likeliest tokens at each place",
        counted(questions.len() as u64, "question"),
        counted(u64::from(config.answers), "answer"),
        config.top_k
    ));
    let tokens = Tokens::of_off_policy(&config, &training.renderer, &questions)?;
    let source = teacher.source(training.backend).await?;
    let longest = questions.iter().map(|(_, prompt)| prompt.len()).max();
    let longest = longest
        .unwrap_or(0)
        .saturating_add(config.max_tokens as usize);
    let pass = super::pass_size(&config.adapter, config.passes.batch_size, longest);
    let questions: Vec<_> = questions.into_iter().map(|(chat, _)| chat).collect();
    let (renderer, folder) = (&training.renderer, &training.folder);
    let finished = distill::off_policy_finished(&config, renderer, &questions, folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let (service, renderer) = (&training.backend.service, &training.renderer);
        let folder = &training.folder;
        let teacher = training.other(source, OPEN_TEACHER).await?;
        let hooks = hooks.on_failure(|reason| note(reason));
        let learn = distill::off_policy(
            service, &config, &teacher, renderer, &questions, folder, hooks,
        );
        Ok(learn.await?)
    };
    let examples = questions.len().saturating_mul(config.answers as usize);
    let steps = config.passes.steps(examples)?;
    training
        .run("kl_teacher", &tokens, steps, pass, finished, train)
        .await
}

async fn prompt(ctx: &Context, args: &PromptArgs, rate_is_given: bool) -> anyhow::Result<()> {
    let instructions = args.file.instructions(&args.recipe.instructions)?;
    let instructions = instructions.ok_or_else(|| {
        anyhow!("the teacher has no instructions").context(Hint(
            "give them with `--instructions TEXT` or `--instructions-file FILE`",
        ))
    })?;
    args.recipe.check().map_err(super::in_our_words)?;
    let teacher = args.shared.teacher()?;
    let learn = async |training: &Training<'_>| {
        learn_prompt(training, args, instructions, teacher.as_ref()).await
    };
    Training::with(ctx, &args.run, rate_is_given, teacher.as_slice(), learn).await
}

async fn learn_prompt(
    training: &Training<'_>,
    args: &PromptArgs,
    instructions: String,
    teacher: Option<&Other>,
) -> anyhow::Result<()> {
    let config = PromptConfig {
        adapter: training.adapter(&args.recipe.adapter),
        learning_rate: training.learning_rate(args.recipe.learning_rate, LearnsFrom::Samples),
        instructions,
        ..args.recipe.clone()
    };
    let questions = questions(&args.run.data_without_weights()?, training)?;
    note(format_args!(
        "{}, {} of the teacher to each",
        counted(questions.len() as u64, "question"),
        counted(u64::from(config.answers), "answer")
    ));
    let tokens = Tokens::of_prompt_distillation(&config, &training.renderer, &questions)?;
    let teacher = match teacher {
        Some(teacher) => teacher.source(training.backend).await?,
        None => ReferenceModel::Base(training.backend.model.clone()),
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
        let teacher = training.other(teacher, OPEN_TEACHER).await?;
        let hooks = hooks.on_failure(|reason| note(reason));
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

/// Reads the questions of files, each with its tokens.
fn questions(
    sources: &[Source],
    training: &Training<'_>,
) -> anyhow::Result<Vec<(Conversation, Vec<u32>)>> {
    announce(sources)?;
    let tasks = read_rows::<Task>(sources)?;
    super::not_empty(tasks.len(), 0, sources)?;
    let question = |(place, task): (Place, Task)| {
        let tokens = training.renderer.prompt(&task.question);
        let tokens = tokens.map_err(|error| Error::from(error).at(&place))?;
        Ok((task.question, tokens))
    };
    tasks.into_iter().map(question).collect()
}
