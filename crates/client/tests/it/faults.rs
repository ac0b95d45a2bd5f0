//! Nothing is lost and nothing is done twice, whatever breaks.

use crate::support::{batch, builder, datum};
use std::time::Duration;
use tinkrs::{AdamParams, ModelInput, SamplingParams, ServiceClient};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{BASE_MODEL, Gate, Reply, status};

/// Every endpoint that a training run calls.
const STEPS: [&str; 9] = [
    "client_config",
    "create_session",
    "create_model",
    "forward_backward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "asample",
    "retrieve_future",
];

fn impatient(server: &ScriptedServer) -> ServiceClient {
    builder(server)
        .http_timeout(Duration::from_millis(400))
        .build()
}

/// Trains for two steps in chunks, saves and samples; checks results and what the server did.
async fn train(server: &ScriptedServer, fault: &str) {
    server.config(|config| config.fwdbwd_max_chunk_len = 2);
    let service = impatient(server);
    let client = service
        .create_lora_training_client(BASE_MODEL)
        .await
        .expect(fault);
    let mut pending = Vec::new();
    for _ in 0..2 {
        let pass = client.forward_backward(batch(4)).submit();
        let step = client.optim_step(AdamParams::new(1e-3)).submit();
        pending.push((pass, step));
    }
    for (pass, step) in pending {
        let output = pass.await.expect(fault);
        assert_eq!(output.datums(), 4, "{fault}");
        assert!((output.loss().unwrap() - 0.6).abs() < 1e-6, "{fault}");
        step.await.expect(fault);
    }
    client.save_state("end").await.expect(fault);
    let sampler = client
        .save_weights_and_get_sampling_client()
        .await
        .expect(fault);
    let prompt = ModelInput::from_tokens([5]);
    let sampled = sampler
        .sample(prompt, SamplingParams::new(3))
        .await
        .expect(fault);
    assert_eq!(sampled.sequences[0].tokens, [6, 7, 8], "{fault}");

    // The server refuses to execute a number twice or out of order; it must have them all.
    assert_eq!(
        server.executed_in_order(client.model_id()),
        [
            "forward_backward",
            "forward_backward",
            "optim_step",
            "forward_backward",
            "forward_backward",
            "optim_step",
            "save_weights",
            "save_weights_for_sampler",
        ],
        "{fault}"
    );
}

#[tokio::test]
async fn connections_reset_before_the_request_is_read_lose_nothing() {
    for step in STEPS {
        let server = ScriptedServer::start().await;
        server.on(step).unread().times(2).reset();
        train(&server, &format!("{step} reset unread")).await;
    }
}

#[tokio::test]
async fn answers_lost_after_the_work_was_done_duplicate_nothing() {
    for step in STEPS {
        let server = ScriptedServer::start().await;
        server.on(step).executed().times(2).reset();
        train(&server, &format!("{step} reset after it was executed")).await;
    }
}

#[tokio::test]
async fn truncated_answers_are_asked_for_again() {
    for step in STEPS {
        let server = ScriptedServer::start().await;
        server.on(step).executed().truncate(3);
        train(&server, &format!("{step} truncated")).await;
    }
}

#[tokio::test]
async fn stalled_answers_are_asked_for_again() {
    for step in STEPS {
        let server = ScriptedServer::start().await;
        server.on(step).executed().stall_until(&Gate::closed());
        train(&server, &format!("{step} stalled")).await;
    }
}

#[tokio::test]
async fn passing_server_errors_lose_nothing() {
    for step in STEPS {
        let server = ScriptedServer::start().await;
        server
            .on(step)
            .times(2)
            .reply(status(503).header("retry-after-ms", "5"));
        train(&server, &format!("{step} unavailable")).await;
    }
}

#[tokio::test]
async fn an_empty_400_is_taken_for_a_broken_connection() {
    for step in ["forward_backward", "retrieve_future", "asample"] {
        let server = ScriptedServer::start().await;
        server.on(step).reply(status(400).body(""));
        train(&server, &format!("{step} empty 400")).await;
    }
}

#[tokio::test]
async fn an_answer_that_is_not_one_is_an_error_with_the_operation_in_it() {
    let server = ScriptedServer::start().await;
    server.skip_gaps_after(Duration::ZERO);
    let service = impatient(&server);
    let client = service
        .create_lora_training_client(BASE_MODEL)
        .await
        .unwrap();
    server.on("optim_step").reply(Reply::json(&"not a promise"));
    let error = client.optim_step(AdamParams::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "optim_step: the server's answer is not one"
    );
    client.forward_backward(vec![datum(1)]).await.unwrap();
}
