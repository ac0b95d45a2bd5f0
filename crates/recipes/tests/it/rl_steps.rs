//! What a step is made of: losses, updates, minibatches, and groups that come when they come.

use crate::support::{MODEL, TestServer, renderer};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tinkrs::{BoxError, SamplingParams};
use tinkrs_chat::{Conversation, Message};
use tinkrs_recipes::Schedule;
use tinkrs_recipes::rl::{self, Env, EnvFuture, PolicyLoss, Problem, Question, Stale, Turn};
use tinkrs_recipes::run::{Hooks, Interrupt, Journal, Numbers, ReferenceModel, read_metrics};
use tokio::sync::watch;

fn config() -> rl::Config {
    let mut config = rl::Config::new(MODEL);
    config.learning_rate = Schedule::new(2e-2);
    config.policy.steps = 3;
    config.policy.problems_per_step = 4;
    config.policy.group_size = 4;
    config.policy.max_staleness = 0;
    config.adapter.rank = Some(4);
    config
}

/// Answers with many an `e` are good.
fn questions() -> Vec<Arc<dyn Problem>> {
    let renderer = renderer();
    let question = |number: usize| -> Arc<dyn Problem> {
        let chat = Conversation::from([Message::user(format!("what is {number}?"))]);
        let grader = |response: &tinkrs_chat::Response| {
            let words = &response.message.content;
            words.chars().filter(|letter| *letter == 'e').count() as f64 / words.len().max(1) as f64
        };
        Arc::new(Question::new(&renderer, &chat, 12, grader).unwrap())
    };
    (0..6).map(question).collect()
}

type Metrics = BTreeMap<usize, Numbers>;

async fn train(
    server: &TestServer,
    config: &rl::Config,
    problems: &[Arc<dyn Problem>],
    folder: &Path,
    hooks: Hooks<'_>,
) -> Result<Metrics> {
    rl::train(&server.service(), config, problems, folder, hooks).await?;
    Ok(read_metrics(folder.join("metrics.jsonl"))?)
}

/// Stops after so many steps.
fn stopping_after(steps: usize) -> Hooks<'static> {
    let interrupt = Interrupt::default();
    let mut hooks = Hooks::default();
    hooks.interrupt = interrupt.clone();
    hooks.on_step(move |report| {
        if report.step + 1 == steps {
            interrupt.set();
        }
    })
}

/// Numbers that do not depend on the time.
fn repeatable(metrics: &Metrics) -> Vec<(usize, Numbers)> {
    let timed = ["elapsed_seconds", "tokens_per_second"];
    let numbers = |numbers: &Numbers| {
        let kept = numbers
            .iter()
            .filter(|(name, _)| !timed.contains(&name.as_str()));
        kept.map(|(name, number)| (name.clone(), *number)).collect()
    };
    let steps = metrics.iter();
    steps.map(|(step, row)| (*step, numbers(row))).collect()
}

#[tokio::test]
async fn every_loss_trains_and_begins_where_the_sampler_is() -> Result<()> {
    let server = TestServer::start().await;
    let problems = questions();
    let losses = [
        PolicyLoss::default(),
        PolicyLoss::ppo(0.8, 1.2),
        PolicyLoss::cispo(0.8, 1.2),
        PolicyLoss::dro(0.1),
        PolicyLoss::gspo(0.99, 1.01),
    ];
    let mut first = Vec::new();
    for loss in losses {
        let folder = tempfile::tempdir()?;
        let mut config = config();
        config.policy.steps = 2;
        config.policy.loss = loss;
        let hooks = Hooks::default();
        let metrics = train(&server, &config, &problems, folder.path(), hooks).await?;
        assert!(metrics[&0]["kl"].abs() < 1e-4, "{loss:?}");
        assert!(metrics[&1]["loss"].is_finite(), "{loss:?}");
        first.push((metrics[&0]["reward"], metrics[&0]["loss"]));
    }
    let (reward, loss) = first[0];
    for (other, at_ratio_one) in &first {
        assert_eq!(*other, reward, "the same episodes");
        // With all ratios 1, the clipped losses and the plain one are −Σ A.
        let same = (at_ratio_one - loss).abs() < 1e-3;
        assert!(same || *at_ratio_one == first[3].1, "{first:?}");
    }
    Ok(())
}

#[tokio::test]
async fn several_updates_and_minibatches_repeat_and_resume_bit_for_bit() -> Result<()> {
    let server = TestServer::start().await;
    let problems = questions();
    let folder = tempfile::tempdir()?;
    let mut config = config();
    config.policy.substeps = 2;
    config.policy.minibatches = 2;
    config.policy.loss = PolicyLoss::gspo(0.9, 1.1);
    config.kl_penalty = 0.05;
    config.kl_discount = 0.9;
    config.kl_reference = Some(ReferenceModel::Base(MODEL.to_owned()));
    let at = |name: &str| folder.path().join(name);
    let whole = train(&server, &config, &problems, &at("whole"), Hooks::default()).await?;
    assert!(whole[&0]["kl"].abs() < 1e-4, "{:?}", whole[&0]);
    let moved = whole[&0]["kl_last_substep"];
    assert!(moved.abs() > 1e-6, "the second update sees other weights");

    train(
        &server,
        &config,
        &problems,
        &at("halves"),
        stopping_after(1),
    )
    .await?;
    let halves = train(&server, &config, &problems, &at("halves"), Hooks::default()).await?;
    assert_eq!(repeatable(&whole), repeatable(&halves));

    // In one part, the same episodes are played, and all of them are trained on before the weights move.
    config.policy.substeps = 1;
    config.policy.minibatches = 1;
    let one = train(&server, &config, &problems, &at("one"), Hooks::default()).await?;
    assert_eq!(one[&0]["reward"], whole[&0]["reward"]);
    assert_eq!(one[&0]["tokens"], whole[&0]["tokens"]);
    assert!(!one[&0].contains_key("kl_last_substep"));
    assert_ne!(one[&1]["reward"], whole[&1]["reward"]);
    Ok(())
}

#[tokio::test]
async fn minibatches_add_up_to_the_whole_batch() -> Result<()> {
    let server = TestServer::start().await;
    let problems = questions();
    let mut losses = Vec::new();
    for minibatches in [1, 4] {
        let folder = tempfile::tempdir()?;
        let mut config = config();
        config.policy.steps = 2;
        config.policy.minibatches = minibatches;
        let hooks = Hooks::default();
        let metrics = train(&server, &config, &problems, folder.path(), hooks).await?;
        losses.push([0, 1].map(|step| (metrics[&step]["loss"], metrics[&step]["reward"])));
    }
    for step in 0..2 {
        let [(loss, reward), (split, split_reward)] = [losses[0][step], losses[1][step]];
        assert!((loss - split).abs() < 1e-3, "{losses:?}");
        assert!((reward - split_reward).abs() < 0.2, "{losses:?}");
    }
    Ok(())
}

/// Ends when enough others have.
struct Patient {
    /// How many others have to end first.
    others: usize,
    ended: watch::Sender<usize>,
    token: u32,
}

struct Waiting {
    others: usize,
    ended: watch::Sender<usize>,
    token: u32,
}

impl Problem for Patient {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        let waiting: Box<dyn Env> = Box::new(Waiting {
            others: self.others,
            ended: self.ended.clone(),
            token: self.token,
        });
        Box::pin(async { Ok(waiting) })
    }

    fn params(&self) -> SamplingParams {
        SamplingParams::new(2)
    }

    fn identity(&self) -> Vec<u32> {
        vec![self.token]
    }
}

impl Env for Waiting {
    fn observe(&self) -> Result<Vec<u32>, BoxError> {
        Ok(vec![5, self.token])
    }

    fn act<'a>(&'a mut self, tokens: &'a [u32]) -> EnvFuture<'a, Turn> {
        Box::pin(async move {
            let mut ended = self.ended.subscribe();
            ended.wait_for(|ended| *ended >= self.others).await?;
            self.ended.send_modify(|ended| *ended += 1);
            Ok(Turn::end(f64::from(tokens.first().copied().unwrap_or(0))))
        })
    }
}

#[tokio::test]
async fn groups_that_are_too_old_are_dropped_or_played_again_and_counted() -> Result<()> {
    for stale in [Stale::Drop, Stale::Requeue] {
        let server = TestServer::start().await;
        let (ended, _) = watch::channel(0);
        // The one that waits ends after three steps of two groups with two episodes each.
        let problem = |index: u32| -> Arc<dyn Problem> {
            Arc::new(Patient {
                others: if index == 0 { 14 } else { 0 },
                ended: ended.clone(),
                token: 10 + index,
            })
        };
        let problems: Vec<_> = (0..5).map(problem).collect();
        let mut config = config();
        config.policy.steps = 10;
        config.policy.problems_per_step = 2;
        config.policy.group_size = 2;
        config.policy.max_staleness = 1;
        config.policy.asynchronous = true;
        config.policy.stale = stale;
        config.baseline = rl::Baseline::None;
        config.learning_rate = Schedule::new(1e-4);
        let folder = tempfile::tempdir()?;
        let hooks = stopping_after(7);
        let metrics = train(&server, &config, &problems, folder.path(), hooks).await?;
        let sum = |name: &str| metrics.values().map(|row| row[name]).sum::<f64>();
        assert!(sum("groups_stale") >= 1.0, "{stale:?}: {metrics:?}");
        assert!(metrics.values().all(|row| row["staleness"] <= 1.0));
        assert!(metrics.values().all(|row| row["groups"] == 2.0));

        // A run that resumes goes on with problems that had no turn yet.
        let metrics = train(&server, &config, &problems, folder.path(), Hooks::default()).await?;
        assert_eq!(metrics.len(), 10);
        let journal = Journal::open(folder.path().join("journal.jsonl"))?;
        let steps = journal.surviving_steps();
        assert_eq!(steps.len(), 10);
        let turns = |problem: usize| {
            let all = steps.iter().flat_map(|(_, examples)| *examples);
            all.filter(|example| **example == problem).count()
        };
        let turns: Vec<_> = (0..5).map(turns).collect();
        assert_eq!(turns.iter().sum::<usize>(), 20);
        if stale == Stale::Requeue {
            assert!(turns.iter().all(|count| *count >= 2), "{turns:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_environment_that_fails_in_an_asynchronous_run_costs_no_step() -> Result<()> {
    let server = TestServer::start().await;
    let (ended, _) = watch::channel(0);
    let problem = |index: u32| -> Arc<dyn Problem> {
        Arc::new(Failing {
            inner: Patient {
                others: 0,
                ended: ended.clone(),
                token: 10 + index,
            },
        })
    };
    let problems: Vec<_> = (0..4).map(problem).collect();
    let mut config = config();
    config.policy.asynchronous = true;
    config.policy.problems_per_step = 2;
    config.policy.group_size = 2;
    config.baseline = rl::Baseline::None;
    let folder = tempfile::tempdir()?;
    for tolerated in [0, 1] {
        config.episodes.min_group_size = tolerated;
        let failed = train(&server, &config, &problems, folder.path(), Hooks::default()).await;
        let error = format!("{:#}", failed.unwrap_err());
        assert!(error.ends_with("there is no game today"), "{error}");
    }
    let journal = Journal::open(folder.path().join("journal.jsonl"))?;
    assert!(journal.last_checkpoint().is_some(), "it was saved");
    Ok(())
}

/// Cannot be started.
struct Failing {
    inner: Patient,
}

impl Problem for Failing {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        Box::pin(async { Err("there is no game today".into()) })
    }

    fn params(&self) -> SamplingParams {
        self.inner.params()
    }
}
