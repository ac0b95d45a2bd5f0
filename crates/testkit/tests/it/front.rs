//! A scripted server in front of another.

use crate::caller::{get, post_to, send};
use http::Request;
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{Reply, status};

#[tokio::test]
async fn what_no_rule_is_about_is_answered_by_the_server_behind() {
    let behind = ScriptedServer::start().await;
    let listing = Reply::json(&serde_json::json!({"sessions": []})).header("x-request-id", "r7");
    behind.on("list_sessions").always().reply(listing);
    behind.on("file").reply(Reply::message("content"));
    let front = ScriptedServer::in_front_of(&behind.url()).await;

    let answer = get(&front, "/sessions?limit=3").await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body[..]),
        (200, &b"{\"sessions\":[]}"[..])
    );
    assert_eq!(answer.headers["x-request-id"], "r7");
    for server in [&front, &behind] {
        let requests = server.requests_to("list_sessions");
        assert_eq!(requests[0].query()["limit"], "3");
        assert_eq!(requests[0].key(), Some("tml-test"));
    }
    let file = send(&front, Request::get("/files/7?signature=s"), "").await;
    assert_eq!(file.unwrap().body, "content");

    front.on("list_sessions").reply(status(503));
    assert_eq!(get(&front, "/sessions").await.status, 503);
    assert_eq!(behind.requests_to("list_sessions").len(), 1);
    front.on("list_sessions").executed().reply(status(500));
    assert_eq!(get(&front, "/sessions").await.status, 500);
    assert_eq!(behind.requests_to("list_sessions").len(), 2);
    assert_eq!(get(&front, "/sessions").await.status, 200);
}

#[tokio::test]
async fn alone_it_leaves_listings_out() {
    let server = ScriptedServer::start().await;
    assert_eq!(get(&server, "/training_runs").await.status, 404);
}

#[tokio::test]
async fn with_tokens_on_only_tokens_are_accepted() {
    let server = ScriptedServer::start().await;
    server.config(|config| config.pjwt_auth_enabled = true);
    assert_eq!(get(&server, "/get_server_capabilities").await.status, 401);
    let token = send(&server, post_to("auth/token"), "{}")
        .await
        .unwrap()
        .json();
    let token = token["jwt"].as_str().unwrap();
    assert!(token.starts_with("eyJ"));
    let request = Request::get("/api/v1/get_server_capabilities").header("x-api-key", token);
    assert_eq!(send(&server, request, "").await.unwrap().status, 200);
}
