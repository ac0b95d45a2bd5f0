//! Training runs and checkpoints: listing, publishing, expiring and deleting them.

use std::path::Path;

use http::Method;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

use crate::caller::{TestServer, address};

/// Counts the bytes of all files below a folder.
fn bytes_in(folder: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        bytes += if entry.path().is_dir() {
            bytes_in(&entry.path())
        } else {
            entry.metadata().unwrap().len()
        };
    }
    bytes
}

async fn change(server: &TestServer, method: Method, path: &str, body: Value) -> u16 {
    let answer = server.me().call(method, path, &body).await;
    if answer.status.is_client_error() {
        assert!(!answer.detail().is_empty());
    }
    answer.status.as_u16()
}

#[tokio::test]
async fn runs_are_listed_in_pages_with_the_one_used_last_first() {
    let server = TestServer::start().await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(server.model().await);
    }
    let pass = server.forward_backward(&runs[0], 1).await;
    server.loss(&pass).await;
    for restarted in [false, true] {
        let page = server
            .get("/training_runs?limit=2&offset=0&access_scope=owned")
            .await;
        let cursor = json!({"offset": 0, "limit": 2, "total_count": 3});
        assert_eq!(page["cursor"], cursor, "restarted: {restarted}");
        assert_eq!(page["training_runs"].as_array().unwrap().len(), 2);
        assert_eq!(page["training_runs"][0]["training_run_id"], json!(runs[0]));
        let rest = server.get("/training_runs?limit=2&offset=2").await;
        assert_eq!(rest["training_runs"][0]["training_run_id"], json!(runs[1]));
        let none = server
            .get("/training_runs?offset=18446744073709551615")
            .await;
        assert_eq!(none["training_runs"], json!([]));
        if !restarted {
            server.forward_backward(&runs[0], 2).await;
        }
    }
    let run = server
        .get(&format!(
            "/training_runs/{}?access_scope=accessible",
            runs[0]
        ))
        .await;
    assert_eq!(run["base_model"], "tiny");
    assert_eq!(run["is_lora"], true);
    assert_eq!(run["lora_rank"], 4);
    assert_eq!(run["corrupted"], false);
    assert!(run["model_owner"].as_str().unwrap().starts_with("owner-"));
    let server = server.restart(|_| {}).await;
    let again = server.get(&format!("/training_runs/{}", runs[0])).await;
    assert_eq!(again["training_run_id"], run["training_run_id"]);
    assert_eq!(again["model_owner"], run["model_owner"]);
    let missing = change(&server, Method::GET, "/training_runs/none", Value::Null).await;
    assert_eq!(missing, 404);
}

#[tokio::test]
async fn a_run_shows_its_newest_checkpoints_of_both_kinds() {
    let server = TestServer::start().await;
    let model = server.model().await;
    server.save("/save_weights", &model, 1, "old").await;
    let newest = server.save("/save_weights", &model, 2, "new").await;
    let sampler = server
        .save("/save_weights_for_sampler", &model, 3, "s")
        .await;
    server.save("/save_weights_external", &model, 4, "e").await;
    let server = server.restart(|_| {}).await;
    let run = server.get(&format!("/training_runs/{model}")).await;
    assert_eq!(run["last_checkpoint"]["tinker_path"], json!(newest));
    assert_eq!(
        run["last_sampler_checkpoint"]["tinker_path"],
        json!(sampler)
    );

    let path = format!("/training_runs/{model}/checkpoints");
    let list = server.get(&path).await;
    assert_eq!(list["cursor"], Value::Null);
    let ids = |list: &Value| -> Vec<String> {
        let list = list["checkpoints"].as_array().unwrap().iter();
        list.map(|c| c["checkpoint_id"].as_str().unwrap().to_owned())
            .collect()
    };
    let newest_first = [
        "external_weights/e",
        "sampler_weights/s",
        "weights/new",
        "weights/old",
    ];
    assert_eq!(ids(&list), newest_first);
    for (checkpoint, kind) in list["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["external", "sampler", "training", "training"])
    {
        assert_eq!(checkpoint["checkpoint_type"], kind);
        assert_eq!(checkpoint["public"], false);
        assert_eq!(checkpoint["expires_at"], Value::Null);
    }
    assert_eq!(
        server.get(&format!("/models/{model}/checkpoints")).await,
        list
    );
    let page = server.get("/checkpoints?limit=2&offset=1").await;
    assert_eq!(ids(&page), newest_first[1..3]);
    assert_eq!(
        page["cursor"],
        json!({"offset": 1, "limit": 2, "total_count": 4})
    );
}

#[tokio::test]
async fn a_deleted_checkpoint_is_gone_for_good_and_so_are_its_bytes() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let files = server.data().join("checkpoints");
    for (number, operation) in [
        "/save_weights",
        "/save_weights_for_sampler",
        "/save_weights_external",
    ]
    .into_iter()
    .enumerate()
    {
        let path = server.save(operation, &model, number as i64 + 1, "a").await;
        let listed = server.get("/checkpoints").await["checkpoints"][0]["size_bytes"].as_u64();
        // Besides what it says of itself.
        assert!(
            Some(bytes_in(&files)) > listed && listed > Some(0),
            "{operation}"
        );
        // An archive of it does not stay behind either.
        change(
            &server,
            Method::GET,
            &format!("{}/archive", address(&path)),
            Value::Null,
        )
        .await;
        assert_eq!(
            change(&server, Method::DELETE, &address(&path), Value::Null).await,
            200
        );
        assert_eq!(bytes_in(&files), 0, "{operation}");
        assert_eq!(bytes_in(&server.data().join("partial")), 0, "{operation}");
        let again = change(&server, Method::DELETE, &address(&path), Value::Null).await;
        assert_eq!(again, 404, "{operation}");
        let info = server
            .post("/weights_info", json!({"tinker_path": path}))
            .await;
        assert_eq!(info.status, 404, "{operation}");
    }
    let server = server.restart(|_| {}).await;
    assert_eq!(server.get("/checkpoints").await["checkpoints"], json!([]));
    // The name is free again.
    server.save("/save_weights", &model, 4, "a").await;
}

#[tokio::test]
async fn what_samples_from_a_deleted_checkpoint_is_told_so() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let path = server
        .save("/save_weights_for_sampler", &model, 1, "a")
        .await;
    let session = model.split(':').next().unwrap();
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "model_path": path});
    let sampler = server.ok("/create_sampling_session", body).await;
    // What was in memory is not any more.
    let server = server.restart(|_| {}).await;
    let at = address(&path);
    assert_eq!(change(&server, Method::DELETE, &at, Value::Null).await, 200);
    let sample = json!({
        "sampling_session_id": sampler["sampling_session_id"], "seq_id": 0,
        "prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": 1},
    });
    let result = server.me().result("/asample", sample).await;
    assert_eq!(result["category"], "user", "{result}");
    let error = result["error"].as_str().unwrap();
    assert!(error.contains("deleted"), "{error}");
    assert!(!error.contains(server.data().to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_checkpoint_is_named_by_its_kind_and_name() {
    let server = TestServer::start().await;
    let model = server.model().await;
    server.save("/save_weights", &model, 1, "a").await;
    let below = format!("/training_runs/{model}/checkpoints");
    for (path, status) in [
        (format!("{below}/a"), 400),
        (format!("{below}/training/a"), 400),
        (format!("{below}/weights/b"), 404),
        (format!("{below}/sampler_weights/a"), 404),
        (format!("{below}/weights/%2e%2e"), 404),
        (format!("{below}/weights/..%2f..%2fx"), 400),
        (format!("{below}/weights/%ff"), 400),
        (format!("{below}/weights/a"), 200),
    ] {
        assert_eq!(
            change(&server, Method::DELETE, &path, Value::Null).await,
            status,
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_checkpoint_is_published_once_and_taken_back_once() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let path = server.save("/save_weights", &model, 1, "a").await;
    let publish = format!("{}/publish", address(&path));
    let unpublished = server
        .me()
        .call(Method::DELETE, &publish, &Value::Null)
        .await;
    assert_eq!(unpublished.status, 409);
    // The official client would repeat it for minutes.
    assert_eq!(unpublished.headers["x-should-retry"], "false");
    assert!(unpublished.detail().contains("private already"));
    assert_eq!(
        change(&server, Method::POST, &publish, Value::Null).await,
        200
    );
    assert_eq!(
        change(&server, Method::POST, &publish, Value::Null).await,
        409
    );
    let server = server.restart(|_| {}).await;
    let public = |list: Value| list["checkpoints"][0]["public"].clone();
    assert_eq!(public(server.get("/checkpoints").await), true);
    assert_eq!(
        change(&server, Method::POST, &publish, Value::Null).await,
        409
    );
    assert_eq!(
        change(&server, Method::DELETE, &publish, Value::Null).await,
        200
    );
    assert_eq!(public(server.get("/checkpoints").await), false);
    let missing = publish.replace("/a/", "/b/");
    assert_eq!(
        change(&server, Method::POST, &missing, Value::Null).await,
        404
    );
}

#[tokio::test]
async fn a_time_to_live_is_set_in_range_and_taken_away() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let path = server.save("/save_weights", &model, 1, "a").await;
    let ttl = format!("{}/ttl", address(&path));
    let ten_years = 10 * 365 * 24 * 3600_u64;
    for (body, status) in [
        (json!({"ttl_seconds": 3599}), 400),
        (json!({"ttl_seconds": ten_years + 10 * 24 * 3600}), 400),
        (json!({"ttl_seconds": u64::MAX}), 400),
        (json!({"ttl_seconds": -1}), 400),
        (json!({"ttl_seconds": 3600.5}), 400),
        (json!({"ttl_seconds": "3600"}), 400),
        (json!({"ttl_seconds": 3600, "from": "now"}), 400),
        (json!({}), 400),
        (Value::Null, 400),
        (json!({"ttl_seconds": ten_years}), 200),
        (json!({"ttl_seconds": 3600}), 200),
    ] {
        let found = change(&server, Method::PUT, &ttl, body.clone()).await;
        assert_eq!(found, status, "{body}");
    }
    let server = server.restart(|_| {}).await;
    let expires = server.get("/checkpoints").await["checkpoints"][0]["expires_at"].clone();
    let expires: Timestamp = expires.as_str().unwrap().parse().unwrap();
    let hour = Timestamp::now() + 1.hour();
    assert!(
        expires <= hour && expires > hour - 10.minutes(),
        "{expires}"
    );
    let forever = json!({"ttl_seconds": null});
    assert_eq!(change(&server, Method::PUT, &ttl, forever).await, 200);
    let server = server.restart(|_| {}).await;
    let expires = server.get("/checkpoints").await["checkpoints"][0]["expires_at"].clone();
    assert_eq!(expires, Value::Null);
    let missing = ttl.replace("/a/", "/b/");
    assert_eq!(
        change(&server, Method::PUT, &missing, json!({"ttl_seconds": null})).await,
        404
    );
}

#[tokio::test]
async fn changes_beside_a_deletion_never_bring_a_checkpoint_back() {
    let server = TestServer::start().await;
    let model = server.model().await;
    for number in 1..=8 {
        let path = server.save("/save_weights", &model, number, "a").await;
        let at = address(&path);
        let (ttl, publish) = (format!("{at}/ttl"), format!("{at}/publish"));
        let (_, _, deleted) = tokio::join!(
            change(&server, Method::PUT, &ttl, json!({"ttl_seconds": 3600})),
            change(&server, Method::POST, &publish, Value::Null),
            change(&server, Method::DELETE, &at, Value::Null),
        );
        assert_eq!(deleted, 200);
        assert_eq!(server.get("/checkpoints").await["checkpoints"], json!([]));
    }
    let server = server.restart(|_| {}).await;
    assert_eq!(server.get("/checkpoints").await["checkpoints"], json!([]));
}
