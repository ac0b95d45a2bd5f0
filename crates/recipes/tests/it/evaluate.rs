use crate::support::{MODEL, TestServer, renderer};
use anyhow::Result;
use tinkrs::SamplingParams;
use tinkrs_chat::{Conversation, Example, Message};
use tinkrs_recipes::evaluate::{
    check_logprobs, exact_match, grade, mean_nll, sample_records, surprise,
};

#[tokio::test]
async fn the_sampler_and_the_trainer_agree() -> Result<()> {
    let server = TestServer::start().await;
    let training = server
        .service()
        .create_lora_training_client(MODEL)
        .rank(4)
        .seed(1)
        .await?;
    let check = check_logprobs(&training, &[vec![5, 6, 7], vec![9]], 8, 3).await?;
    assert!(check.tokens >= 2, "{check:?}");
    assert!(check.largest_difference < 1e-4, "{check:?}");
    Ok(())
}

#[tokio::test]
async fn surprise_is_counted_per_token_that_counts() -> Result<()> {
    let server = TestServer::start().await;
    let training = server
        .service()
        .create_lora_training_client(MODEL)
        .rank(4)
        .await?;
    let one = Example::from_prompt_completion(&[5, 6], &[7]);
    let single = mean_nll(&training, std::slice::from_ref(&one)).await?;
    let twice = mean_nll(&training, &[one.clone(), one]).await?;
    assert!((single - twice).abs() < 1e-6);
    assert!(
        (3.0..12.0).contains(&single),
        "a random model of 416 tokens: {single}"
    );
    assert!(mean_nll(&training, &[]).await.is_err());

    let sampler = server.service().create_sampling_client(MODEL).await?;
    let long = Example::from_prompt_completion(&[5, 6], &[7, 8, 9]);
    let asked = surprise(&sampler, std::slice::from_ref(&long)).await?[0];
    assert_eq!(asked.weight, 3.0);
    let trained = mean_nll(&training, &[long]).await?;
    assert!(
        (asked.mean() - trained).abs() < 1e-4,
        "{asked:?}, {trained}"
    );
    Ok(())
}

#[tokio::test]
async fn answers_are_graded_in_the_order_of_the_questions() -> Result<()> {
    let server = TestServer::start().await;
    let sampler = server.service().create_sampling_client(MODEL).await?;
    let renderer = renderer();
    let questions = ["a", "b", "c"].map(|text| Conversation::from([Message::user(text)]));
    let params = SamplingParams {
        temperature: 0.0,
        ..renderer.sampling_params(4)
    };
    let known = grade(&sampler, &renderer, &questions, &params, |_, _| 0.0).await?;
    let expected: Vec<String> = known
        .answers
        .iter()
        .map(|a| a.message.content.clone())
        .collect();
    let graded = grade(&sampler, &renderer, &questions, &params, |index, answer| {
        exact_match(answer, &expected[index])
    });
    assert_eq!(graded.await?.scores, [1.0; 3]);
    let records = sample_records(&sampler, &renderer, &questions, &params, 7).await?;
    assert_eq!((records[1].steps, records[1].prompt.as_str()), (7, "b"));
    assert_eq!(records[1].answer, expected[1]);
    Ok(())
}
