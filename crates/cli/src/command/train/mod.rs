//! `tinkrs train`: training loops on the command line.
//!
//! A recipe's settings are those of `tinkrs-recipes`; its file here adds where the data come from. What
//! happens around the recipe's function is here, in [`Training`].

mod distill;
mod dpo;
mod from;
mod options;
mod pairs;
mod rate;
mod reward;
mod rl;
mod sft;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::anyhow;
use futures_util::StreamExt;
use serde_json::json;
use tinkrs::rest::TrainingRun;
use tinkrs::{SampleFrom, SamplingClient, SamplingParams, ServiceClient};
use tinkrs_chat::{Conversation, Message, Renderer};
use tinkrs_recipes::data::Source;
use tinkrs_recipes::evaluate::sample_records;
use tinkrs_recipes::rl::PolicyConfig;
use tinkrs_recipes::run::{
    Adam, Adapter, Cost, Hooks, Interrupt, Journal, Outcome, ReferenceModel, Start, make_folder,
    read_samples, sampler_of, write_samples,
};
use tinkrs_recipes::{Error, Schedule, Tokens, report};
use tinkrs_types::RunName;
use tinkrs_types::training::LoraConfig;

use crate::backend::Backend;
use crate::context::Context;
use crate::cost::Bill;
use crate::ctrl_c::CtrlC;
use crate::ending::Ending;
use crate::hint;
use crate::human::{counted, size};
use crate::local::PassSize;
use crate::loggers::Loggers;
use crate::other_model::Other;
use crate::output::{Hint, Stopped, note};
use crate::settings::Layered;
use crate::training_progress::TrainingProgress;
use crate::{cost, judge};
use from::From;
use options::RunArgs;

/// Completes the sentence "could not …".
const ASK: &str = "ask the model";

/// How long a run that is stopped at once may take to tell the server.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The id of the option whose default depends on the model.
const RATE: &str = "learning_rate.peak";

/// Train a model
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Sft(Layered<sft::Args>),
    Rl(Layered<rl::Args>),
    Dpo(Layered<dpo::Args>),
    Reward(Layered<reward::Args>),
    /// Learn from a teacher, or to follow instructions without being given them
    ///
    /// Each line of the file is {"prompt": "…"}, where the prompt is what a user asks, or {"messages": […]}.
    /// With `--mode on-policy` the model answers and the teacher says how likely each token was. With `--mode
    /// off-policy` the teacher answers, or says of the answers in the file, which tokens it finds the likeliest at each
    /// place. In both, all models must have the same tokenizer. With `--mode prompt` the teacher answers under instructions, and the model
    /// learns those answers without seeing the instructions. Ctrl-C saves a checkpoint; the same command
    /// continues from there.
    Distill(distill::Args),
}

pub(crate) async fn run(ctx: &Context, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Sft(args) => sft::run(ctx, &args.load()?, args.has(RATE)?).await,
        Command::Rl(args) => rl::run(ctx, &args.load()?, args.has(RATE)?).await,
        Command::Dpo(args) => dpo::run(ctx, &args.load()?, args.has(RATE)?).await,
        Command::Reward(args) => reward::run(ctx, &args.load()?, args.has(RATE)?).await,
        Command::Distill(args) => distill::run(ctx, args).await,
    }
}

/// A run that is about to begin or to be resumed: the server, the folder, and what to show.
struct Training<'a> {
    ctx: &'a Context,
    args: &'a RunArgs,
    backend: &'a Backend,
    renderer: Renderer,
    folder: PathBuf,
    /// What it is called, if that is decided here.
    name: Option<String>,
    /// The checkpoint that it starts from, if it is not the model itself.
    start: Option<Start>,
    /// Whether a learning rate was chosen.
    rate_is_given: bool,
}

impl Training<'_> {
    /// Opens the server for a run, and ends the session as the run ended. `others` are models that the server
    /// must have besides the one that is trained.
    async fn with(
        ctx: &Context,
        args: &RunArgs,
        rate_is_given: bool,
        others: &[Other],
        learn: impl AsyncFnOnce(&Training<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let folder = args.run_dir()?.clone();
        // Before a model is loaded for nothing.
        for source in args.data()? {
            options::readable(&source.path)?;
        }
        args.log.check()?;
        let from = args.from()?;
        let named;
        let args = match &from {
            Some(From::Model(path)) => {
                named = from::with_model(args, path)?;
                &named
            }
            _ => args,
        };
        let mut besides = Vec::new();
        for other in others {
            besides.extend(other.model(ctx, &args.backend).await?);
        }
        let (backend, start) = from::open(ctx, args, from, besides).await?;
        let ready = match run_name(&backend, args.name.as_deref(), &folder).await {
            Ok(name) => backend.renderer().map(|renderer| (name, renderer)),
            Err(error) => Err(error),
        };
        let result = match ready {
            Ok((name, renderer)) => {
                let training = Training {
                    ctx,
                    args,
                    backend: &backend,
                    renderer,
                    folder,
                    name,
                    start,
                    rate_is_given,
                };
                learn(&training).await
            }
            Err(error) => Err(error),
        };
        backend.end(result).await
    }

    /// Returns the adapter to train, of the model that the server has.
    fn adapter(&self, settings: &Adapter) -> Adapter {
        Adapter {
            base_model: self.backend.model.clone(),
            name: self.name.clone(),
            from: self.start.clone(),
            ..settings.clone()
        }
    }

    /// Trains, unless the run is `finished`, and leaves a report. `number` is the one to watch.
    ///
    /// On a server that charges, says what the `tokens` of all `steps` cost and asks for confirmation; in this process,
    /// says what memory a `pass` takes.
    async fn run(
        &self,
        number: &'static str,
        tokens: &Tokens,
        steps: usize,
        pass: PassSize,
        finished: Result<Option<Outcome>, Error>,
        train: impl AsyncFnOnce(&Self, Hooks<'_>) -> anyhow::Result<Outcome>,
    ) -> anyhow::Result<()> {
        let finished = finished.map_err(|error| explain(error, &self.folder))?;
        // A finished run asks no other machine for anything.
        let may_ask = finished.is_none() || self.backend.is_local();
        let outcome = match finished {
            Some(outcome) => {
                note("this run is already finished; nothing is left to do");
                outcome
            }
            None => {
                if let Some((needed, limit)) = self.backend.training_bytes(&pass) {
                    note(memory(needed, limit, &pass));
                }
                let (backend, folder) = (self.backend, &self.folder);
                let bill = self.args.cost.bill(backend, tokens, steps, folder)?;
                cost::confirm(&self.args.cost, backend, tokens, self.args.yes).await?;
                self.train(number, bill, train).await?
            }
        };
        if let Some(words) = ends_with_best(&outcome) {
            note(words);
        }
        let (name, next) = self.what_next(&outcome, may_ask).await;
        if !next.is_empty() {
            report::write_next(&self.folder, &next)?;
        }
        let page = report::write(&self.folder)?;
        let checkpoint = outcome.checkpoint.as_ref().map(ToString::to_string);
        let result = json!({
            "name": name,
            "next": next,
            "finished": outcome.finished,
            "steps": outcome.steps,
            "sampler": outcome.sampler,
            "checkpoint": checkpoint,
            "report": page,
            "cost": Cost::read(&self.folder),
            "best": outcome.best.map(|best| json!({"steps": best.steps, "value": best.value})),
            "steps_taken": outcome.best_of.unwrap_or(outcome.steps),
        });
        let shown = match &outcome.sampler {
            Some(path) => {
                let mut text = format!("{path}\nreport: {}", page.display());
                if let Some(name) = &name {
                    text.push_str(&format!("\nname: {name}"));
                }
                for command in &next {
                    text.push_str(&format!("\nnext: {command}"));
                }
                self.ctx.done(&result, text)
            }
            None if self.ctx.is_json() => self.ctx.done(&result, ""),
            None => Ok(()),
        };
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

    /// Returns the name of a run that has weights to sample from, if the server may be asked for it, and what to
    /// type next.
    async fn what_next(&self, outcome: &Outcome, may_ask: bool) -> (Option<String>, Vec<String>) {
        let Some(path) = &outcome.sampler else {
            return (None, Vec::new());
        };
        // Where there is no name, the path does.
        let run = if may_ask {
            let rest = self.backend.service.create_rest_client();
            rest.get_training_run(path.run()).await.ok()
        } else {
            None
        };
        let name = run.and_then(|run| run.name().map(str::to_owned));
        let run = name.clone().unwrap_or_else(|| path.to_string());
        let next = self
            .args
            .backend
            .next_commands(self.backend.is_local(), &run);
        (name, next)
    }

    /// Trains, with samples before and after.
    async fn train(
        &self,
        number: &'static str,
        bill: Option<Bill>,
        train: impl AsyncFnOnce(&Self, Hooks<'_>) -> anyhow::Result<Outcome>,
    ) -> anyhow::Result<Outcome> {
        if let Some(words) = going_on(&self.folder)? {
            note(words);
        }
        let hooks = Hooks::default();
        let at_once = stop_on_ctrl_c(hooks.interrupt.clone(), self.backend.service.clone())?;
        self.sample(async || self.sampler_before().await, 0).await?;
        let progress = Mutex::new(TrainingProgress::of(number));
        let shown = || progress.lock().unwrap_or_else(PoisonError::into_inner);
        let bill = Mutex::new(bill);
        let loggers = Loggers::open(&self.args.log, self.args.name.as_deref(), &self.folder)?;
        let interrupt = hooks.interrupt.clone();
        let hooks = hooks.on_step(|report| {
            shown().step(report);
            loggers.step(report);
            let tokens = report.numbers.get("tokens").copied().unwrap_or_default();
            let mut bill = bill.lock().unwrap_or_else(PoisonError::into_inner);
            let over = bill.as_mut().map(|bill| {
                let over = bill.step(report.step, tokens);
                // For a run that is killed; at the end it is said if this cannot be written.
                let _ = bill.cost().write(&self.folder);
                over
            });
            if over == Some(true) && !interrupt.is_set() {
                note(
                    "the next steps would cost more than allowed; a higher `--max-cost` continues",
                );
                interrupt.set();
            }
        });
        let hooks = hooks.on_eval(|report| {
            shown().eval(report);
            loggers.eval(report);
        });
        let outcome = train(self, hooks).await;
        if outcome.is_err() && at_once.is_set() {
            // What was under way fails because the session is being closed: that is no error of the run, and the
            // task that closes it ends the process.
            std::future::pending::<()>().await;
        }
        shown().end();
        loggers.end().await;
        let bill = bill.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(bill) = bill {
            let cost = bill.cost();
            cost.write(&self.folder)?;
            note(format_args!("cost so far: {cost}"));
        }
        let outcome = outcome.map_err(|error| match error.downcast() {
            Ok(error) => explain(error, &self.folder),
            Err(error) => error,
        })?;
        if let Some(path) = &outcome.sampler {
            let tuned = SampleFrom::Checkpoint(path.clone());
            let open = async || self.sampler(tuned, ASK).await;
            self.sample(open, outcome.steps).await?;
        }
        Ok(outcome)
    }

    /// Opens a model besides the one that is trained. `action` completes the sentence "could not …".
    async fn other(&self, from: ReferenceModel, action: &str) -> anyhow::Result<SamplingClient> {
        match from {
            ReferenceModel::Checkpoint(path) => {
                let sampler = sampler_of(&self.backend.service, &path).await;
                sampler.map_err(|error| match error {
                    Error::Client(error) => hint::explain(error, format!("could not {action}")),
                    error => error.into(),
                })
            }
            ReferenceModel::Base(name) => self.sampler(SampleFrom::BaseModel(name), action).await,
        }
    }

    /// Opens a sampler. `action` completes the sentence "could not …".
    async fn sampler(&self, from: SampleFrom, action: &str) -> anyhow::Result<SamplingClient> {
        let sampler = self.backend.service.create_sampling_client(from).await;
        sampler.map_err(|error| hint::explain(error, format!("could not {action}")))
    }

    /// Opens a sampler of the weights that the run starts from.
    async fn sampler_before(&self) -> anyhow::Result<SamplingClient> {
        match &self.start {
            Some(start) => {
                let sampler = sampler_of(&self.backend.service, &start.path).await;
                sampler.map_err(|error| explain(error, &self.folder))
            }
            None => {
                let base = SampleFrom::BaseModel(self.backend.model.clone());
                self.sampler(base, ASK).await
            }
        }
    }

    /// Asks what the user wants asked, unless it was asked after so many steps already.
    async fn sample(
        &self,
        open: impl AsyncFnOnce() -> anyhow::Result<SamplingClient>,
        steps: usize,
    ) -> anyhow::Result<()> {
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
        let sampler = open().await?;
        let samples = sample_records(&sampler, &self.renderer, &questions, &params, steps);
        let samples = samples
            .await
            .map_err(|error| explain(error, &self.folder))?;
        make_folder(&self.folder)?;
        Ok(write_samples(&self.folder, &samples)?)
    }
}

/// Returns what a run is to be called: the name that is given, unless it is that of another run, or the one that it
/// had before it was interrupted.
async fn run_name(
    backend: &Backend,
    name: Option<&str>,
    folder: &Path,
) -> anyhow::Result<Option<String>> {
    let rest = backend.service.create_rest_client();
    let failed = |error| hint::explain(error, "could not list runs".to_owned());
    let journal = journal(folder)?;
    let Some(name) = name else {
        // A finished run asks no other machine for anything.
        let may_ask = |journal: &&Journal| backend.is_local() || journal.finished().is_none();
        let id = journal
            .as_ref()
            .filter(may_ask)
            .and_then(Journal::resume_id);
        let Some(id) = id else { return Ok(None) };
        // The last attempt comes first; those before it have lost the name to it.
        let mut runs = pin!(rest.list_training_runs().all());
        while let Some(run) = runs.next().await {
            let run = run.map_err(failed)?;
            if run.resume_id() == Some(id) {
                return Ok(run.name().map(str::to_owned));
            }
        }
        return Ok(None);
    };
    name.parse::<RunName>()?;
    let found = rest.find_run(name).await.map_err(failed)?;
    let given = Ok(Some(name.to_owned()));
    let Some(found) = found else { return given };
    if journal.is_some_and(|journal| is_attempt(&found, &journal)) {
        return given;
    }
    let id = &found.training_run_id;
    Err(
        anyhow!("`{name}` is the name of another run already: {id}").context(Hint(
            "choose another `--name`; `tinkrs run list` shows those that are taken",
        )),
    )
}

/// Whether a run of the server is an attempt of the one in a folder.
fn is_attempt(run: &TrainingRun, journal: &Journal) -> bool {
    match journal.resume_id() {
        Some(id) => run.resume_id() == Some(id),
        // An earlier version began it, and did not say so to the server.
        None => journal.plan().is_some(),
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
        Error::Client(error) if error.to_string().contains(" is NaN") => {
            anyhow::Error::new(error).context(headline).context(Hint(
                "the weights are of no use any more: start anew in another `--run-dir` with a lower `--learning-rate`, \
                 `--warmup-steps 20` or `--grad-clip-norm 1`; `--from` takes a checkpoint from before",
            ))
        }
        Error::Client(error) => hint::explain(error, headline),
        Error::Resume { .. } => anyhow::Error::new(error).context(Hint(
            "continue with the data and settings that it began with, or name another `--run-dir`",
        )),
        Error::UnderWay { .. } => anyhow::Error::new(error).context(Hint(
            "wait for it or stop it with Ctrl-C, and the same command continues; or name another `--run-dir`",
        )),
        Error::Caller { source, .. } => anyhow!(source.to_string()).context(headline),
        error => in_our_words(error),
    }
}

/// Returns the journal of a run that has begun.
fn journal(folder: &Path) -> Result<Option<Journal>, Error> {
    let path = folder.join("journal.jsonl");
    path.exists().then(|| Journal::open(path)).transpose()
}

/// Returns how many steps are in the last checkpoint of a run, if there is one.
fn saved_steps(folder: &Path) -> Option<usize> {
    let journal = journal(folder).ok()??;
    journal.last_checkpoint().map(|(steps, _)| steps)
}

/// Says where a run goes on that has begun, and what was lost.
fn going_on(folder: &Path) -> Result<Option<String>, Error> {
    let journal = journal(folder)?.filter(|journal| journal.plan().is_some());
    Ok(journal.map(|journal| {
        let (lost, saved) = (journal.unsaved_steps(), journal.last_checkpoint());
        let again = match lost.len() {
            0 => String::new(),
            1 => format!("; step {} is done again", lost.end),
            _ => format!("; steps {}–{} are done again", lost.start + 1, lost.end),
        };
        match saved {
            Some((steps, _)) if again.is_empty() => {
                format!("going on after {}", counted(steps as u64, "step"))
            }
            Some((steps, _)) => {
                let steps = counted(steps as u64, "step");
                let was = if lost.len() == 1 {
                    "it was"
                } else {
                    "they were"
                };
                format!("going on after {steps}{again}: {was} after the last checkpoint")
            }
            None => format!("starting over{again}: nothing was saved"),
        }
    }))
}

/// Says how much memory a run takes, before it takes any, and what to do if that is too much.
fn memory(needed: u64, limit: u64, pass: &PassSize) -> String {
    let (needs, has) = (size(needed), size(limit));
    let based_on = format!(
        "rank {}, sequences of up to {} tokens",
        pass.rank, pass.longest
    );
    if needed <= limit {
        return format!("memory: up to {needs} of {has} ({based_on})");
    }
    format!(
        "warning: this may need {needs} of memory ({based_on}), and there are {has}: try a smaller `--max-tokens` or \
         `--rank`, or a smaller model"
    )
}

/// Returns how large the passes of a run are that trains on so many sequences at once.
fn pass_size(adapter: &Adapter, sequences: usize, longest: usize) -> PassSize {
    PassSize {
        rank: adapter.rank.unwrap_or(LoraConfig::default().rank),
        tokens: sequences.saturating_mul(longest),
        longest,
    }
}

/// Says which weights a run ends with that went by its evaluations.
fn ends_with_best(outcome: &Outcome) -> Option<String> {
    let best = outcome.best?;
    let steps = counted(best.steps as u64, "step");
    let value = best.value;
    Some(match outcome.best_of {
        Some(taken) => format!(
            "ended after {}, with the weights of the best evaluation: {value:.4} after {steps}",
            counted(taken as u64, "step")
        ),
        None if best.steps == outcome.steps => {
            format!("the last evaluation is the best: {value:.4}")
        }
        None => format!("the best evaluation was {value:.4} after {steps}; its checkpoint is kept"),
    })
}

/// Names a setting as its option does.
fn in_our_words(error: Error) -> anyhow::Error {
    let (setting, problem) = match &error {
        Error::Setting { setting, problem } => (setting, problem),
        Error::Invalid(invalid) => {
            let mut text = invalid.to_string();
            let options = <Adam as clap::Args>::augment_args(clap::Command::new("adam"));
            for option in options.get_arguments() {
                let (id, long) = (option.get_id().as_str(), option.get_long());
                let member = id.replace("adam.", "adam_params.");
                text = text.replace(&member, &format!("--{}", long.unwrap_or(id)));
            }
            return anyhow!(text);
        }
        _ => return error.into(),
    };
    let options = <Schedule as clap::Args>::augment_args(clap::Command::new("schedule"));
    let mut options = options.get_arguments();
    let option = options.find(|option| option.get_id() == *setting);
    let name = match (option.and_then(clap::Arg::get_long), *setting) {
        (Some(name), _) => name,
        (None, "base_model") => "model",
        (None, name) => name,
    };
    // An error may be about two of them.
    let options = name.split(" and ");
    let options = options.map(|name| format!("--{}", name.replace(['_', ' '], "-")));
    let options: Vec<_> = options.collect();
    anyhow!("{}: {problem}", options.join(" and "))
}

/// Says what a run that learns from its own answers is about to do.
fn announce(questions: usize, eval: usize, config: &PolicyConfig) {
    let eval = match eval {
        0 => String::new(),
        eval => format!(", {eval} to evaluate"),
    };
    note(format_args!(
        "{}{eval}, {} in a step, {} to each: {}",
        counted(questions as u64, "question"),
        config.problems_per_step.min(questions),
        counted(config.group_size as u64, "answer"),
        counted(config.steps as u64, "step")
    ));
}

/// The first Ctrl-C ends the run after the step, the second one at once, which is set in what is returned.
fn stop_on_ctrl_c(interrupt: Interrupt, service: ServiceClient) -> anyhow::Result<Interrupt> {
    let mut ctrl_c = CtrlC::listen()?;
    let at_once = Interrupt::default();
    let stops_at_once = at_once.clone();
    tokio::spawn(async move {
        ctrl_c.pressed().await;
        note("stopping after this step, with a checkpoint; Ctrl-C again stops at once");
        interrupt.set();
        ctrl_c.pressed().await;
        stops_at_once.set();
        judge::end_all();
        let told = Ending::INTERRUPTED.tell(&service);
        let _ = tokio::time::timeout(AT_ONCE, told).await;
        std::process::exit(130);
    });
    Ok(at_once)
}

/// Refuses a file with nothing to learn from.
fn not_empty(items: usize, too_long: usize, sources: &[Source]) -> anyhow::Result<()> {
    if items > 0 {
        return Ok(());
    }
    let file = options::names(sources);
    Err(if too_long == 0 {
        anyhow!("{file} has no lines")
    } else {
        anyhow!("everything in {file} is longer than `--max-tokens`")
    })
}
