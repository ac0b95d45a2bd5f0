//! Which checkpoints stay, and runs that stop early.

use crate::support::{MODEL, TestServer, renderer};
use anyhow::Result;
use std::path::Path;
use tinkrs::{RestClient, ServiceClient};
use tinkrs_chat::TrainOn;
use tinkrs_recipes::data::{Examples, Record, TooLong};
use tinkrs_recipes::run::{Entry, Hooks, Journal, Outcome, read_metrics};
use tinkrs_recipes::{Decay, Schedule, sft};

fn examples() -> Examples {
    let pair = |n: usize| Record::Pair {
        prompt: format!("the weather is {n}"),
        completion: " degrees warm".to_owned(),
    };
    let records: Vec<_> = (0..10).map(pair).collect();
    let (renderer, train_on) = (renderer(), TrainOn::default());
    let examples = Examples::new(&records, &renderer, train_on, 100, TooLong::Refuse);
    examples.unwrap().split_eval(2, 0).unwrap()
}

/// Six steps, with a checkpoint and an evaluation after each.
fn config() -> sft::Config {
    let mut config = sft::Config::new(MODEL);
    config.learning_rate = Schedule {
        decay: Decay::Constant,
        ..Schedule::new(1e-2)
    };
    config.passes.batch_size = 4;
    config.passes.epochs = 3;
    config.checkpoint_every = 1;
    config.checkpoints.keep_last = 2;
    config.evaluation.every = 1;
    config.adapter.rank = Some(4);
    config
}

/// Makes every step after the first few a bad one.
fn getting_worse(mut config: sft::Config) -> sft::Config {
    config.learning_rate = Schedule {
        warmup_steps: 2,
        ..Schedule::new(3.0)
    };
    config
}

async fn train(
    service: &ServiceClient,
    config: &sft::Config,
    folder: &Path,
) -> Result<Outcome, tinkrs_recipes::Error> {
    sft::train(service, config, &examples(), folder, Hooks::default()).await
}

/// The names of the training checkpoints that the server has of all parts of a run.
async fn on_server(rest: &RestClient, folder: &Path) -> Result<Vec<String>> {
    let journal = Journal::open(folder.join("journal.jsonl"))?;
    let mut runs = Vec::new();
    for entry in journal.entries() {
        if let Entry::Checkpoint { path, .. } = entry
            && !runs.contains(path.run())
        {
            runs.push(path.run().clone());
        }
    }
    let mut names = Vec::new();
    for run in runs {
        for saved in rest.list_checkpoints(&run).await? {
            names.extend(
                saved
                    .checkpoint_id
                    .strip_prefix("weights/")
                    .map(str::to_owned),
            );
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[tokio::test]
async fn older_checkpoints_go_and_others_that_somebody_made_or_published_stay() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let service = server.service();
    let rest = service.create_rest_client();
    let mut config = config();
    config.passes.max_steps = Some(2);
    let outcome = train(&service, &config, folder.path()).await?;
    assert_eq!(
        on_server(&rest, folder.path()).await?,
        ["step-000001", "step-000002"]
    );
    let last = outcome.checkpoint.unwrap();
    rest.publish_checkpoint(&last).await?;
    let mine = service.create_training_client_from_state(last).await?;
    let mine = mine.save_state("mine").await?;

    config.passes.max_steps = None;
    train(&service, &config, folder.path()).await?;
    assert_eq!(
        on_server(&rest, folder.path()).await?,
        ["step-000002", "step-000005", "step-000006"],
        "the published one stays"
    );
    let mine = rest.list_checkpoints(mine.run()).await?;
    assert_eq!(mine.len(), 1, "it is not the run's own");
    Ok(())
}

#[tokio::test]
async fn a_process_that_dies_between_saving_and_deleting_loses_nothing() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let service = server.service();
    let rest = service.create_rest_client();
    let mut config = config();
    config.checkpoints.keep_last = 0;
    config.passes.max_steps = Some(3);
    train(&service, &config, folder.path()).await?;
    // As if each of them had been saved just before the end, with nothing deleted yet.
    assert_eq!(on_server(&rest, folder.path()).await?.len(), 3);
    config.checkpoints.keep_last = 1;
    config.passes.max_steps = Some(4);
    let outcome = train(&service, &config, folder.path()).await?;
    assert_eq!((outcome.finished, outcome.steps), (true, 4));
    assert_eq!(on_server(&rest, folder.path()).await?, ["step-000004"]);
    Ok(())
}

#[tokio::test]
async fn the_best_checkpoint_stays() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let service = server.service();
    let mut config = getting_worse(config());
    config.checkpoints.keep_last = 1;
    config.evaluation.keep_best = true;
    let outcome = train(&service, &config, folder.path()).await?;
    let best = outcome.best.unwrap();
    let metrics = read_metrics(folder.path().join("metrics.jsonl"))?;
    let losses: Vec<f64> = (0..7).map(|step| metrics[&step]["eval_loss"]).collect();
    let lowest = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(best.value, lowest);
    assert_eq!(losses[best.steps], lowest);
    assert!(best.steps < 6, "the settings make it worse: {losses:?}");
    assert_eq!(
        on_server(&service.create_rest_client(), folder.path()).await?,
        [format!("step-{:06}", best.steps), "step-000006".to_owned()]
    );
    assert_eq!((outcome.steps, outcome.best_of), (6, None));
    Ok(())
}

#[tokio::test]
async fn a_run_that_gets_no_better_ends_with_its_best_weights() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let service = server.service();
    let mut config = getting_worse(config());
    config.passes.epochs = 50;
    config.evaluation.early_stop = 2;
    let mut seen = Vec::new();
    let hooks = Hooks::default().on_eval(|report| seen.push((report.steps, report.is_best)));
    let outcome = sft::train(&service, &config, &examples(), folder.path(), hooks).await?;
    let best = outcome.best.unwrap();
    assert!(outcome.finished);
    assert_eq!(outcome.steps, best.steps);
    assert_eq!(outcome.best_of, Some(best.steps + 2));
    assert_eq!(seen.len(), best.steps + 3);
    assert!(seen[best.steps].1 && !seen[best.steps + 1].1);

    // The weights to sample from, and those to go on from, are the best ones.
    let checkpoint = outcome.checkpoint.clone().unwrap();
    assert_eq!(checkpoint.run(), outcome.sampler.as_ref().unwrap().run());
    let tuned = service.create_training_client_from_state(checkpoint);
    let loss = tinkrs_recipes::evaluate::mean_nll(&tuned.await?, &examples().eval).await?;
    assert_eq!(loss, best.value);
    let sampler = service.create_sampling_client(outcome.sampler.clone().unwrap());
    let surprises = tinkrs_recipes::evaluate::surprise(&sampler.await?, &examples().eval).await?;
    let (nats, weight) = surprises
        .iter()
        .fold((0.0, 0.0), |(nats, weight), surprise| {
            (nats + surprise.nats, weight + surprise.weight)
        });
    assert!((nats / weight - best.value).abs() < 1e-4);

    assert_eq!(train(&service, &config, folder.path()).await?, outcome);
    // With more patience it goes on from there.
    config.evaluation.early_stop = 4;
    let later = train(&service, &config, folder.path()).await?;
    assert_eq!(later.steps, best.steps);
    assert_eq!(later.best_of, Some(best.steps + 4));
    Ok(())
}

#[tokio::test]
async fn early_stop_needs_evaluation_data() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let mut config = config();
    config.evaluation.early_stop = 2;
    let mut examples = examples();
    examples.eval.clear();
    let hooks = Hooks::default();
    let refused = sft::train(&server.service(), &config, &examples, folder.path(), hooks).await;
    let error = refused.unwrap_err().to_string();
    assert_eq!(error, "early_stop: 2, but there are no evaluation data");
    Ok(())
}
