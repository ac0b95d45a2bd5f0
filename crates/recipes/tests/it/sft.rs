use crate::support::{MODEL, TestServer, renderer};
use anyhow::Result;
use std::path::Path;
use tinkrs_chat::TrainOn;
use tinkrs_recipes::data::{Examples, Record, TooLong, read_jsonl};
use tinkrs_recipes::run::{Entry, Hooks, Interrupt, Journal, StepNumbers, read_metrics};
use tinkrs_recipes::{Schedule, sft};

fn examples() -> Examples {
    let pair = |n: usize| Record::Pair {
        prompt: format!("the weather is {n}"),
        completion: " degrees warm".to_owned(),
    };
    let records: Vec<_> = (0..10).map(pair).collect();
    let examples = Examples::new(
        &records,
        &renderer(),
        TrainOn::default(),
        100,
        TooLong::Refuse,
    );
    examples.unwrap().split_eval(2, 0).unwrap()
}

fn config() -> sft::Config {
    let mut config = sft::Config::new(MODEL);
    config.learning_rate = Schedule::new(1e-2);
    config.passes.batch_size = 3;
    config.passes.epochs = 2;
    config.checkpoint_every = 2;
    config.evaluation.every = 2;
    config.adapter.rank = Some(4);
    config
}

/// The settings of [`config`] in a run folder, as written before 0.1.
const OLD_CONFIG: &str = r#"{
  "adapter": {"base_model": "tiny", "rank": 4, "seed": 0},
  "learning_rate": {"peak": 0.01, "warmup_steps": 0, "decay": "linear", "floor": 0.0},
  "batch_size": 3, "epochs": 2, "max_steps": null, "seed": 0, "checkpoint_every": 2, "eval_every": 2,
  "adam": {"learning_rate": 0.0001, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0,
    "grad_clip_norm": 0.0}
}
"#;

fn losses(folder: &Path) -> Vec<f64> {
    let metrics = read_metrics(folder.join("metrics.jsonl")).unwrap();
    metrics
        .values()
        .filter_map(|numbers| numbers.get("loss").copied())
        .collect()
}

/// Which step each row of the metrics is about, and what it has, but for the order.
fn rows(folder: &Path) -> Vec<(usize, Vec<String>)> {
    let rows: Vec<StepNumbers> = read_jsonl(folder.join("metrics.jsonl")).unwrap();
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|row| (row.step, row.numbers.into_keys().collect()))
        .collect();
    rows.sort();
    rows
}

fn steps_saved(entry: &Entry) -> Option<usize> {
    match entry {
        Entry::Checkpoint { steps, .. } => Some(*steps),
        _ => None,
    }
}

#[tokio::test]
async fn two_steps_learn_and_leave_a_folder() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let mut config = config();
    config.passes.max_steps = Some(2);
    config.evaluation.every = 1;
    let mut seen = Vec::new();
    let hooks = Hooks::default().on_step(|report| seen.push((report.step, report.steps)));
    let service = server.service();
    let outcome = sft::train(&service, &config, &examples(), folder.path(), hooks).await?;
    assert!(outcome.finished && outcome.sampler.is_some());
    assert_eq!(seen, [(0, 2), (1, 2)]);
    let metrics = read_metrics(folder.path().join("metrics.jsonl"))?;
    let eval: Vec<f64> = (0..3).map(|step| metrics[&step]["eval_loss"]).collect();
    assert!(eval[2] < eval[0], "the loss on new examples went {eval:?}");
    let sampler = service
        .create_sampling_client(outcome.sampler.clone().unwrap())
        .await?;
    assert_eq!(sampler.get_base_model().await?, MODEL);

    // Nothing is left to do, and nothing is done.
    let again = sft::train(
        &service,
        &config,
        &examples(),
        folder.path(),
        Hooks::default(),
    )
    .await?;
    assert_eq!(again, outcome);
    Ok(())
}

#[tokio::test]
async fn an_interrupted_run_goes_on_as_if_nothing_had_happened() -> Result<()> {
    let server = TestServer::start().await;
    let (whole, parts) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let service = server.service();
    let (config, examples) = (config(), examples());
    sft::train(&service, &config, &examples, whole.path(), Hooks::default()).await?;

    let mut rounds = 0;
    loop {
        let interrupt = Interrupt::default();
        let mut hooks = Hooks::default();
        hooks.interrupt = interrupt.clone();
        // At every step: each round gets one or two done.
        let hooks = hooks.on_step(move |_| interrupt.set());
        let outcome = sft::train(&service, &config, &examples, parts.path(), hooks).await?;
        // As a version before 0.1 would have left the folder.
        std::fs::write(parts.path().join("config.json"), OLD_CONFIG)?;
        rounds += 1;
        if outcome.finished {
            break;
        }
    }
    assert!(rounds > 2, "it was interrupted: {rounds}");
    assert_eq!(losses(whole.path()), losses(parts.path()));
    let journals = [whole.path(), parts.path()].map(|folder| {
        let journal = Journal::open(folder.join("journal.jsonl")).unwrap();
        let steps = journal.surviving_steps();
        steps
            .into_iter()
            .map(|(step, batch)| (step, batch.to_vec()))
            .collect::<Vec<_>>()
    });
    assert_eq!(journals[0], journals[1], "the same batches, each once");
    assert_eq!(journals[0].len(), 6);
    Ok(())
}

#[tokio::test]
async fn a_run_does_not_go_on_with_another_rank() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let (service, examples) = (server.service(), examples());
    let interrupt = Interrupt::default();
    let mut hooks = Hooks::default();
    hooks.interrupt = interrupt.clone();
    let hooks = hooks.on_step(move |_| interrupt.set());
    let outcome = sft::train(&service, &config(), &examples, folder.path(), hooks).await?;
    assert!(!outcome.finished);
    let mut other = config();
    let rank = other.adapter.rank.unwrap_or(32) + 1;
    other.adapter.rank = Some(rank);
    let went_on = sft::train(&service, &other, &examples, folder.path(), Hooks::default()).await;
    let error = went_on.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("rank: {rank}, but tinker://")),
        "{error}"
    );
    Ok(())
}

#[tokio::test]
async fn a_lost_process_loses_only_what_is_behind_its_checkpoint() -> Result<()> {
    let server = TestServer::start().await;
    let (whole, parts) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let service = server.service();
    let (config, examples) = (config(), examples());
    sft::train(&service, &config, &examples, whole.path(), Hooks::default()).await?;

    // The future is dropped in the middle, as a killed process would be.
    let (reached, wait) = tokio::sync::oneshot::channel();
    let mut reached = Some(reached);
    let hooks = Hooks::default().on_step(|report| {
        if report.step == 2 {
            reached.take().map(|reached| reached.send(()));
        }
    });
    tokio::select! {
        biased;
        _ = wait => {}
        _ = sft::train(&service, &config, &examples, parts.path(), hooks) => {}
    }
    sft::train(&service, &config, &examples, parts.path(), Hooks::default()).await?;
    assert_eq!(losses(whole.path()), losses(parts.path()));
    assert_eq!(rows(parts.path()), rows(whole.path()), "none twice");
    let journal = Journal::open(parts.path().join("journal.jsonl"))?;
    let steps: Vec<usize> = journal
        .surviving_steps()
        .iter()
        .map(|(step, _)| *step)
        .collect();
    assert_eq!(steps, [0, 1, 2, 3, 4, 5]);
    Ok(())
}

#[tokio::test]
async fn a_checkpoint_because_of_the_time_replaces_the_one_before() -> Result<()> {
    let server = TestServer::start().await;
    let (whole, parts) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let service = server.service();
    let (mut config, examples) = (config(), examples());
    config.checkpoint_every = 3;
    sft::train(&service, &config, &examples, whole.path(), Hooks::default()).await?;
    // Any step takes longer than this.
    config.checkpoints.seconds = 1e-9;
    let outcome = sft::train(&service, &config, &examples, parts.path(), Hooks::default()).await?;
    assert_eq!(losses(whole.path()), losses(parts.path()));
    let journal = Journal::open(parts.path().join("journal.jsonl"))?;
    let saved: Vec<usize> = journal.entries().iter().filter_map(steps_saved).collect();
    assert_eq!(saved, [1, 2, 3, 4, 5, 6]);
    let rest = service.create_rest_client();
    let kept = rest
        .list_checkpoints(outcome.checkpoint.unwrap().run())
        .await?;
    let kept = kept.iter();
    let mut kept: Vec<_> = kept.map(|saved| saved.checkpoint_id.as_str()).collect();
    kept.sort_unstable();
    let expected = [
        "sampler_weights/final",
        "weights/step-000003",
        "weights/step-000006",
    ];
    assert_eq!(kept, expected);
    Ok(())
}

#[tokio::test]
async fn a_folder_of_another_run_is_refused() -> Result<()> {
    let server = TestServer::start().await;
    let folder = tempfile::tempdir()?;
    let mut config = config();
    config.passes.max_steps = Some(1);
    let service = server.service();
    sft::train(
        &service,
        &config,
        &examples(),
        folder.path(),
        Hooks::default(),
    )
    .await?;
    let mut other = config;
    other.passes.batch_size = 4;
    other.passes.max_steps = Some(2);
    let refused = sft::train(
        &service,
        &other,
        &examples(),
        folder.path(),
        Hooks::default(),
    )
    .await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("cannot be resumed"), "{error}");
    Ok(())
}
