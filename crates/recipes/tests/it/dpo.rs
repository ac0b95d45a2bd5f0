use crate::support::{MODEL, TestServer, renderer};
use anyhow::Result;
use tinkrs_chat::Message;
use tinkrs_recipes::Schedule;
use tinkrs_recipes::data::{DataSet, Store};
use tinkrs_recipes::dpo::{self, Pair, Preference, PreferenceLoss};
use tinkrs_recipes::run::{Hooks, Interrupt, ReferenceModel, read_metrics};

fn pairs() -> DataSet<Pair> {
    let preference = |n: usize| Preference {
        messages: Some(vec![Message::user(format!("what is {n}?"))]),
        prompt: None,
        chosen: "fine".to_owned(),
        rejected: "a question".to_owned(),
    };
    let renderer = renderer();
    let pairs = (0..6).map(|n| preference(n).pair(&renderer).unwrap());
    pairs.collect::<Vec<_>>().into()
}

#[tokio::test]
async fn preferences_are_learned_from_log_two_down() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let mut config = dpo::Config::new(MODEL);
    config.learning_rate = Schedule::new(1e-2);
    config.passes.batch_size = 3;
    config.passes.epochs = 3;
    config.adapter.rank = Some(4);
    let outcome = dpo::train(
        &server.service(),
        &config,
        &pairs(),
        folder.path(),
        Hooks::default(),
    )
    .await?;
    assert!(outcome.finished);
    let metrics = read_metrics(folder.path().join("metrics.jsonl"))?;
    assert_eq!(metrics.len(), 6);
    let first = metrics[&0]["loss"];
    assert!(
        (first - std::f64::consts::LN_2).abs() < 1e-3,
        "it began at {first}"
    );
    assert!(metrics[&5]["loss"] < 0.9 * first, "{metrics:?}");
    assert_eq!(metrics[&5]["accuracy"], 1.0);
    Ok(())
}

#[tokio::test]
async fn pairs_in_a_temporary_file_are_learned_like_those_in_memory() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let mut config = dpo::Config::new(MODEL);
    config.learning_rate = Schedule::new(1e-2);
    config.passes.batch_size = 4;
    config.passes.epochs = 2;
    config.adapter.rank = Some(4);
    let memory = pairs();
    let mut disk = DataSet {
        train: Store::with_limit(0),
        ..DataSet::default()
    };
    for pair in memory.train.iter() {
        disk.train.push(pair?.into_owned())?;
    }
    assert!(format!("{:?}", disk.train).contains("in_memory: false"));
    let mut losses = Vec::new();
    for (pairs, name) in [(&memory, "memory"), (&disk, "disk")] {
        let run = folder.path().join(name);
        let hooks = Hooks::default();
        dpo::train(&server.service(), &config, pairs, &run, hooks).await?;
        let metrics = read_metrics(run.join("metrics.jsonl"))?;
        losses.push(
            metrics
                .into_values()
                .map(|step| step["loss"])
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(losses[0], losses[1]);
    // They are the same data, so a run goes on with either.
    let run = folder.path().join("memory");
    assert!(dpo::finished(&config, &disk, run)?.is_some());
    Ok(())
}

#[tokio::test]
async fn pairs_that_are_set_apart_are_evaluated() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let mut config = dpo::Config::new(MODEL);
    config.learning_rate = Schedule::new(1e-2);
    config.passes.batch_size = 2;
    config.evaluation.every = 2;
    config.adapter.rank = Some(4);
    let pairs = pairs().split_eval(2, 0)?;
    let hooks = Hooks::default();
    dpo::train(&server.service(), &config, &pairs, folder.path(), hooks).await?;
    let metrics = read_metrics(folder.path().join("metrics.jsonl"))?;
    let eval = |step: usize, name: &str| metrics[&step][name];
    // Before the first step nothing is preferred.
    assert!((eval(0, "eval_loss") - std::f64::consts::LN_2).abs() < 1e-3);
    assert!(eval(2, "eval_loss") < 0.95 * eval(0, "eval_loss"));
    assert_eq!(eval(2, "eval_accuracy"), 1.0);
    assert!(eval(2, "eval_margin") > 0.0);
    assert!(!metrics[&1].contains_key("eval_loss"));
    Ok(())
}

#[tokio::test]
async fn ipo_stops_at_its_margin_and_resumes_bit_for_bit() -> Result<()> {
    let server = TestServer::start().await;
    let mut config = dpo::Config::new(MODEL);
    config.loss = PreferenceLoss::Ipo;
    config.beta = 0.25;
    config.learning_rate = Schedule::new(1e-2);
    config.passes.batch_size = 3;
    config.passes.epochs = 10;
    config.adapter.rank = Some(4);
    let train = |config: dpo::Config, folder: std::path::PathBuf, hooks: Hooks<'static>| {
        let service = server.service();
        async move { dpo::train(&service, &config, &pairs(), folder, hooks).await }
    };
    let folder = tempfile::tempdir()?;
    let whole = folder.path().join("whole");
    train(config.clone(), whole.clone(), Hooks::default()).await?;
    let metrics = read_metrics(whole.join("metrics.jsonl"))?;
    // The margin is β·h, and h is to be 1/(2β).
    assert!((metrics[&0]["loss"] - 4.0).abs() < 1e-2, "{metrics:?}");
    assert!(metrics[&19]["loss"] < 0.5, "{metrics:?}");
    assert!((metrics[&19]["margin"] - 0.5).abs() < 0.25, "{metrics:?}");

    let halves = folder.path().join("halves");
    let interrupt = Interrupt::default();
    let mut hooks = Hooks::default();
    hooks.interrupt = interrupt.clone();
    let hooks = hooks.on_step(move |report| {
        if report.step == 7 {
            interrupt.set();
        }
    });
    let outcome = train(config.clone(), halves.clone(), hooks).await?;
    assert!(!outcome.finished);
    train(config.clone(), halves.clone(), Hooks::default()).await?;
    let resumed = read_metrics(halves.join("metrics.jsonl"))?;
    for (step, numbers) in &metrics {
        assert_eq!(numbers["loss"], resumed[step]["loss"], "step {step}");
    }

    // With another reference it would be another run, and the base model may be the reference by name.
    config.reference = Some(ReferenceModel::Base(MODEL.to_owned()));
    config.passes.epochs = 11;
    let error = train(config.clone(), halves, Hooks::default()).await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("the reference what it starts from, now tiny"),
        "{error}"
    );
    config.passes.epochs = 1;
    train(config, folder.path().join("base"), Hooks::default()).await?;
    Ok(())
}
