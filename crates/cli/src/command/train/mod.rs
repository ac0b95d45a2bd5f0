//! `tinkrs train`: training loops on the command line.
//!
//! A recipe's settings are those of `tinkrs-recipes`; its file here adds where the data come from. What
//! happens around the recipe's function is here, in [`Training`].

mod distill;
mod dpo;
mod options;
mod rl;
mod sft;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use serde_json::json;
use tinkrs::{SampleFrom, SamplingClient, SamplingParams};
use tinkrs_chat::{Conversation, Message, Renderer};
use tinkrs_recipes::evaluate::sample_records;
use tinkrs_recipes::rl::PolicyConfig;
use tinkrs_recipes::run::{
    Adapter, Hooks, Interrupt, Journal, Outcome, read_samples, write_samples,
};
use tinkrs_recipes::{Error, Schedule, Tokens, report};

use crate::backend::Backend;
use crate::context::Context;
use crate::hint;
use crate::human::counted;
use crate::output::{Hint, Stopped, note};
use crate::settings::Layered;
use crate::training_progress::TrainingProgress;
use crate::{cost, judge, local_model};
use options::RunArgs;

/// Train a model
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Sft(Layered<sft::Args>),
    Rl(Layered<rl::Args>),
    Dpo(Layered<dpo::Args>),
    /// Learn from a teacher, or to follow instructions without being given them
    ///
    /// Each line of the file is {"prompt": "…"}, where the prompt is what a user asks, or {"messages": […]}.
    /// With `--mode on-policy` the model answers and the teacher says how likely each token was; both must
    /// have the same tokenizer. With `--mode prompt` the teacher answers under instructions, and the model
    /// learns those answers without seeing the instructions. Ctrl-C saves a checkpoint; the same command
    /// continues from there.
    Distill(distill::Args),
}

pub(crate) async fn run(ctx: &Context, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Sft(args) => sft::run(ctx, &args.load()?).await,
        Command::Rl(args) => rl::run(ctx, &args.load()?).await,
        Command::Dpo(args) => dpo::run(ctx, &args.load()?).await,
        Command::Distill(args) => distill::run(ctx, args).await,
    }
}

/// A run that is about to begin or to be resumed: the server, the folder, and what to show.
struct Training<'a> {
    ctx: &'a Context,
    args: &'a RunArgs,
    backend: Backend,
    renderer: Renderer,
    folder: PathBuf,
}

impl<'a> Training<'a> {
    /// Opens the server. `teacher` is a model that it must have besides the one that is trained.
    async fn open(
        ctx: &'a Context,
        args: &'a RunArgs,
        teacher: Option<&str>,
    ) -> anyhow::Result<Self> {
        let folder = args.run_dir()?.clone();
        // Before a model is loaded for nothing.
        let data = args.data()?;
        std::fs::File::open(data).with_context(|| format!("could not read {}", data.display()))?;
        let teacher = teacher.filter(|name| !name.starts_with("tinker://"));
        let teacher = teacher.map(local_model::find).transpose()?.flatten();
        let backend = Backend::open_with(&args.backend, teacher).await?;
        Ok(Self {
            ctx,
            args,
            renderer: backend.renderer()?,
            backend,
            folder,
        })
    }

    /// Returns the adapter to train, of the model that the server has.
    fn adapter(&self, settings: &Adapter) -> Adapter {
        Adapter {
            base_model: self.backend.model.clone(),
            ..settings.clone()
        }
    }

    /// Trains, unless the run is `finished`, and leaves a report. `number` is the one to watch.
    ///
    /// On a server that charges, says what `tokens` cost and asks for confirmation.
    async fn run(
        self,
        number: &'static str,
        tokens: &Tokens,
        finished: Result<Option<Outcome>, Error>,
        train: impl AsyncFnOnce(&Self, Hooks<'_>) -> anyhow::Result<Outcome>,
    ) -> anyhow::Result<()> {
        let outcome = match finished.map_err(|error| explain(error, &self.folder))? {
            Some(outcome) => {
                note("this run is already finished; nothing is left to do");
                outcome
            }
            None => {
                cost::confirm(&self.backend, tokens, self.args.yes).await?;
                self.train(number, train).await?
            }
        };
        let page = report::write(&self.folder)?;
        let checkpoint = outcome.checkpoint.as_ref().map(ToString::to_string);
        let result = json!({
            "finished": outcome.finished,
            "steps": outcome.steps,
            "sampler": outcome.sampler,
            "checkpoint": checkpoint,
            "report": page,
        });
        let shown = match &outcome.sampler {
            Some(path) => self
                .ctx
                .done(&result, format_args!("{path}\nreport: {}", page.display())),
            None if self.ctx.is_json() => self.ctx.done(&result, ""),
            None => Ok(()),
        };
        self.backend.close().await?;
        shown?;
        if !outcome.finished {
            return Err(anyhow!(Stopped(format!(
                "stopped after {}, saved as {}; the same command continues from there",
                counted(outcome.steps as u64, "step"),
                checkpoint.unwrap_or_default()
            ))));
        }
        Ok(())
    }

    /// Trains, with samples before and after.
    async fn train(
        &self,
        number: &'static str,
        train: impl AsyncFnOnce(&Self, Hooks<'_>) -> anyhow::Result<Outcome>,
    ) -> anyhow::Result<Outcome> {
        let hooks = Hooks::default();
        stop_on_ctrl_c(hooks.interrupt.clone());
        let base = SampleFrom::BaseModel(self.backend.model.clone());
        self.sample(base, 0).await?;
        let mut progress = TrainingProgress::of(number);
        let outcome = train(self, hooks.on_step(|report| progress.step(report))).await;
        progress.end();
        let outcome = outcome.map_err(|error| match error.downcast() {
            Ok(error) => explain(error, &self.folder),
            Err(error) => error,
        })?;
        if let Some(path) = &outcome.sampler {
            let tuned = SampleFrom::Checkpoint(path.clone());
            self.sample(tuned, outcome.steps).await?;
        }
        Ok(outcome)
    }

    /// Opens a sampler. `action` completes the sentence "could not …".
    async fn sampler(&self, from: SampleFrom, action: &str) -> anyhow::Result<SamplingClient> {
        let sampler = self.backend.service.create_sampling_client(from).await;
        sampler.map_err(|error| hint::explain(error, format!("could not {action}")))
    }

    /// Asks what the user wants asked, unless it was asked after so many steps already.
    async fn sample(&self, from: SampleFrom, steps: usize) -> anyhow::Result<()> {
        let asked = read_samples(&self.folder)?;
        let is_new = |question: &&String| {
            let mut asked = asked.iter();
            !asked.any(|sample| sample.steps == steps && sample.prompt == **question)
        };
        let questions: Vec<_> = self.args.ask.iter().filter(is_new).collect();
        if questions.is_empty() {
            return Ok(());
        }
        let questions: Vec<_> = questions
            .into_iter()
            .map(|question| Conversation::from([Message::user(question)]))
            .collect();
        let params = SamplingParams {
            temperature: 0.0,
            ..self.renderer.sampling_params(128)
        };
        let sampler = self.sampler(from, "ask the model").await?;
        let samples = sample_records(&sampler, &self.renderer, &questions, &params, steps);
        let samples = samples
            .await
            .map_err(|error| explain(error, &self.folder))?;
        std::fs::create_dir_all(&self.folder)
            .with_context(|| format!("could not create {}", self.folder.display()))?;
        Ok(write_samples(&self.folder, &samples)?)
    }
}

/// Says what to do about a run that failed.
fn explain(error: Error, folder: &Path) -> anyhow::Error {
    let saved = saved_steps(folder);
    let headline = match saved {
        Some(steps) => format!(
            "the run stopped; the same command continues after {}",
            counted(steps as u64, "step")
        ),
        None => "the run could not continue".to_owned(),
    };
    match error {
        Error::Client(error) => hint::explain(error, headline),
        Error::Resume { .. } => anyhow::Error::new(error).context(Hint(
            "continue with the data and settings that it began with, or name another `--run-dir`",
        )),
        Error::Caller { source, .. } => anyhow!(source.to_string()).context(headline),
        error => in_our_words(error),
    }
}

/// Returns how many steps are in the last checkpoint of a run, if there is one.
fn saved_steps(folder: &Path) -> Option<usize> {
    let path = folder.join("journal.jsonl");
    let journal = path.exists().then(|| Journal::open(path).ok())??;
    journal.last_checkpoint().map(|(steps, _)| steps)
}

/// Names a setting as its option does.
fn in_our_words(error: Error) -> anyhow::Error {
    let Error::Setting { setting, problem } = &error else {
        return error.into();
    };
    let options = <Schedule as clap::Args>::augment_args(clap::Command::new("schedule"));
    let mut options = options.get_arguments();
    let option = options.find(|option| option.get_id() == *setting);
    match option.and_then(clap::Arg::get_long) {
        Some(name) => anyhow!("{}: {problem}", name.replace('-', "_")),
        None => error.into(),
    }
}

/// Says what a run that learns from its own answers is about to do.
fn announce(questions: usize, config: &PolicyConfig) {
    note(format_args!(
        "{}, {} in a step, {} to each: {}",
        counted(questions as u64, "question"),
        config.problems_per_step.min(questions),
        counted(config.group_size as u64, "answer"),
        counted(config.steps as u64, "step")
    ));
}

/// The first Ctrl-C ends the run after the step, the second one at once.
fn stop_on_ctrl_c(interrupt: Interrupt) {
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            // The progress bar has an open line.
            let bar = if std::io::stderr().is_terminal() {
                "\n"
            } else {
                ""
            };
            note(format_args!(
                "{bar}stopping after this step, with a checkpoint; Ctrl-C again stops at once"
            ));
            interrupt.set();
        }
        if tokio::signal::ctrl_c().await.is_ok() {
            judge::end_all();
            std::process::exit(130);
        }
    });
}

/// Refuses a file with nothing to learn from.
fn not_empty<T>(items: &[T], too_long: usize, file: &Path) -> anyhow::Result<()> {
    if !items.is_empty() {
        return Ok(());
    }
    let file = file.display();
    Err(if too_long == 0 {
        anyhow!("{file} has no lines")
    } else {
        anyhow!("everything in {file} is longer than `max_tokens`")
    })
}
