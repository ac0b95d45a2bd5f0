//! Listings, files and bills.

use crate::caller::{Answer, get, post, post_to, send};
use http::Request;
use serde_json::json;
use tinkrs_testkit::ScriptedServer;

#[tokio::test]
async fn pages_of_a_listing_join_without_gaps() {
    let server = ScriptedServer::start().await;
    let mut runs = server.add_runs(5, 2);
    runs.reverse();
    let mut seen = vec![];
    for offset in [0, 2, 4] {
        let page = get(&server, &format!("/training_runs?limit=2&offset={offset}")).await;
        assert_eq!(page.json()["cursor"]["total_count"], 5);
        let page = page.json()["training_runs"].as_array().unwrap().clone();
        seen.extend(page.into_iter().map(|run| run["training_run_id"].clone()));
    }
    assert_eq!(json!(seen), json!(runs), "newest first");
    let all = get(&server, "/checkpoints?limit=100&offset=0").await.json();
    assert_eq!(all["checkpoints"].as_array().unwrap().len(), 10);
}

#[tokio::test]
async fn a_search_goes_on_at_its_cursor() {
    let server = ScriptedServer::start().await;
    server.add_runs(3, 1);
    let first = json!({"limit": 2, "user_metadata": {"kind": "past"}});
    let first = post(&server, "sessions/search", first).await.json();
    assert_eq!(first["sessions"][0]["session_id"], "past-2");
    let next = json!({"limit": 2, "cursor": first["next_cursor"]});
    let next = post(&server, "sessions/search", next).await.json();
    assert_eq!(next["sessions"][0]["session_id"], "past-0");
    assert!(next["next_cursor"].is_null());
    let none = json!({"display_name": "PAST nowhere"});
    let none = post(&server, "sessions/search", none).await.json();
    assert_eq!(none["sessions"], json!([]));
}

#[tokio::test]
async fn a_checkpoint_is_published_once_and_deleted_once() {
    let server = ScriptedServer::start().await;
    let run = &server.add_runs(1, 1)[0];
    let url = format!("training_runs/{run}/checkpoints/weights/step-0");
    let publish = format!("{url}/publish");
    assert_eq!(
        send(&server, post_to(&publish), "").await.unwrap().status,
        200
    );
    assert_eq!(
        send(&server, post_to(&publish), "").await.unwrap().status,
        409
    );
    let delete = || Request::delete(format!("/api/v1/{url}"));
    assert_eq!(send(&server, delete(), "").await.unwrap().status, 200);
    assert_eq!(send(&server, delete(), "").await.unwrap().status, 404);
}

#[tokio::test]
async fn a_signed_file_comes_whole_or_in_parts() {
    let server = ScriptedServer::start().await;
    let model = crate::caller::model(&server).await;
    let save = json!({"model_id": model, "path": "final", "seq_id": 1});
    post(&server, "save_weights_external", save).await;
    let urls =
        format!("/training_runs/{model}/checkpoints/external_weights/final/external_weights_urls");
    let urls = get(&server, &urls).await.json();
    let url = urls["urls"]["adapter_model.safetensors"].as_str().unwrap();
    let path = url.strip_prefix(&server.url()).unwrap();

    let part = |range: &'static str| {
        let request = Request::get(path).header("range", range);
        async { send(&server, request, "").await.unwrap() }
    };
    let whole: Answer = send(&server, Request::get(path), "").await.unwrap();
    let start = part("bytes=0-9").await;
    let rest = part("bytes=10-").await;
    assert_eq!((start.status.as_u16(), start.body.len()), (206, 10));
    assert_eq!([start.body, rest.body].concat(), whole.body);
    assert_eq!(part("bytes=999999-").await.status, 416);
}

#[tokio::test]
async fn the_audit_log_can_be_elsewhere() {
    let (server, other) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let here = get(&server, "/audit?event_type=projects").await;
    assert_eq!(here.json()["entries"].as_array().unwrap().len(), 1);
    server.redirect_audit(&other.url());
    let redirect = get(&server, "/audit?event_type=projects").await;
    assert_eq!(redirect.status, 307);
    let there = redirect.headers["location"].to_str().unwrap();
    let there = Request::get(there.strip_prefix(&other.url()).unwrap());
    assert_eq!(send(&other, there, "").await.unwrap().body, here.body);
}

#[tokio::test]
async fn bills_are_for_whole_hours() {
    let server = ScriptedServer::start().await;
    let bill = |start: &str| {
        format!("/billing/usage/events?starting_on={start}&ending_before=2026-01-02T00%3A00%3A00Z")
    };
    let good = get(&server, &bill("2026-01-01T00%3A00%3A00Z")).await.json();
    assert_eq!(good["data"][0]["event_info"]["type"], "training");
    assert_eq!(
        get(&server, &bill("2026-01-01T00%3A30%3A00Z")).await.status,
        400
    );
    server.add_runs(1, 3);
    let storage = get(&server, "/billing/usage/checkpoints/current")
        .await
        .json();
    assert_eq!(storage["data"][0]["checkpoint_count"], 3);
}

#[tokio::test]
async fn with_tokens_on_only_tokens_are_accepted() {
    let server = ScriptedServer::start().await;
    server.config(|config| config.pjwt_auth_enabled = true);
    assert_eq!(get(&server, "/training_runs").await.status, 401);
    let token = send(&server, post_to("auth/token"), "{}")
        .await
        .unwrap()
        .json();
    let token = token["jwt"].as_str().unwrap();
    assert!(token.starts_with("eyJ"));
    let request = Request::get("/api/v1/training_runs").header("x-api-key", token);
    assert_eq!(send(&server, request, "").await.unwrap().status, 200);
}
