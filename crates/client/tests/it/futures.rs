//! Fetching results: every answer that a poll can get.

use crate::support::{datums, executed_tags, loss_of, sample, sampling, settle, training};
use anyhow::Result;
use std::time::Duration;
use tinkrs::{AdamParams, Error, TrainingClient};
use tinkrs_testkit::scripted::{
    ManualClock, Recorded, Reply, Rules, failed, not_yet, refuse, status, try_again,
};
use tinkrs_testkit::{Gate, ScriptedServer};

/// Makes the next polls for passes get this answer.
fn polls(server: &ScriptedServer, times: usize, reply: Reply) -> Rules {
    server
        .on("retrieve_future")
        .for_request_type("ForwardBackward")
        .times(times)
        .reply(reply)
}

async fn pass(client: &TrainingClient) -> Result<tinkrs::ForwardBackwardOutput, Error> {
    client.forward_backward(datums([3])).await
}

#[tokio::test]
async fn the_iteration_header_counts_up_and_the_round_trip_comes_once() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    polls(&server, 2, not_yet("active", ""));
    polls(&server, 1, status(500));
    polls(&server, 1, try_again("active", ""));
    clock.advance_until(pass(&client)).await?;

    let mut requests = server.requests_to("retrieve_future");
    requests.retain(|request| request.header("x-tinker-request-type") == Some("ForwardBackward"));
    let header = |name: &'static str| requests.iter().map(move |request| request.header(name));
    let iterations: Vec<_> = header("x-tinker-request-iteration").flatten().collect();
    assert_eq!(iterations, ["0", "1", "2", "3", "4"]);
    let trips: Vec<_> = header("x-tinker-create-promise-roundtrip-time").collect();
    assert!(trips[0].unwrap().parse::<f64>().is_ok());
    assert!(trips[1..].iter().all(Option::is_none));
    Ok(())
}

#[tokio::test]
async fn each_kind_of_result_is_asked_for_in_its_form() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    pass(&client).await?;
    client.forward(datums([1])).await?;
    client.optim_step(AdamParams::new(0.1)).await?;
    sample(&sampling(&server).await?).await?;
    let kinds: Vec<_> = server
        .requests_to("retrieve_future")
        .iter()
        .map(|request| {
            let header = |name| request.header(name).unwrap_or_default().to_owned();
            (header("x-tinker-request-type"), header("accept"))
        })
        .collect();
    let message = "application/x-protobuf".to_owned();
    let json = "application/json".to_owned();
    let expected = [
        ("CreateModel".to_owned(), json.clone()),
        ("ForwardBackward".to_owned(), message.clone()),
        ("Forward".to_owned(), message.clone()),
        ("OptimStep".to_owned(), json),
        ("Sample".to_owned(), message),
    ];
    assert_eq!(kinds, expected);
    Ok(())
}

#[tokio::test]
async fn json_results_of_older_servers_are_read() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.json_results();
    server.no_sequence_ids();
    let client = training(&server).await?;
    assert_eq!(pass(&client).await?.loss(), Some(loss_of(3)));
    let output = sample(&sampling(&server).await?).await?;
    assert_eq!(output.sequences[0].tokens, [7, 8, 9]);
    assert!(output.sequences[0].id.is_some(), "the client names it");
    Ok(())
}

#[tokio::test]
async fn passes_go_as_json_to_servers_that_take_nothing_else() -> Result<()> {
    let not_understood = serde_json::json!({"detail": [
        {"type": "model_attributes_type", "loc": ["body"], "msg": "Input should be a dictionary"},
    ]});
    let mut refused = status(422);
    refused = refused.body(not_understood.to_string());
    let broken = status(500).header("content-type", "text/plain; charset=utf-8");
    for answer in [refused, status(415), broken.body("Internal Server Error")] {
        let server = ScriptedServer::start().await;
        server.json_results();
        server.json_passes(answer);
        // Some close the connection behind their answer, and the next request meets that.
        server.on("forward_backward").nth(2).reset();
        let client = training(&server).await?;
        for _ in 0..2 {
            assert_eq!(pass(&client).await?.loss(), Some(loss_of(3)));
        }
        let forward = client.forward(datums([3])).await?;
        assert_eq!(forward.loss(), Some(loss_of(3)));
        let kinds = |operation| -> Vec<String> {
            let requests = server.requests_to(operation);
            let kind = |request: &Recorded| request.header("content-type").unwrap().to_owned();
            requests.iter().map(kind).collect()
        };
        let json = "application/json";
        assert_eq!(
            kinds("forward_backward"),
            ["application/x-protobuf", json, json, json],
            "what the server takes is asked once"
        );
        assert_eq!(kinds("forward"), [json]);
        assert_eq!(executed_tags(&server), [[3], [3], [3]]);
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_broke_down_once_still_gets_messages() -> Result<()> {
    let server = ScriptedServer::start().await;
    let broken = status(500).header("content-type", "text/plain; charset=utf-8");
    let broken = broken.body("Internal Server Error");
    // The message, and what is then tried as JSON.
    server.on("forward_backward").times(2).reply(broken);
    let client = training(&server).await?;
    assert_eq!(pass(&client).await?.loss(), Some(loss_of(3)));
    assert_eq!(pass(&client).await?.loss(), Some(loss_of(3)));
    let requests = server.requests_to("forward_backward");
    let kinds: Vec<_> = requests
        .iter()
        .map(|request| request.header("content-type"))
        .collect();
    let message = Some("application/x-protobuf");
    assert_eq!(kinds, [message, Some("application/json"), message, message]);
    assert_eq!(executed_tags(&server), [[3], [3]]);
    Ok(())
}

#[tokio::test]
async fn a_large_result_is_asked_for_twice() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    server.inline_limit(10);
    assert_eq!(pass(&client).await?.loss(), Some(loss_of(3)));
    let mut requests = server.requests_to("retrieve_future");
    requests.retain(|request| request.header("x-tinker-request-type") == Some("ForwardBackward"));
    let allowed: Vec<_> = requests
        .iter()
        .map(|request| request.json()["allow_metadata_only"].clone())
        .collect();
    assert_eq!(allowed, [true, false]);
    Ok(())
}

#[tokio::test]
async fn the_size_alone_twice_is_an_error() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let size = serde_json::json!({"status": "complete_metadata", "response_payload_size": 5});
    polls(&server, 2, Reply::json(&size));
    let error = pass(&client).await.unwrap_err();
    assert!(matches!(error, Error::Answer { .. }), "{error}");
    Ok(())
}

#[tokio::test]
async fn not_yet_is_never_given_up_on() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    polls(&server, 20, not_yet("active", ""));
    polls(&server, 20, status(408).body("no JSON"));
    polls(&server, 20, try_again("never heard of it", ""));
    clock.advance_until(pass(&client)).await?;
    Ok(())
}

#[tokio::test]
async fn trouble_is_polled_through_but_not_in_a_hot_loop() -> Result<()> {
    for trouble in [
        status(500),
        status(503),
        status(429),
        try_again("active", ""),
    ] {
        let clock = ManualClock::start();
        let server = ScriptedServer::start().await;
        let client = training(&server).await?;
        let polled = polls(&server, 6, trouble);
        let pending = client.forward_backward(datums([3])).submit();
        polled.hit(1).await;
        settle().await;
        assert_eq!(polled.hits(), 1, "no time passed, so nothing is sent");
        clock.advance_until(pending).await?;
        assert_eq!(polled.hits(), 6);
        drop(clock);
        tokio::time::resume();
    }
    Ok(())
}

#[tokio::test]
async fn broken_polls_are_repeated() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let on = || {
        server
            .on("retrieve_future")
            .for_request_type("ForwardBackward")
    };
    on().reset();
    on().executed().reset();
    on().truncate(3);
    on().reply(status(400).body("")); // what load balancers send for lost connections
    clock.advance_until(pass(&client)).await?;
    assert_eq!(server.executions().len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_stalled_poll_times_out_and_is_repeated() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let never = Gate::closed();
    let stalled = server
        .on("retrieve_future")
        .for_request_type("ForwardBackward")
        .stall_until(&never);
    let start = tokio::time::Instant::now();
    clock.advance_until(pass(&client)).await?;
    assert_eq!(stalled.hits(), 1);
    let took = start.elapsed();
    assert!(
        took >= Duration::from_secs(45) && took < Duration::from_secs(60),
        "{took:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_bad_request_is_repeated_three_times() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let refused = polls(&server, 3, refuse(400, "not now"));
    clock.advance_until(pass(&client)).await?;
    assert_eq!(refused.hits(), 3);

    let refused = polls(&server, 4, refuse(400, "not ever"));
    let error = clock.advance_until(pass(&client)).await.unwrap_err();
    assert_eq!(error.status(), Some(400));
    assert_eq!(refused.hits(), 4);
    Ok(())
}

#[tokio::test]
async fn other_statuses_are_final() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    for code in [401, 403, 404, 409, 422, 425] {
        let refused = polls(&server, 2, refuse(code, "no"));
        let error = pass(&client).await.unwrap_err();
        assert_eq!(error.status(), Some(code));
        assert_eq!(refused.hits(), 1, "status {code}");
        // Use up the rule, so that the next status is the next answer.
        let _ = pass(&client).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_lost_promise_of_training_is_an_error() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    polls(&server, 1, status(410));
    let error = pass(&client).await.unwrap_err();
    assert!(matches!(error, Error::PromiseLost { .. }), "{error}");
    assert!(error.is_retryable());
    assert_eq!(server.executions().len(), 1, "it is not submitted again");
    Ok(())
}

#[tokio::test]
async fn a_failure_keeps_its_message_category_and_request() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    for (category, retryable) in [("user", false), ("server", true), ("whatever", false)] {
        polls(&server, 1, failed("boom", category));
        let error = pass(&client).await.unwrap_err();
        assert!(error.to_string().contains("boom"), "{error}");
        assert!(error.request_id().is_some());
        assert_eq!(error.is_retryable(), retryable, "{category}");
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_is_none_is_an_error_and_not_a_panic() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    for garbage in [
        Reply::message(&b"\xff\xff\xff"[..]),
        Reply::json(&"text"),
        Reply::json(&serde_json::json!({"metrics": 7})),
        Reply::json(&serde_json::json!({})).body("{\"half\":"),
        Reply::json(&serde_json::json!({}))
            .body("<html>")
            .header("content-type", "text/html"),
    ] {
        polls(&server, 1, garbage.clone());
        let error = pass(&client).await.unwrap_err();
        assert!(
            matches!(error, Error::Answer { .. }),
            "{garbage:?}: {error}"
        );
    }
    Ok(())
}
