//! What a correct server does.

use crate::caller::{get, model, post, result, sample, sampler, session, submit_pass};
use serde_json::json;
use tinkrs_testkit::arithmetic::logprob;
use tinkrs_testkit::{Gate, ScriptedServer};
use tinkrs_wire::op::{asample, forward_backward};

#[tokio::test]
async fn requests_of_a_model_run_in_order_whatever_order_they_arrive_in() {
    let server = ScriptedServer::start().await;
    let model = model(&server).await;
    let third = submit_pass(&server, &model, 3).await.json();
    let second = submit_pass(&server, &model, 2).await.json();
    assert!(server.executions().is_empty(), "the first one is missing");
    submit_pass(&server, &model, 1).await;
    let step = json!({"model_id": model, "seq_id": 4, "adam_params": {"learning_rate": 0.1}});
    let step = post(&server, "optim_step", step).await.json();

    assert_eq!(
        server.executed_in_order(&model),
        [
            "forward_backward",
            "forward_backward",
            "forward_backward",
            "optim_step"
        ]
    );
    let metrics = result(&server, step).await.json();
    assert_eq!(metrics["metrics"], json!({"passes": 3.0, "steps": 1.0}));
    for (promise, target) in [(second, 2), (third, 3)] {
        let answer = result(&server, promise).await;
        assert_eq!(answer.headers["content-type"], "application/x-protobuf");
        let output =
            forward_backward::decode_result("application/x-protobuf", answer.body).unwrap();
        assert_eq!(output.logprobs(0), Some(&[logprob(2), logprob(target)][..]));
        assert_eq!(output.loss(), Some(-f64::from(logprob(target))));
    }
}

#[tokio::test]
async fn a_request_that_is_sent_twice_runs_once() {
    let server = ScriptedServer::start().await;
    let model = model(&server).await;
    let first = submit_pass(&server, &model, 1).await;
    let again = submit_pass(&server, &model, 1).await;
    assert_eq!(first.body, again.body);
    assert_eq!(server.executions().len(), 1);

    let sampler = sampler(&server).await;
    let first = post(&server, "asample", sample(&sampler, 0)).await;
    let again = post(&server, "asample", sample(&sampler, 0)).await;
    assert_eq!(first.body, again.body);
    assert_eq!(
        first.json()["sample_sequence_ids"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn two_payloads_under_one_number_are_a_reason_to_complain() {
    let server = ScriptedServer::start().await;
    let sampler = sampler(&server).await;
    post(&server, "asample", sample(&sampler, 0)).await;
    let mut other = sample(&sampler, 0);
    other["num_samples"] = json!(1);
    let answer = post(&server, "asample", other).await;
    assert_eq!(answer.status, 409);
    assert_eq!(server.take_complaints().len(), 1);
}

#[tokio::test]
#[should_panic(expected = "the scripted server complains")]
async fn a_complaint_fails_the_test() {
    let server = ScriptedServer::start().await;
    let sampler = sampler(&server).await;
    let mut body = sample(&sampler, 0);
    body["prompt"] = json!("text");
    post(&server, "asample", body).await;
}

#[tokio::test]
async fn samples_count_up_and_come_as_a_message_or_as_json() {
    let server = ScriptedServer::start().await;
    let sampler = sampler(&server).await;
    let mut body = sample(&sampler, 0);
    body["prompt_logprobs"] = json!(true);
    let promise = post(&server, "asample", body).await.json();
    let message = result(&server, promise.clone()).await;
    let output = asample::decode_result("application/x-protobuf", message.body).unwrap();
    assert_eq!(output.sequences[0].tokens, [7, 8, 9]);
    assert_eq!(output.sequences[1].tokens, [8, 9, 10]);
    assert_eq!(output.prompt_logprob(0), None);
    assert_eq!(output.prompt_logprob(1), Some(logprob(6)));

    let body = json!({"request_id": promise["request_id"]});
    let answer = post(&server, "retrieve_future", body).await;
    assert_eq!(answer.json()["sequences"][0]["tokens"], json!([7, 8, 9]));
}

#[tokio::test]
async fn a_large_result_is_announced_before_it_is_sent() {
    let server = ScriptedServer::start().await;
    let model = model(&server).await;
    server.inline_limit(10);
    let promise = submit_pass(&server, &model, 1).await.json();
    let answer = result(&server, promise.clone()).await.json();
    assert_eq!(answer["status"], "complete_metadata");
    let body = json!({"request_id": promise["request_id"], "allow_metadata_only": false});
    let answer = post(&server, "retrieve_future", body).await;
    assert!(answer.json()["loss_fn_outputs"].is_array());
}

#[tokio::test]
async fn the_feed_of_completions_goes_on_where_its_cursor_is() {
    let server = ScriptedServer::start().await;
    let gate = Gate::closed();
    server.on("asample").nth(2).hold_result(&gate);
    let sampler = sampler(&server).await;
    let first = post(&server, "asample", sample(&sampler, 0)).await.json();
    let second = post(&server, "asample", sample(&sampler, 1)).await.json();

    let target = json!({"type": "sampling_session", "sampling_session_id": sampler});
    let ask = |cursor: u64| json!({"target": target, "prev_cursor": cursor});
    let news = post(&server, "retrieve_futures", ask(0)).await.json();
    assert_eq!(news["completions"].as_array().unwrap().len(), 1);
    assert_eq!(news["completions"][0]["request_id"], first["request_id"]);
    assert_eq!(news["cursor"], 1);
    let (later, ()) = tokio::join!(post(&server, "retrieve_futures", ask(1)), async {
        server.received("retrieve_futures", 2).await;
        gate.open();
    });
    assert_eq!(
        later.json()["completions"][0]["request_id"],
        second["request_id"]
    );
    let all = post(&server, "retrieve_futures", ask(0)).await.json();
    assert_eq!(all["completions"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_finished_session_takes_no_more_requests() {
    let server = ScriptedServer::start().await;
    let session = session(&server).await;
    let heartbeat = json!({"session_id": session});
    assert_eq!(
        post(&server, "session_heartbeat", heartbeat.clone())
            .await
            .status,
        200
    );
    let finish = json!({"reason": {"type": "success"}, "detail": null});
    post(&server, &format!("sessions/{session}/finish"), finish).await;
    assert_eq!(
        post(&server, "session_heartbeat", heartbeat).await.status,
        410
    );
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "m"});
    assert_eq!(
        post(&server, "create_sampling_session", body).await.status,
        403
    );
}

#[tokio::test]
async fn a_server_on_a_thread_answers_too() {
    let server = ScriptedServer::start_on_thread();
    let answer = get(&server, "/healthz").await;
    assert_eq!(answer.json()["status"], "ok");
}
