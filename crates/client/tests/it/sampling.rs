//! Sampling: options, results, retries, cancellation, handles.

use crate::support::{builder, sample, sampling, service, settle, training};
use anyhow::Result;
use std::collections::BTreeSet;
use std::time::Duration;
use tinkrs::sampling::{RetryConfig, Stop};
use tinkrs::tensor::CsrIndices;
use tinkrs::{Error, ErrorCategory, ModelInput, SamplingClient, SamplingParams, TensorData};
use tinkrs_testkit::arithmetic::logprob;
use tinkrs_testkit::scripted::{BASE_MODEL, ManualClock, Reply, status};
use tinkrs_testkit::{Gate, ScriptedServer};
use tinkrs_types::protocol::SAMPLE_SEQ_BLOCK;

#[tokio::test]
async fn a_sample_has_tokens_logprobs_and_ids() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?;
    let prompt = ModelInput::from_tokens([5, 6]);
    let output = client
        .sample(prompt, SamplingParams::new(3))
        .num_samples(2)
        .await?;
    let [first, second] = &output.sequences[..] else {
        panic!("{output:?}")
    };
    assert_eq!(first.tokens, [7, 8, 9]);
    assert_eq!(second.tokens, [8, 9, 10]);
    assert_eq!(first.logprobs.as_deref(), Some(&[7, 8, 9].map(logprob)[..]));
    assert!(first.id.is_some() && first.id != second.id);
    let request = &server.requests_to("asample")[0];
    assert_eq!(request.header("x-tinker-sampling-backpressure"), Some("1"));
    assert_eq!(request.json()["type"], "sample");
    Ok(())
}

#[tokio::test]
async fn every_option_reaches_the_server_and_its_result_comes_back() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?;
    let csr = CsrIndices {
        crow: vec![0, 1, 1, 2],
        col: vec![1, 0],
    };
    let params = SamplingParams {
        seed: Some(7),
        stop: Some(Stop::Never),
        temperature: 0.5,
        ..SamplingParams::new(2)
    };
    let output = client
        .sample(ModelInput::from_tokens([3, 4, 5, 6]), params)
        .prompt_logprobs(true)
        .prompt_logprobs_last_n(2)
        .topk_prompt_logprobs(2)
        .topk_sample_logprobs(3)
        .target_prompt_logprobs(TensorData::sparse(vec![9_i64, -1], csr.clone(), [3, 2])?)
        .prompt_alt_tokens(2)
        .await?;

    let scored: Vec<_> = (0..4).map(|i| output.prompt_logprob(i)).collect();
    assert_eq!(scored, [None, None, Some(logprob(5)), Some(logprob(6))]);
    let topk = output.topk_prompt_logprobs.as_ref().unwrap();
    assert!(topk.row(1).is_none() && topk.row(2).is_some());
    assert_eq!(output.sequences[0].topk_logprobs.as_ref().unwrap().k(), 3);
    let targets = output.target_prompt_logprobs.as_ref().unwrap();
    assert_eq!(
        targets,
        &TensorData::sparse(vec![logprob(9), 0.0], csr, [3, 2])?
    );
    let alternatives = output.prompt_alt_tokens.as_ref().unwrap();
    assert_eq!(alternatives.tokens.shape(), Some(&[3, 2][..]));

    let body = server.requests_to("asample")[0].json();
    assert_eq!(body["sampling_params"]["stop"], serde_json::json!([]));
    assert_eq!(body["sampling_params"]["seed"], 7);
    assert_eq!(body["prompt_logprobs_last_n"], 2);
    assert_eq!(body["prompt_alt_tokens_k"], 2);
    Ok(())
}

#[tokio::test]
async fn logprobs_of_a_prompt_are_computed_without_sampling_more_than_a_token() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?;
    let logprobs = client
        .compute_logprobs(ModelInput::from_tokens([3, 4, 5]))
        .await?;
    assert!(logprobs[0].is_nan());
    assert_eq!(logprobs[1..], [logprob(4), logprob(5)]);
    let body = server.requests_to("asample")[0].json();
    assert_eq!(body["sampling_params"]["max_tokens"], 1);
    assert_eq!(body["prompt_logprobs"], true);
    Ok(())
}

#[tokio::test]
async fn bad_options_are_refused_before_anything_is_sent() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?;
    let prompt = || ModelInput::from_tokens([1, 2]);
    let ask = || client.sample(prompt(), SamplingParams::new(1));
    let cold = SamplingParams {
        temperature: -1.0,
        ..SamplingParams::new(1)
    };
    for bad in [
        ask().num_samples(0),
        ask().prompt_logprobs_last_n(1),
        ask().prompt_logprobs(true).prompt_logprobs_last_n(0),
        ask().target_prompt_logprobs(vec![1.0].into()),
        client.sample(prompt(), SamplingParams::new(0)),
        client.sample(prompt(), cold),
    ] {
        let error = bad.await.unwrap_err();
        assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    }
    assert!(server.requests_to("asample").is_empty());
    Ok(())
}

#[tokio::test]
async fn a_server_that_ignores_an_option_is_found_out() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?;
    let prompt = ModelInput::from_tokens([3, 4, 5]);
    // All positions are scored although one was asked for, and there are no alternatives.
    let message = |output| Reply::message(tinkrs_wire::op::asample::encode_result(output));
    let mut output = tinkrs::SampleOutput::default();
    output.sequences = vec![tinkrs::sampling::SampledSequence::new(
        vec![1],
        tinkrs::sampling::StopReason::Length,
    )];
    output.prompt_logprobs = Some(vec![f32::NAN, -0.1, -0.2]);
    server.on("retrieve_future").times(2).reply(message(output));
    let last = client
        .sample(prompt.clone(), SamplingParams::new(1))
        .prompt_logprobs(true)
        .prompt_logprobs_last_n(1);
    assert!(matches!(last.await.unwrap_err(), Error::Answer { .. }));
    let alternatives = client
        .sample(prompt, SamplingParams::new(1))
        .prompt_alt_tokens(2);
    assert!(matches!(
        alternatives.await.unwrap_err(),
        Error::Answer { .. }
    ));
    Ok(())
}

#[tokio::test]
async fn a_410_during_sampling_resubmits() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?;
    server.on("retrieve_future").reply(status(410));
    let output = clock.advance_until(sample(&client)).await?;
    assert_eq!(output.sequences[0].tokens, [7, 8, 9]);
    let requests = server.requests_to("asample");
    let numbers: Vec<_> = requests.iter().map(|request| request.seq_id()).collect();
    assert_eq!(numbers, [Some(0), Some(1)], "as a new request");
    Ok(())
}

#[tokio::test]
async fn lost_and_refused_samples_are_retried_but_failed_ones_are_not() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?;
    server.on("asample").reply(status(500));
    server.on("asample").executed().reset();
    server.on("asample").truncate(3);
    server.on("asample").reply(status(409));
    clock.advance_until(sample(&client)).await?;
    let requests = server.requests_to("asample");
    let first = &requests[0].body;
    assert!(
        requests.iter().all(|request| request.body == *first),
        "one request"
    );

    server
        .on("asample")
        .fail_result("PromptTooLong", ErrorCategory::User);
    let error = clock.advance_until(sample(&client)).await.unwrap_err();
    assert_eq!(error.category(), Some(ErrorCategory::User));
    server.on("asample").reply(status(422));
    let error = clock.advance_until(sample(&client)).await.unwrap_err();
    assert_eq!(error.status(), Some(422));
    Ok(())
}

#[tokio::test]
async fn without_retries_a_lost_sample_is_an_error() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.sample_no_retries = true);
    let client = sampling(&server).await?;
    server.on("retrieve_future").reply(status(410));
    let error = sample(&client).await.unwrap_err();
    assert!(matches!(error, Error::PromiseLost { .. }), "{error}");
    Ok(())
}

#[tokio::test]
async fn samples_that_make_no_progress_are_given_up() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?.with_retry_config(RetryConfig {
        progress_timeout: Duration::from_secs(20),
        ..RetryConfig::default()
    });
    server.on("asample").always().hold_result(&Gate::closed());
    let pending = [sample(&client), sample(&client)];
    for sample in pending {
        let error = clock.advance_until(sample).await.unwrap_err();
        assert!(matches!(error, Error::Stuck { .. }), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn retries_are_set_where_a_sampler_is_made_and_cost_it_no_number() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.sample_join_sampling_session = true);
    let never = RetryConfig {
        enabled: false,
        ..RetryConfig::default()
    };
    let service = service(&server);
    let opened = service
        .create_sampling_client(BASE_MODEL)
        .retry_config(never.clone())
        .await?;
    let saved = training(&server)
        .await?
        .save_weights_and_get_sampling_client()
        .retry_config(never)
        .await?;
    for client in [opened, saved] {
        sample(&client).await?;
        server.on("retrieve_future").reply(status(410));
        let error = sample(&client).await.unwrap_err();
        assert!(matches!(error, Error::PromiseLost { .. }), "{error}");
    }
    assert!(server.requests_to("join_sampling_session").is_empty());
    Ok(())
}

#[tokio::test]
async fn a_sampling_session_is_attached_to_by_its_id() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.sample_join_sampling_session = true);
    let first = sampling(&server).await?;
    let id = first.sampling_session_id().clone();
    let second = service(&server)
        .attach_sampling_client(id.clone())
        .record_stability_info(true)
        .await?;
    let tokens = [sample(&first).await?, sample(&second).await?];
    let tokens = tokens.map(|output| output.sequences[0].tokens.clone());
    assert_eq!(tokens[0], tokens[1]);
    assert_eq!(second.sampling_session_id(), &id);
    assert_eq!(server.requests_to("create_sampling_session").len(), 1);
    let samples = server.requests_to("asample");
    assert_ne!(samples[0].seq_id(), samples[1].seq_id());
    let records = samples.iter().map(|request| {
        let body: serde_json::Value = serde_json::from_slice(&request.body)?;
        Ok(body["record_stability_info"].clone())
    });
    let records: Result<Vec<_>> = records.collect();
    assert_eq!(records?, [false, true]);
    Ok(())
}

#[tokio::test]
async fn more_samples_than_may_be_under_way_complete() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?;
    let ask = |n: u32| {
        client
            .sample(vec![n % 100], SamplingParams::new(1))
            .submit()
    };
    let pending: Vec<_> = (0..2_500).map(ask).collect();
    for (n, sample) in pending.into_iter().enumerate() {
        assert_eq!(sample.await?.sequences[0].tokens, [n as u32 % 100 + 1]);
    }
    let requests = server.requests_to("asample");
    let numbers: BTreeSet<_> = requests.iter().map(|request| request.seq_id()).collect();
    assert_eq!((requests.len(), numbers.len()), (2_500, 2_500));
    Ok(())
}

#[tokio::test]
async fn a_dropped_sample_is_cancelled() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.dynamic_config(|config| config.sample_cancel_enabled = true);
    let never = Gate::closed();
    server.on("asample").always().hold_result(&never);
    let client = sampling(&server).await?;
    let pending: Vec<_> = (0..3).map(|_| sample(&client)).collect();
    let polled = server.received("retrieve_future", 3).await;
    drop(pending);
    server.received("cancel_future", 3).await;
    settle().await;
    let cancelled: BTreeSet<_> = server.cancelled().into_iter().collect();
    let polled = polled.iter().map(|request| request.json());
    let polled = polled.map(|body| body["request_id"].as_str().unwrap().into());
    assert_eq!(cancelled, polled.collect());
    Ok(())
}

#[tokio::test]
async fn a_dropped_sample_is_left_alone_if_the_server_wants_it_so() -> Result<()> {
    let server = ScriptedServer::start().await;
    let never = Gate::closed();
    server.on("asample").hold_result(&never);
    let client = sampling(&server).await?;
    let pending = sample(&client);
    server.received("retrieve_future", 1).await;
    drop(pending);
    sample(&client).await?;
    settle().await;
    assert!(server.requests_to("cancel_future").is_empty());
    Ok(())
}

#[tokio::test]
async fn a_timeout_drops_and_so_cancels_a_sample() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.dynamic_config(|config| config.sample_cancel_enabled = true);
    server.on("asample").hold_result(&Gate::closed());
    let client = sampling(&server).await?;
    let impatient = tokio::time::timeout(Duration::from_millis(50), sample(&client));
    assert!(impatient.await.is_err());
    server.received("cancel_future", 1).await;
    Ok(())
}

#[tokio::test]
async fn a_handle_makes_a_client_with_numbers_of_its_own() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.sample_join_sampling_session = true);
    let client = sampling(&server).await?;
    let handle = client.to_handle();
    let clone = SamplingClient::from_handle_with(&handle, builder(&server)).await?;
    assert_eq!(clone.sampling_session_id(), client.sampling_session_id());
    assert_eq!(clone.session_id(), client.session_id());
    let (first, second) = (sample(&clone), sample(&clone));
    first.await?;
    second.await?;
    sample(&client).await?;
    let numbers: BTreeSet<_> = server
        .requests_to("asample")
        .iter()
        .map(|request| request.seq_id().unwrap() as u64)
        .collect();
    assert_eq!(
        numbers,
        BTreeSet::from([0, SAMPLE_SEQ_BLOCK, SAMPLE_SEQ_BLOCK + 1])
    );
    assert_eq!(server.requests_to("join_sampling_session").len(), 1);
    assert_eq!(server.requests_to("create_session").len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_clone_numbers_itself_where_the_server_does_not() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?;
    let settings = builder(&server);
    let clone = SamplingClient::from_handle_with(&client.to_handle(), settings).await?;
    sample(&clone).await?;
    let number = server.requests_to("asample")[0].seq_id().unwrap() as u64;
    assert!(number >= SAMPLE_SEQ_BLOCK && number.is_multiple_of(SAMPLE_SEQ_BLOCK));
    assert!(server.requests_to("join_sampling_session").is_empty());
    Ok(())
}

#[tokio::test]
async fn the_sampler_of_a_checkpoint_knows_its_base_model() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = crate::support::service(&server);
    let training = service.create_lora_training_client("test/model").await?;
    let path = training.save_weights_for_sampler("v1").await?;
    let sampler = service.create_sampling_client(path.clone()).await?;
    assert_eq!(sampler.get_base_model().await?, "test/model");
    assert_eq!(sampler.get_info().await?.model_path, Some(path));

    let unnamed = training.save_weights_and_get_sampling_client().await?;
    assert_eq!(unnamed.get_base_model().await?, "test/model");
    let ids = [sampler, unnamed].map(|client| client.sampling_session_id().clone());
    assert_ne!(ids[0], ids[1], "they share one series of numbers");

    let wrong = training.save_state("s1").await?;
    let error = service.create_sampling_client(wrong).await.unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    Ok(())
}
