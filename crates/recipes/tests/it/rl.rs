use crate::support::{MODEL, TestServer, renderer};
use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tinkrs::{BoxError, SamplingParams};
use tinkrs_chat::{Conversation, Message};
use tinkrs_recipes::Schedule;
use tinkrs_recipes::data::Split;
use tinkrs_recipes::rl::{self, Env, EnvFuture, Episodes, Problem, Question, Reference, Turn};
use tinkrs_recipes::run::{Entry, Hooks, Interrupt, Journal, read_metrics};

fn config() -> rl::Config {
    let mut config = rl::Config::new(MODEL);
    config.learning_rate = Schedule::new(5e-2);
    config.policy.steps = 2;
    config.policy.problems_per_step = 2;
    config.policy.group_size = 4;
    config.adapter.rank = Some(4);
    config
}

fn questions() -> Vec<Arc<dyn Problem>> {
    asking(["hello", "the weather", "what is fine?"])
}

/// Answers with many an `e` are good.
fn asking(texts: [&str; 3]) -> Vec<Arc<dyn Problem>> {
    let renderer = renderer();
    let question = |text: &str| -> Arc<dyn Problem> {
        let chat = Conversation::from([Message::user(text)]);
        let grader = |response: &tinkrs_chat::Response| {
            let words = &response.message.content;
            words.chars().filter(|letter| *letter == 'e').count() as f64 / words.len().max(1) as f64
        };
        Arc::new(Question::new(&renderer, &chat, 12, grader).unwrap())
    };
    texts.map(question).into()
}

#[tokio::test]
async fn two_steps_play_and_learn_within_the_staleness_budget() -> Result<()> {
    let server = TestServer::start().await;
    for max_staleness in [0, 2] {
        let folder = tempfile::tempdir()?;
        let mut config = config();
        config.policy.steps = 4;
        config.policy.max_staleness = max_staleness;
        config.kl_penalty = 0.01;
        let problems = questions();
        let outcome = rl::train(
            &server.service(),
            &config,
            &problems,
            folder.path(),
            Hooks::default(),
        )
        .await?;
        assert!(outcome.finished && outcome.steps == 4);
        let metrics = read_metrics(folder.path().join("metrics.jsonl"))?;
        let staleness: Vec<f64> = metrics
            .values()
            .map(|numbers| numbers["staleness"])
            .collect();
        let expected: &[f64] = if max_staleness == 0 {
            &[0.0; 4]
        } else {
            &[0.0, 1.0, 2.0, 2.0]
        };
        assert_eq!(staleness, expected);
        // With fresh weights the sampler and the trainer agree but for rounding.
        assert!(metrics[&0]["kl"].abs() < 1e-4, "{:?}", metrics[&0]);
        assert!(
            metrics[&0]["kl_reference"].abs() < 1e-4,
            "an untrained adapter is the base model"
        );
        assert!(metrics[&3].contains_key("reward") && metrics[&3].contains_key("loss"));
    }
    Ok(())
}

#[tokio::test]
async fn the_reward_rises() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let mut config = config();
    config.policy.steps = 20;
    config.policy.group_size = 16;
    config.policy.max_staleness = 1;
    config.evaluation.every = 10;
    let (train, eval) = (questions(), asking(["hi", "is it cold?", "how is it?"]));
    let split = Split {
        train: &train,
        eval: &eval,
    };
    let hooks = Hooks::default();
    rl::train(&server.service(), &config, split, folder.path(), hooks).await?;
    let metrics = read_metrics(folder.path().join("metrics.jsonl"))?;
    let rewards = metrics.values();
    let rewards: Vec<f64> = rewards
        .filter_map(|numbers| numbers.get("reward").copied())
        .collect();
    let mean = |rewards: &[f64]| rewards.iter().sum::<f64>() / rewards.len() as f64;
    let (before, after) = (mean(&rewards[..4]), mean(&rewards[16..]));
    assert!(
        after > 3.0 * before,
        "the reward went from {before} to {after}"
    );
    let eval = [0, 10, 20].map(|step| metrics[&step]["eval_reward"]);
    assert!(eval[2] > 2.0 * eval[0], "on other questions: {eval:?}");
    Ok(())
}

#[tokio::test]
async fn an_interrupted_run_resumes_where_it_stopped() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let mut config = config();
    config.policy.steps = 3;
    let interrupt = Interrupt::default();
    let mut hooks = Hooks::default();
    hooks.interrupt = interrupt.clone();
    let hooks = hooks.on_step(move |_| interrupt.set());
    let service = server.service();
    let outcome = rl::train(&service, &config, &questions(), folder.path(), hooks).await?;
    assert!(!outcome.finished && outcome.steps == 1);
    let outcome = rl::train(
        &service,
        &config,
        &questions(),
        folder.path(),
        Hooks::default(),
    )
    .await?;
    assert!(outcome.finished && outcome.steps == 3);
    Ok(())
}

#[tokio::test]
async fn a_run_does_not_go_on_with_other_questions() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let train = |steps, problems: Vec<Arc<dyn Problem>>| {
        let (service, folder) = (server.service(), folder.path());
        let mut config = config();
        config.policy.steps = steps;
        async move { rl::train(&service, &config, &problems, folder, Hooks::default()).await }
    };
    train(1, questions()).await?;
    // Neither to do more steps, nor to hear that it is finished.
    for steps in [1, 2] {
        let others = asking(["hello", "the weather", "what is warm?"]);
        let error = train(steps, others).await.unwrap_err().to_string();
        assert!(
            error.ends_with("it began with other examples, though as many"),
            "{error}"
        );
    }
    assert_eq!(train(2, questions()).await?.steps, 2);
    Ok(())
}

/// Gives the model two turns, and shows it what it wrote.
struct TwoTurns;

struct Play {
    tokens: Vec<u32>,
    turns: usize,
}

impl Problem for TwoTurns {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        let play: Box<dyn Env> = Box::new(Play {
            tokens: vec![5, 6],
            turns: 0,
        });
        Box::pin(async { Ok(play) })
    }

    fn params(&self) -> SamplingParams {
        SamplingParams::new(3)
    }
}

impl Env for Play {
    fn observe(&self) -> Result<Vec<u32>, BoxError> {
        Ok(self.tokens.clone())
    }

    fn act<'a>(&'a mut self, tokens: &'a [u32]) -> EnvFuture<'a, Turn> {
        Box::pin(async move {
            if tokens.is_empty() {
                return Err("the model said nothing".into());
            }
            self.tokens.extend_from_slice(tokens);
            self.tokens.push(9);
            self.turns += 1;
            let turn = Turn {
                reward: f64::from(tokens[0]),
                done: self.turns == 2,
                ..Turn::default()
            };
            Ok(turn.metric("written", tokens.len() as f64))
        })
    }
}

#[tokio::test]
async fn episodes_of_several_turns_are_one_sequence_and_repeatable() -> Result<()> {
    let server = TestServer::start().await;
    let sampler = server.service().create_sampling_client(MODEL).await?;
    let problems: [Arc<dyn Problem>; 1] = [Arc::new(TwoTurns)];
    let limits = Episodes::default();
    let played = rl::play(&sampler, &problems, &limits, 3, Some(7)).await?;
    let groups = &played.groups;
    assert_eq!(groups[0].len(), 3);
    for episode in &groups[0] {
        assert_eq!(episode.sequences.len(), 1);
        let tokens = &episode.sequences[0].tokens;
        assert!(tokens.starts_with(&[5, 6]) && tokens.contains(&9));
        assert!(episode.written_tokens() >= 2);
        assert_eq!(episode.metrics["written"], episode.written_tokens() as f64);
        assert_eq!((episode.turns, episode.cut_short), (2, false));
    }
    let again = rl::play(&sampler, &problems, &limits, 3, Some(7)).await?;
    assert_eq!(played, again);
    assert_ne!(groups[0][0], groups[0][1], "members of a group differ");
    Ok(())
}

/// Judged late, until the judge has enough of it.
struct JudgedLate {
    verdicts: Arc<AtomicUsize>,
}

struct Waiting(Arc<AtomicUsize>);

impl Problem for JudgedLate {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        let waiting: Box<dyn Env> = Box::new(Waiting(Arc::clone(&self.verdicts)));
        Box::pin(async { Ok(waiting) })
    }

    fn params(&self) -> SamplingParams {
        SamplingParams::new(2)
    }
}

impl Env for Waiting {
    fn observe(&self) -> Result<Vec<u32>, BoxError> {
        Ok(vec![5, 6])
    }

    fn act<'a>(&'a mut self, _: &'a [u32]) -> EnvFuture<'a, Turn> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            match self.0.fetch_add(1, Ordering::Relaxed) {
                number if number < 8 => Ok(Turn::end(1.0 + number as f64)),
                _ => Err("the judge left".into()),
            }
        })
    }
}

/// Fails in every third episode.
struct Moody {
    episodes: AtomicUsize,
}

impl Problem for Moody {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        let number = self.episodes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if number % 3 == 2 {
                return Err("not in the mood".into());
            }
            let (tokens, turns) = (vec![5, 6], 0);
            Ok(Box::new(Play { tokens, turns }) as Box<dyn Env>)
        })
    }

    fn params(&self) -> SamplingParams {
        SamplingParams::new(3)
    }

    fn compare<'a>(&'a self, group: &'a [rl::Episode]) -> EnvFuture<'a, Vec<f64>> {
        let places = (0..group.len()).map(|place| 1000.0 * place as f64);
        let places: Vec<f64> = places.collect();
        Box::pin(async { Ok(places) })
    }
}

#[tokio::test]
async fn episodes_that_fail_are_played_again_or_left_out_and_counted() -> Result<()> {
    let server = TestServer::start().await;
    let sampler = server.service().create_sampling_client(MODEL).await?;
    let play = |limits: Episodes, group_size| {
        let problems: [Arc<dyn Problem>; 1] = [Arc::new(Moody {
            episodes: AtomicUsize::new(0),
        })];
        let sampler = &sampler;
        async move { rl::play(sampler, &problems, &limits, group_size, Some(7)).await }
    };
    let error = play(Episodes::default(), 3).await.unwrap_err();
    let error = format!("{:#}", anyhow::Error::from(error));
    assert!(error.ends_with("not in the mood"), "{error}");

    let mut limits = Episodes {
        min_group_size: 2,
        ..Episodes::default()
    };
    let played = play(limits, 3).await?;
    assert_eq!(played.groups[0].len(), 2);
    assert_eq!((played.failures, played.dropped), (1, 1));
    let reason = played.last_failure.unwrap();
    assert!(reason.ends_with("not in the mood"), "{reason}");
    // What the group as a whole says comes on top.
    assert!(played.groups[0][0].reward < 1000.0 + f64::from(u16::MAX));
    assert!(played.groups[0][1].reward >= 1000.0);

    limits.min_group_size = 3;
    let error = play(limits, 3).await.unwrap_err();
    assert!(
        error.to_string().contains("failed"),
        "no group is left: {error}"
    );
    limits.episode_retries = 1;
    let played = play(limits, 3).await?;
    assert_eq!(played.groups[0].len(), 3);
    assert_eq!((played.failures, played.dropped), (1, 0));
    Ok(())
}

#[tokio::test]
async fn limits_end_an_episode_with_what_it_has_earned() -> Result<()> {
    let server = TestServer::start().await;
    let sampler = server.service().create_sampling_client(MODEL).await?;
    let problems: [Arc<dyn Problem>; 1] = [Arc::new(TwoTurns)];
    let mut limits = Episodes {
        max_turns: 1,
        ..Episodes::default()
    };
    let played = rl::play(&sampler, &problems, &limits, 2, Some(7)).await?;
    for episode in &played.groups[0] {
        assert_eq!((episode.turns, episode.cut_short), (1, true));
    }
    limits = Episodes {
        max_episode_tokens: 4,
        ..Episodes::default()
    };
    let played = rl::play(&sampler, &problems, &limits, 2, Some(7)).await?;
    for episode in &played.groups[0] {
        assert!(episode.cut_short);
        assert!(episode.sequences[0].tokens.len() <= 4);
    }
    limits.max_episode_tokens = 2;
    let error = rl::play(&sampler, &problems, &limits, 2, None).await;
    let error = format!("{:#}", anyhow::Error::from(error.unwrap_err()));
    assert!(
        error.ends_with("begins with 2 tokens; it may have 2 in all"),
        "{error}"
    );
    Ok(())
}

#[tokio::test]
async fn a_judge_that_fails_costs_no_step() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let mut config = config();
    config.policy.steps = 3;
    config.policy.problems_per_step = 1;
    config.policy.group_size = 4;
    config.policy.max_staleness = 0;
    let verdicts = Arc::new(AtomicUsize::new(0));
    let problems: [Arc<dyn Problem>; 1] = [Arc::new(JudgedLate {
        verdicts: Arc::clone(&verdicts),
    })];
    let train = || {
        let service = server.service();
        let (config, problems, folder) = (&config, &problems, folder.path());
        async move { rl::train(&service, config, problems, folder, Hooks::default()).await }
    };
    let error = anyhow::Error::from(train().await.unwrap_err());
    assert!(
        format!("{error:#}").ends_with("the judge left"),
        "{error:#}"
    );
    verdicts.store(0, Ordering::Relaxed);
    let outcome = train().await?;
    assert_eq!(outcome.steps, 3);
    let journal = Journal::open(folder.path().join("journal.jsonl"))?;
    let resumed = journal.entries().iter().find_map(|entry| match entry {
        Entry::Resumed { steps } => Some(*steps),
        _ => None,
    });
    assert_eq!(resumed, Some(2), "two steps were judged before");
    let metrics = read_metrics(folder.path().join("metrics.jsonl"))?;
    // What the turns earned, and the mean of the verdicts 0 to 3.
    assert_eq!(metrics[&0]["reward"], 1.0 + 1.5);
    Ok(())
}

#[tokio::test]
async fn a_reference_that_fails_costs_no_step() -> Result<()> {
    let server = TestServer::start().await;
    // It takes the short questions and not the long one, which comes last with this seed.
    let small = TestServer::with_context(80).await;
    let reference = small.service().create_sampling_client(MODEL).await?;
    let folder = tempfile::tempdir()?;
    let mut config = config();
    config.policy.steps = 3;
    config.policy.problems_per_step = 1;
    config.policy.max_staleness = 0;
    let long = "the weather ".repeat(60);
    let problems = asking([long.as_str(), "hello", "hello"]);
    let service = server.service();
    let trained = rl::train_towards(
        &service,
        &config,
        &problems,
        Some(Reference::new(reference, 0.1)),
        folder.path(),
        Hooks::default(),
    );
    let error = anyhow::Error::from(trained.await.unwrap_err());
    assert!(format!("{error:#}").contains("> 80"), "{error:#}");
    let journal = Journal::open(folder.path().join("journal.jsonl"))?;
    let saved = journal.last_checkpoint().map(|(steps, _)| steps);
    assert_eq!(saved, Some(2));
    Ok(())
}
