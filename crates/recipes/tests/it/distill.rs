use crate::support::{MODEL, TestServer, renderer};
use anyhow::Result;
use tinkrs::{SamplingClient, SamplingParams, ServiceClient};
use tinkrs_chat::{Conversation, Message, TrainOn};
use tinkrs_recipes::data::{Examples, Record, TooLong};
use tinkrs_recipes::distill::{self, OffPolicyConfig, OnPolicyConfig, PromptConfig, Teachers};
use tinkrs_recipes::run::{Hooks, Interrupt, read_metrics};
use tinkrs_recipes::{Schedule, sft};

/// Returns the same model, trained to say one thing.
async fn teacher(service: &ServiceClient, says: &str) -> Result<SamplingClient> {
    let lesson = Record::Chat(Conversation::from([
        Message::user("hello"),
        Message::assistant(says),
    ]));
    let (renderer, train_on) = (renderer(), TrainOn::default());
    let lessons = Examples::new(&[lesson], &renderer, train_on, 99, TooLong::Refuse)?;
    let mut config = sft::Config::new(MODEL);
    config.learning_rate = Schedule::new(2e-2);
    config.passes.epochs = 8;
    config.adapter.rank = Some(4);
    let school = tempfile::tempdir()?;
    let taught = sft::train(service, &config, &lessons, school.path(), Hooks::default()).await?;
    Ok(service
        .create_sampling_client(taught.sampler.unwrap())
        .await?)
}

#[tokio::test]
async fn the_student_comes_closer_to_its_teacher() -> Result<()> {
    let server = TestServer::start().await;
    let service = server.service();
    let renderer = renderer();
    let teacher = teacher(&service, "the weather").await?;

    let mut config = OnPolicyConfig::new(MODEL);
    config.learning_rate = Schedule::new(4e-2);
    config.policy.steps = 10;
    config.policy.problems_per_step = 1;
    config.policy.group_size = 32;
    config.policy.max_staleness = 0;
    config.adapter.rank = Some(4);
    let folder = tempfile::tempdir()?;
    let prompts = [renderer.prompt(&Conversation::from([Message::user("hello")]))?];
    let params = SamplingParams {
        max_tokens: Some(4),
        ..renderer.sampling_params(4)
    };
    distill::on_policy(
        &service,
        &config,
        teacher,
        &prompts,
        &params,
        folder.path(),
        Hooks::default(),
    )
    .await?;
    let metrics = read_metrics(folder.path().join("metrics.jsonl"))?;
    let distances: Vec<f64> = metrics
        .values()
        .map(|numbers| numbers["kl_reference"])
        .collect();
    assert!(distances[0] > 0.5, "it began far away: {distances:?}");
    assert!(distances[9] < 0.7 * distances[0], "{distances:?}");
    Ok(())
}

#[tokio::test]
async fn a_teacher_is_asked_once_and_its_answers_are_learned() -> Result<()> {
    let server = TestServer::start().await;
    let service = server.service();
    let teacher = service.create_sampling_client(MODEL).await?;
    // A random model ends one message in four within these limits.
    let renderer = renderer();
    let mut config = PromptConfig {
        answers: 32,
        max_tokens: 100,
        ..PromptConfig::new(MODEL, "Answer in rhymes.")
    };
    config.adapter.rank = Some(4);
    config.passes.batch_size = 2;
    config.passes.max_steps = Some(2);
    let questions = ["hello", "fine?"].map(|text| Conversation::from([Message::user(text)]));
    let folder = tempfile::tempdir()?;
    let train = |config: PromptConfig, questions: [Conversation; 2]| {
        let (service, teacher, renderer) = (&service, &teacher, &renderer);
        let (folder, hooks) = (folder.path(), Hooks::default());
        async move {
            distill::prompt(
                service, &config, teacher, renderer, &questions, folder, hooks,
            )
            .await
        }
    };
    let outcome = train(config.clone(), questions.clone()).await?;
    assert_eq!(outcome.steps, 2);
    let taught = Record::read(folder.path().join("distilled.jsonl"))?;
    for record in &taught {
        let Record::Chat(chat) = record else {
            panic!("not a chat: {record:?}")
        };
        assert_eq!(
            chat.messages.len(),
            2,
            "the student does not see the instructions"
        );
    }
    assert_eq!(train(config.clone(), questions.clone()).await?, outcome);

    // Other questions or instructions have other answers than those that are kept.
    let other_questions = [questions[0].clone(), questions[0].clone()];
    let told_otherwise = PromptConfig {
        instructions: "Answer in prose.".to_owned(),
        ..config.clone()
    };
    for other in [
        train(config.clone(), other_questions),
        train(told_otherwise, questions.clone()),
    ] {
        let error = other.await.unwrap_err().to_string();
        assert!(error.contains("cannot be resumed: its teacher"), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn each_of_several_teachers_teaches_its_own_prompts() -> Result<()> {
    let server = TestServer::start().await;
    let service = server.service();
    let renderer = renderer();
    let teachers = vec![
        teacher(&service, "the weather").await?,
        teacher(&service, "is fine").await?,
    ];
    let mut config = OnPolicyConfig::new(MODEL);
    config.learning_rate = Schedule::new(4e-2);
    config.policy.steps = 12;
    config.policy.problems_per_step = 2;
    config.policy.group_size = 24;
    config.policy.max_staleness = 0;
    config.kl_discount = 0.5;
    config.adapter.rank = Some(4);
    let prompt = |text: &str| renderer.prompt(&Conversation::from([Message::user(text)]));
    let prompts = [prompt("hello")?, prompt("what?")?];
    let params = renderer.sampling_params(4);
    let folder = tempfile::tempdir()?;
    let train = |teachers: Teachers| {
        let (service, folder) = (&service, folder.path());
        let (config, prompts, params, hooks) = (&config, &prompts, &params, Hooks::default());
        async move {
            distill::on_policy(service, config, teachers, prompts, params, folder, hooks).await
        }
    };
    train(Teachers::new(teachers.clone(), vec![0, 1])).await?;
    let metrics = read_metrics(folder.path().join("metrics.jsonl"))?;
    let (first, last) = (metrics[&0]["kl_reference"], metrics[&11]["kl_reference"]);
    assert!(last < 0.8 * first, "from {first} to {last}");
    // Another teacher for a prompt would be another run.
    let other = train(Teachers::new(teachers.clone(), vec![1, 1])).await;
    let error = other.unwrap_err().to_string();
    assert!(error.contains("other examples"), "{error}");
    let unknown = train(Teachers::new(teachers, vec![0, 2])).await;
    let error = unknown.unwrap_err().to_string();
    assert!(
        error.contains("other examples") || error.contains("model 2"),
        "{error}"
    );
    Ok(())
}

#[tokio::test]
async fn the_likeliest_tokens_of_a_teacher_are_learned_and_resumed_bit_for_bit() -> Result<()> {
    let server = TestServer::start().await;
    let service = server.service();
    let renderer = renderer();
    let teacher = teacher(&service, "the weather").await?;
    let mut config = OffPolicyConfig::new(MODEL);
    config.top_k = 8;
    config.answers = 8;
    config.max_tokens = 60;
    config.learning_rate = Schedule::new(2e-2);
    config.passes.batch_size = 4;
    config.passes.epochs = 6;
    config.adapter.rank = Some(4);
    let questions = [
        Conversation::from([Message::user("hello")]),
        // An answer that is there already is only rated.
        Conversation::from([Message::user("hello"), Message::assistant("the weather")]),
    ];
    let folder = tempfile::tempdir()?;
    let train = |config: OffPolicyConfig, name: &str, hooks: Hooks<'static>| {
        let (service, teacher, renderer) = (&service, &teacher, &renderer);
        let (questions, folder) = (&questions, folder.path().join(name));
        async move {
            distill::off_policy(
                service, &config, teacher, renderer, questions, folder, hooks,
            )
            .await
        }
    };
    let whole = train(config.clone(), "whole", Hooks::default()).await?;
    let metrics = read_metrics(folder.path().join("whole/metrics.jsonl"))?;
    let distances: Vec<f64> = metrics
        .values()
        .map(|numbers| numbers["kl_teacher"])
        .collect();
    let (first, last) = (distances[0], distances[distances.len() - 1]);
    assert!(distances.iter().all(|distance| *distance > -1e-6));
    assert!(last < 0.3 * first, "{distances:?}");

    let interrupt = Interrupt::default();
    let mut hooks = Hooks::default();
    hooks.interrupt = interrupt.clone();
    let hooks = hooks.on_step(move |_| interrupt.set());
    assert!(!train(config.clone(), "halves", hooks).await?.finished);
    let again = train(config.clone(), "halves", Hooks::default()).await?;
    assert_eq!(again.steps, whole.steps);
    let resumed = read_metrics(folder.path().join("halves/metrics.jsonl"))?;
    for (step, numbers) in &metrics {
        assert_eq!(numbers["loss"], resumed[step]["loss"], "step {step}");
    }
    config.top_k = 4;
    let error = train(config, "halves", Hooks::default()).await.unwrap_err();
    assert!(
        error.to_string().contains("its teacher was asked"),
        "{error}"
    );
    Ok(())
}
