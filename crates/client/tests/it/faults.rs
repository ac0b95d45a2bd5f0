//! Faults at every step of a run lose nothing and duplicate nothing.
//!
//! One run touches every kind of submission. It is repeated with one fault at one step, for all
//! faults and steps, and must give the same results and the same executions each time.

use crate::support::{builder, datums, executed_tags, loss_of};
use anyhow::{Context, Result};
use tinkrs::{AdamParams, ModelInput, SamplingParams};
use tinkrs_testkit::scripted::{BASE_MODEL, ManualClock, On, Reply, status};
use tinkrs_testkit::{Gate, ScriptedServer};

/// Something that goes wrong once.
type Fault = (&'static str, fn(On<'_>));

const FAULTS: [Fault; 10] = [
    ("reset before the request is read", |on| {
        drop(on.unread().reset())
    }),
    ("reset before execution", |on| drop(on.reset())),
    ("reset after execution", |on| drop(on.executed().reset())),
    ("an answer without its body", |on| drop(on.truncate(0))),
    ("half an answer", |on| drop(on.truncate(7))),
    ("a stall before execution", |on| {
        drop(on.stall_until(&Gate::closed()))
    }),
    ("a stall after execution", |on| {
        drop(on.executed().stall_until(&Gate::closed()))
    }),
    ("unavailable before execution", |on| {
        drop(on.reply(status(503)))
    }),
    ("unavailable after execution", |on| {
        drop(on.executed().reply(status(502)))
    }),
    // What load balancers answer for connections that they have lost.
    ("an empty 400", |on| drop(on.reply(status(400).body("")))),
];

/// A step: the operation, and for polls the type of result.
const STEPS: [(&str, Option<&str>); 16] = [
    ("client_config", None),
    ("client_dynamic_config", None),
    ("create_session", None),
    ("create_model", None),
    ("retrieve_future", Some("CreateModel")),
    ("forward_backward", None),
    ("retrieve_future", Some("ForwardBackward")),
    ("optim_step", None),
    ("retrieve_future", Some("OptimStep")),
    ("save_weights", None),
    ("retrieve_future", Some("SaveWeights")),
    ("save_weights_for_sampler", None),
    ("retrieve_future", Some("SaveWeightsForSampler")),
    ("create_sampling_session", None),
    ("asample", None),
    ("retrieve_future", Some("Sample")),
];

/// Trains two steps in several chunks, saves, and samples from what was saved.
async fn run(server: &ScriptedServer) -> Result<()> {
    let service = builder(server).build();
    let client = service.create_lora_training_client(BASE_MODEL).await?;
    let mut pending = vec![];
    for step in 0..2 {
        let first = 1 + 5 * step;
        let pass = client.forward_backward(datums(first..first + 5)).submit();
        let update = client.optim_step(AdamParams::new(0.1)).submit();
        pending.push((first, pass, update));
    }
    let state = client.save_state("state").submit();
    let weights = client.save_weights_for_sampler("weights").submit();
    for (first, pass, update) in pending {
        let output = pass.await?;
        for (index, tag) in (first..first + 5).enumerate() {
            let logprobs = output.logprobs(index).context("a datum is missing")?;
            assert_eq!(-f64::from(logprobs[1]), loss_of(tag));
        }
        let metrics = update.await?.metrics.context("no metrics")?;
        assert_eq!(metrics["passes"], 3.0, "three chunks a step");
    }
    assert_eq!(state.await?.name(), "state");
    let sampler = service.create_sampling_client(weights.await?).await?;
    let prompt = ModelInput::from_tokens([5, 6]);
    let output = sampler
        .sample(prompt, SamplingParams::new(3))
        .num_samples(2)
        .await?;
    assert_eq!(output.sequences[0].tokens, [7, 8, 9]);
    assert_eq!(output.sequences[1].tokens, [8, 9, 10]);

    let pass = "forward_backward";
    let step = [pass, pass, pass, "optim_step"];
    let expected = [
        &step[..],
        &step,
        &["save_weights", "save_weights_for_sampler"],
    ]
    .concat();
    assert_eq!(server.executed_in_order(client.model_id()), expected);
    let tags = executed_tags(server);
    assert_eq!(
        tags,
        [
            vec![1, 2],
            vec![3, 4],
            vec![5],
            vec![6, 7],
            vec![8, 9],
            vec![10]
        ]
    );
    Ok(())
}

async fn run_with(step: (&'static str, Option<&'static str>), nth: usize, fault: Fault) {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    server.config(|config| config.fwdbwd_max_chunk_len = 2);
    let on = server.on(step.0).nth(nth);
    fault.1(match step.1 {
        Some(request_type) => on.for_request_type(request_type),
        None => on,
    });
    let result = clock.leap_until(run(&server)).await;
    result.unwrap_or_else(|error| panic!("{step:?}, {}: {error:?}", fault.0));
    assert_eq!(server.take_complaints(), [""; 0], "{step:?}, {}", fault.0);
}

/// Runs with this fault at every step.
async fn at_every_step(fault: usize) {
    for step in STEPS {
        run_with(step, 1, FAULTS[fault]).await;
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_run_without_faults_is_as_expected() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.fwdbwd_max_chunk_len = 2);
    run(&server).await
}

#[tokio::test]
async fn resets_before_the_request_is_read_lose_nothing() {
    at_every_step(0).await;
}

#[tokio::test]
async fn resets_before_execution_lose_nothing() {
    at_every_step(1).await;
}

#[tokio::test]
async fn resets_after_execution_duplicate_nothing() {
    at_every_step(2).await;
}

#[tokio::test]
async fn answers_without_a_body_duplicate_nothing() {
    at_every_step(3).await;
}

#[tokio::test]
async fn truncated_answers_duplicate_nothing() {
    at_every_step(4).await;
}

#[tokio::test]
async fn stalls_before_execution_lose_nothing() {
    at_every_step(5).await;
}

#[tokio::test]
async fn stalls_after_execution_duplicate_nothing() {
    at_every_step(6).await;
}

#[tokio::test]
async fn error_statuses_lose_and_duplicate_nothing() {
    at_every_step(7).await;
    at_every_step(8).await;
}

#[tokio::test]
async fn an_empty_400_is_taken_for_a_broken_connection() {
    at_every_step(9).await;
}

#[tokio::test]
async fn every_chunk_may_meet_every_fault() {
    for nth in 1..=6 {
        for fault in FAULTS {
            run_with(("forward_backward", None), nth, fault).await;
            tokio::time::resume();
        }
    }
}

#[tokio::test]
async fn a_response_that_cannot_be_parsed_is_an_error_with_the_operation_in_it() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.skip_gaps_after(std::time::Duration::from_millis(50));
    let client = crate::support::training(&server).await?;
    server.on("optim_step").reply(Reply::json(&"not a promise"));
    let error = client.optim_step(AdamParams::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "optim_step: could not parse the server's response"
    );
    client.forward_backward(datums([1])).await?;
    Ok(())
}

#[tokio::test]
async fn a_run_gets_through_a_server_that_loses_every_third_answer() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    server.config(|config| config.fwdbwd_max_chunk_len = 2);
    server
        .on("*")
        .executed()
        .always()
        .when(|request| request.index % 3 == 2)
        .reset();
    clock.leap_until(run(&server)).await
}
