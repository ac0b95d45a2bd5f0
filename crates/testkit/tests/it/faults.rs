//! What a server does that was told to misbehave.

use crate::caller::{get, model, post_to, send, submit_pass};
use std::time::Duration;
use tinkrs_testkit::scripted::{ManualClock, status, try_again};
use tinkrs_testkit::{Gate, ScriptedServer};

#[tokio::test]
async fn a_rule_is_about_the_requests_it_counts() {
    let server = ScriptedServer::start().await;
    let rule = server
        .on("healthz")
        .nth(2)
        .times(2)
        .reply(status(503).header("retry-after", "1"));
    let mut seen = vec![];
    for _ in 0..4 {
        seen.push(get(&server, "/healthz").await.status.as_u16());
    }
    assert_eq!(seen, [200, 503, 503, 200]);
    assert_eq!(rule.hits(), 2);
    assert_eq!(server.requests_to("healthz").len(), 4);
}

#[tokio::test]
async fn a_reset_before_execution_leaves_nothing_done() {
    let server = ScriptedServer::start().await;
    let model = model(&server).await;
    for rule in [
        server.on("forward_backward"),
        server.on("forward_backward").unread(),
    ] {
        rule.reset();
        let body = crate::caller::pass(&model, 1);
        let lost = send(&server, post_to("forward_backward"), body).await;
        assert!(lost.is_err());
        assert!(server.executions().is_empty());
    }
    submit_pass(&server, &model, 1).await;
    assert_eq!(server.executions().len(), 1);
}

#[tokio::test]
async fn a_lost_answer_is_of_a_request_that_was_executed() {
    let server = ScriptedServer::start().await;
    let model = model(&server).await;
    server.on("forward_backward").executed().reset();
    server.on("forward_backward").truncate(5);
    for _ in 0..2 {
        let body = crate::caller::pass(&model, 1);
        let lost = send(&server, post_to("forward_backward"), body).await;
        assert!(lost.is_err());
        assert_eq!(server.executions().len(), 1);
    }
}

#[tokio::test]
async fn a_stalled_answer_comes_when_the_gate_opens() {
    let server = ScriptedServer::start().await;
    let gate = Gate::closed();
    let rule = server.on("healthz").stall_until(&gate);
    let (answer, ()) = tokio::join!(get(&server, "/healthz"), async {
        rule.hit(1).await;
        gate.open();
    });
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn connections_can_be_reset_when_they_are_made() {
    let server = ScriptedServer::start().await;
    server.reset_connections(1);
    assert!(send(&server, post_to("client/config"), "{}").await.is_err());
    assert!(send(&server, post_to("client/config"), "{}").await.is_ok());
}

#[tokio::test]
async fn any_operation_can_be_answered_with_anything() {
    let server = ScriptedServer::start().await;
    server.on("*").reply(
        status(200)
            .body("<html>")
            .header("content-type", "text/html"),
    );
    server.on("*").reply(status(400).body(""));
    server.on("*").reply(try_again("paused_capacity", "busy"));
    let garbage = get(&server, "/healthz").await;
    assert_eq!(garbage.headers["content-type"], "text/html");
    let empty = get(&server, "/healthz").await;
    assert_eq!(empty.headers["content-length"], "0");
    assert_eq!(
        get(&server, "/healthz").await.json()["queue_state"],
        "paused_capacity"
    );
}

#[tokio::test]
async fn a_refused_number_is_not_waited_for() {
    let server = ScriptedServer::start().await;
    let model = model(&server).await;
    server.on("forward_backward").seq(1).reply(status(400));
    submit_pass(&server, &model, 1).await;
    submit_pass(&server, &model, 2).await;
    assert_eq!(server.executions().len(), 1);
}

#[tokio::test]
async fn a_manual_clock_moves_only_when_moved_though_sockets_are_real() {
    let clock = ManualClock::start();
    let start = tokio::time::Instant::now();
    let server = ScriptedServer::start().await;
    for _ in 0..20 {
        let answer = tokio::time::timeout(Duration::from_secs(1), get(&server, "/healthz")).await;
        assert!(answer.is_ok(), "the timeout fired by itself");
    }
    assert_eq!(start.elapsed(), Duration::ZERO);

    server.on("healthz").delay(Duration::from_secs(3));
    clock.advance_until(get(&server, "/healthz")).await;
    let took = start.elapsed();
    assert!(
        took >= Duration::from_secs(3) && took < Duration::from_secs(4),
        "{took:?}"
    );
}
