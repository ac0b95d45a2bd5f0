use crate::support::{MODEL, TestServer, renderer};
use anyhow::Result;
use tinkrs_chat::Message;
use tinkrs_recipes::Schedule;
use tinkrs_recipes::data::{DataSet, Store, TooLong};
use tinkrs_recipes::dpo::Preference;
use tinkrs_recipes::reward::{self, Asking, JudgedPair, QUESTION, RewardModel};
use tinkrs_recipes::run::{Hooks, Interrupt, read_metrics};

/// Short answers are better.
fn pairs(asking: &Asking) -> Vec<JudgedPair> {
    let preference = |n: usize| Preference {
        messages: Some(vec![Message::user(format!("what is {n}?"))]),
        prompt: None,
        chosen: "fine".to_owned(),
        rejected: "a question is the weather".to_owned(),
    };
    (0..8)
        .map(|n| asking.pair(&preference(n)).unwrap())
        .collect()
}

#[tokio::test]
async fn the_better_answer_is_worth_more_after_training_and_resuming() -> Result<()> {
    let server = TestServer::start().await;
    let service = server.service();
    let asking = Asking::new(&renderer(), QUESTION)?;
    let mut train = pairs(&asking);
    let eval = train.split_off(6);
    let split = DataSet {
        eval,
        ..DataSet::from(train)
    };
    let mut config = reward::Config::new(MODEL);
    config.learning_rate = Schedule::new(1e-2);
    config.passes.batch_size = 3;
    config.passes.epochs = 4;
    config.evaluation.every = 4;
    config.adapter.rank = Some(4);
    let folder = tempfile::tempdir()?;
    let whole = folder.path().join("whole");
    let outcome = reward::train(&service, &config, &split, &whole, Hooks::default()).await?;
    let metrics = read_metrics(whole.join("metrics.jsonl"))?;
    assert!(
        metrics[&7]["loss"] < 0.5 * metrics[&0]["loss"],
        "{metrics:?}"
    );
    assert_eq!(metrics[&8]["eval_accuracy"], 1.0, "{metrics:?}");

    let sampler = service
        .create_sampling_client(outcome.sampler.unwrap())
        .await?;
    let model = RewardModel::new(sampler, asking);
    let before = [Message::user("what is 9?")];
    let better = model.score(&before, "fine").await?;
    let worse = model.score(&before, "a question is the weather").await?;
    assert!(better > worse + 0.5, "{better} and {worse}");

    let halves = folder.path().join("halves");
    let interrupt = Interrupt::default();
    let mut hooks = Hooks::default();
    hooks.interrupt = interrupt.clone();
    let hooks = hooks.on_step(move |_| interrupt.set());
    let stopped = reward::train(&service, &config, &split, &halves, hooks).await?;
    assert!(!stopped.finished && stopped.steps == 1);
    reward::train(&service, &config, &split, &halves, Hooks::default()).await?;
    let resumed = read_metrics(halves.join("metrics.jsonl"))?;
    for step in 0..8 {
        assert_eq!(
            metrics[&step]["loss"], resumed[&step]["loss"],
            "step {step}"
        );
    }
    Ok(())
}

#[test]
fn judged_pairs_in_a_temporary_file_are_those_in_memory() -> Result<()> {
    let asking = Asking::new(&renderer(), QUESTION)?;
    let memory = Store::from(pairs(&asking));
    let mut disk = Store::with_limit(0);
    for pair in pairs(&asking) {
        disk.push(pair)?;
    }
    assert!(format!("{disk:?}").contains("in_memory: false"));
    assert_eq!(memory, disk);
    assert_eq!(
        (memory.longest(), memory.tokens(3)),
        (disk.longest(), disk.tokens(3))
    );
    Ok(())
}

#[test]
fn what_cannot_be_judged_is_named() -> Result<()> {
    let error = Asking::new(&renderer(), " ").unwrap_err().to_string();
    assert_eq!(error, "question: it is empty");
    let asking = Asking::new(&renderer(), QUESTION)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pairs.jsonl");
    let long = "fine ".repeat(99);
    std::fs::write(
        &path,
        format!(
            "{{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}}\n\
             {{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"{long}\"}}\n"
        ),
    )?;
    let pairs = asking.read(&path, 80, TooLong::Skip)?;
    assert_eq!((pairs.train.len(), pairs.skipped), (1, 1));
    for too_long in [TooLong::Refuse, TooLong::Truncate] {
        let error = asking.read(&path, 80, too_long).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
    std::fs::write(&path, "{\"prompt\": \"q\", \"chosen\": \"a\"}\n")?;
    let error = asking.read(&path, 80, TooLong::Skip).unwrap_err();
    assert!(format!("{:#}", anyhow::Error::from(error)).contains("rejected"));
    Ok(())
}
