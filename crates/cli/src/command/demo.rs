//! `tinkrs demo`: see a model learn, in a few minutes, on this machine.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use tinkrs::{SamplingClient, SamplingParams, ServiceClient, TinkerPath};
use tinkrs_chat::{Conversation, Message, Renderer, TrainOn};
use tinkrs_recipes::data::{Examples, Record, TooLong};
use tinkrs_recipes::evaluate::{answers, sample_records};
use tinkrs_recipes::rl::{self, Problem, Question};
use tinkrs_recipes::run::{Hooks, Outcome, read_metrics, write_samples};
use tinkrs_recipes::{Schedule, report, sft};

use crate::backend::Backend;
use crate::chat_format;
use crate::context::Context;
use crate::local_model;
use crate::output::say;
use crate::server_args::DATA_DIR;
use crate::training_progress::TrainingProgress;

/// Watch a small model learn to talk like a pirate, and then to prefer some animals
///
/// It runs on this machine: no account, no GPU, no download. First the model that comes with this
/// program is fine-tuned on examples, then it is rewarded for answers. Both leave a report to open in
/// a browser.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for the two runs
    #[arg(long, value_name = "DIR", default_value = "tinkrs-demo")]
    run_dir: PathBuf,

    /// Folder for what the server inside this process keeps
    #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
}

const QUESTIONS: [&str; 4] = [
    "Who are you?",
    "What color is the sky?",
    "What does a cow say?",
    "Tell me a story about a dog.",
];

/// What is worth a reward: animals of the forest.
const WANTED: [&str; 3] = ["owl", "bear", "fox"];

pub(crate) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let backend = Backend::open_here(ctx, args.data_dir.clone()).await?;
    let show = async |backend: &Backend| show(ctx, backend, &args.run_dir).await;
    backend.until_ctrl_c(ctx, show).await
}

async fn show(ctx: &Context, backend: &Backend, folder: &Path) -> anyhow::Result<()> {
    let demo = Demo {
        renderer: backend.renderer()?,
        service: &backend.service,
        model: &backend.model,
        folder,
        is_quiet: ctx.is_json(),
    };
    let before = demo.base().await?;
    let (pirate, samples) = demo.supervised(&before).await?;
    let (rewards, answers) = demo.reinforced(&before).await?;
    let reports = ["sft", "rl"].map(|run| demo.folder.join(run).join("report.html"));
    let shown = json!({
        "sampler": pirate, "samples": samples, "rewards": rewards, "answers": answers, "reports": reports,
    });
    let [sft, rl] = reports.each_ref().map(|report| report.display());
    ctx.done(
        &shown,
        format_args!(
            "\nThe pirate is kept as {pirate}\nOpen the reports: {sft}, {rl}\nNext: `tinkrs train sft --help`, \
             `tinkrs chat`",
        ),
    )
}

/// Trains both models on the server at `url`, as whoever `credential` is of: the demo that the studio offers. What it
/// leaves is on the server alone.
pub(crate) async fn on_server(url: &str, credential: String) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("could not make a folder")?;
    let builder = ServiceClient::builder().base_url(url).api_key(credential);
    let service = builder.telemetry(false).build();
    let model = local_model::nano(folder.path())?;
    let renderer = chat_format::renderer(&model.name, Some(&model.path), None)?;
    let demo = Demo {
        renderer,
        service: &service,
        model: tinkrs_nano::NAME,
        folder: folder.path(),
        is_quiet: true,
    };
    let before = demo.base().await?;
    demo.supervised(&before).await?;
    demo.reinforced(&before).await?;
    Ok(())
}

struct Demo<'a> {
    service: &'a ServiceClient,
    model: &'a str,
    renderer: Renderer,
    folder: &'a Path,
    /// Whether nobody reads what it would say.
    is_quiet: bool,
}

impl Demo<'_> {
    /// Tells what happens, to those who watch.
    fn say(&self, text: impl Display) -> anyhow::Result<()> {
        if self.is_quiet {
            return Ok(());
        }
        say(text)
    }

    async fn base(&self) -> anyhow::Result<SamplingClient> {
        Ok(self.service.create_sampling_client(self.model).await?)
    }

    /// Fine-tunes on answers of a pirate, and shows what the model says before and after.
    async fn supervised(&self, before: &SamplingClient) -> anyhow::Result<(TinkerPath, Value)> {
        self.say("\n1. Learning from examples: 600 answers of a pirate")?;
        let mut random = fastrand::Rng::with_seed(7);
        let records: Vec<_> = (0..600)
            .map(|_| {
                let [question, answer] = tinkrs_nano::text::exchange(&mut random);
                let answer = Message::assistant(pirate(&answer));
                Record::Chat(Conversation::from([Message::user(question), answer]))
            })
            .collect();
        let train_on = TrainOn::LastAssistantMessage;
        let examples = Examples::new(&records, &self.renderer, train_on, 256, TooLong::Skip)?;
        let examples = examples.split_eval(40, 0)?;
        let mut config = sft::Config::new(self.model);
        config.learning_rate = Schedule::new(4e-3);
        config.passes.batch_size = 16;
        config.passes.epochs = 3;
        config.adapter.rank = Some(8);
        config.adapter.name = self.is_quiet.then(|| "demo-pirate".to_owned());
        let folder = self.folder.join("sft");
        let mut progress = TrainingProgress::of("loss");
        let hooks = if self.is_quiet {
            Hooks::default()
        } else {
            Hooks::default().on_step(|report| progress.step(report))
        };
        let outcome = sft::train(self.service, &config, &examples, &folder, hooks).await?;
        let path = sampler(&outcome)?;
        let after = self.service.create_sampling_client(path.clone()).await?;

        let questions = QUESTIONS.map(|question| Conversation::from([Message::user(question)]));
        let params = SamplingParams {
            temperature: 0.0,
            ..self.renderer.sampling_params(64)
        };
        let asked = |sampler, steps| {
            let (renderer, questions, params) = (&self.renderer, &questions, &params);
            async move { sample_records(sampler, renderer, questions, params, steps).await }
        };
        let old = asked(before, 0).await?;
        let new = asked(&after, outcome.steps).await?;
        for (old, new) in old.iter().zip(&new) {
            self.say(format_args!(
                "  {}\n    before: {}\n    after:  {}",
                old.prompt, old.answer, new.answer
            ))?;
        }
        let shown = old.iter().zip(&new).map(
            |(old, new)| json!({"prompt": old.prompt, "before": old.answer, "after": new.answer}),
        );
        let shown = shown.collect();
        write_samples(&folder, &[old, new].concat())?;
        report::write(&folder)?;
        Ok((path, shown))
    }

    /// Rewards answers, and shows how the reward rises.
    async fn reinforced(&self, before: &SamplingClient) -> anyhow::Result<(Vec<f64>, Vec<String>)> {
        self.say("\n2. Learning from rewards: when asked for three animals, those of the forest")?;
        let question = Conversation::from([Message::user("Name three animals.")]);
        let problem = Question::new(&self.renderer, &question, 24, |answer| {
            forest_share(&answer.message.content)
        })?;
        let problems: Vec<Arc<dyn Problem>> = vec![Arc::new(problem)];
        let mut config = rl::Config::new(self.model);
        config.learning_rate = Schedule::new(2e-3);
        config.policy.steps = 25;
        config.policy.problems_per_step = 1;
        config.policy.group_size = 48;
        config.policy.max_staleness = 0;
        config.adapter.rank = Some(8);
        config.adapter.name = self.is_quiet.then(|| "demo-forest".to_owned());
        let folder = self.folder.join("rl");
        let mut progress = TrainingProgress::of("reward");
        let hooks = if self.is_quiet {
            Hooks::default()
        } else {
            Hooks::default().on_step(|report| progress.step(report))
        };
        let outcome = rl::train(self.service, &config, &problems, &folder, hooks).await?;
        let rewards: Vec<f64> = read_metrics(folder.join("metrics.jsonl"))?
            .values()
            .filter_map(|numbers| numbers.get("reward").copied())
            .collect();
        if let (Some(first), Some(last)) = (rewards.first(), rewards.last()) {
            self.say(format_args!(
                "  reward: {first:.2} at first, {last:.2} in the end"
            ))?;
        }
        let service = self.service;
        let after = service.create_sampling_client(sampler(&outcome)?).await?;
        let params = self.renderer.sampling_params(24);
        let asked = vec![question; 3];
        let said = answers(&after, &self.renderer, &asked, &params).await?;
        let said: Vec<_> = said.into_iter().map(|said| said.message.content).collect();
        for answer in &said {
            self.say(format_args!("    {answer}"))?;
        }
        let likeliest = SamplingParams {
            temperature: 0.0,
            ..params
        };
        let (renderer, asked) = (&self.renderer, &asked[..1]);
        let old = sample_records(before, renderer, asked, &likeliest, 0).await?;
        let new = sample_records(&after, renderer, asked, &likeliest, outcome.steps).await?;
        write_samples(&folder, &[old, new].concat())?;
        report::write(&folder)?;
        Ok((rewards, said))
    }
}

fn sampler(outcome: &Outcome) -> anyhow::Result<TinkerPath> {
    let path = outcome.sampler.clone();
    path.ok_or_else(|| anyhow!("the run was stopped; the same command continues it"))
}

/// Says the same as a pirate would.
fn pirate(answer: &str) -> String {
    let words = HashMap::from([("Hello!", "Ahoy!"), ("Yes,", "Aye,"), ("friend", "matey")]);
    let words: Vec<_> = answer
        .split(' ')
        .map(|word| *words.get(word).unwrap_or(&word))
        .collect();
    format!("Arr! {}", words.join(" "))
}

/// Returns how many of three animals are of the forest, as a share. A list of more than three earns
/// nothing: what is rewarded without a limit is soon all that is said.
fn forest_share(answer: &str) -> f64 {
    let answer = answer.to_lowercase();
    let words: Vec<_> = answer.split(|c: char| !c.is_alphabetic()).collect();
    if words.iter().filter(|word| !word.is_empty()).count() > 4 {
        return 0.0;
    }
    let wanted = WANTED.iter().filter(|animal| words.contains(*animal));
    wanted.count() as f64 / WANTED.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reward_is_the_share_of_animals_of_the_forest() {
        assert_eq!(forest_share("Owl, bear and fox."), 1.0);
        assert_eq!(forest_share("Cat, owl and owl."), 1.0 / 3.0);
        assert_eq!(forest_share("Foxes"), 0.0);
        assert_eq!(forest_share("Owl, bear and fox and fox."), 0.0);
    }
}
