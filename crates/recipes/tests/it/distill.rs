use crate::support::{MODEL, TestServer, renderer};
use anyhow::Result;
use tinkrs::SamplingParams;
use tinkrs_chat::{Conversation, Message, TrainOn};
use tinkrs_recipes::data::{Examples, Record, TooLong};
use tinkrs_recipes::distill::{self, OnPolicyConfig, PromptConfig};
use tinkrs_recipes::run::{Hooks, read_metrics};
use tinkrs_recipes::{Schedule, sft};

#[tokio::test]
async fn the_student_comes_closer_to_its_teacher() -> Result<()> {
    let server = TestServer::start().await;
    let service = server.service();
    let renderer = renderer();
    // The teacher is the same model, trained to say one thing.
    let lesson = Record::Chat(Conversation::from([
        Message::user("hello"),
        Message::assistant("the weather"),
    ]));
    let lessons = Examples::new(
        &[lesson],
        &renderer,
        TrainOn::default(),
        99,
        TooLong::Refuse,
    )?;
    let mut config = sft::Config::new(MODEL);
    config.learning_rate = Schedule::new(2e-2);
    config.passes.epochs = 8;
    config.adapter.rank = Some(4);
    let school = tempfile::tempdir()?;
    let taught = sft::train(&service, &config, &lessons, school.path(), Hooks::default()).await?;
    let teacher = service
        .create_sampling_client(taught.sampler.unwrap())
        .await?;

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
