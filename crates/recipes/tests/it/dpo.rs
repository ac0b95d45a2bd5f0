use crate::support::{MODEL, TestServer, renderer};
use anyhow::Result;
use tinkrs_chat::Message;
use tinkrs_recipes::Schedule;
use tinkrs_recipes::data::Split;
use tinkrs_recipes::dpo::{self, Pair, Preference};
use tinkrs_recipes::run::{Hooks, read_metrics};

fn pairs() -> Vec<Pair> {
    let preference = |n: usize| Preference {
        messages: Some(vec![Message::user(format!("what is {n}?"))]),
        prompt: None,
        chosen: "fine".to_owned(),
        rejected: "a question".to_owned(),
    };
    let renderer = renderer();
    (0..6)
        .map(|n| preference(n).pair(&renderer).unwrap())
        .collect()
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
async fn pairs_that_are_set_apart_are_evaluated() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let mut config = dpo::Config::new(MODEL);
    config.learning_rate = Schedule::new(1e-2);
    config.passes.batch_size = 2;
    config.evaluation.every = 2;
    config.adapter.rank = Some(4);
    let pairs = pairs();
    let (train, eval) = pairs.split_at(4);
    let split = Split { train, eval };
    let hooks = Hooks::default();
    dpo::train(&server.service(), &config, split, folder.path(), hooks).await?;
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
