//! Copies of checkpoints.

use std::path::{Path, PathBuf};

use http::Method;
use serde_json::{Value, json};

use crate::caller::{Answer, TestServer, address, pass};

async fn copy(server: &TestServer, key: &str, body: Value) -> Answer {
    let headers = [
        ("content-type", "application/json"),
        ("x-idempotency-key", key),
    ];
    server
        .send(Method::POST, "/copy_weights", &headers, body.to_string())
        .await
}

fn path_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["tinker_path"].as_str().unwrap().to_owned()
}

/// Lists the files below a folder.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() {
            files.extend(files_in(&entry.path()))
        } else {
            files.push(entry.path())
        }
    }
    files.sort();
    files
}

/// Trains a step, so that the weights are not those of a new model, and saves both kinds.
async fn trained(server: &TestServer) -> (String, String, String) {
    let model = server.model().await;
    server.forward_backward(&model, 1).await;
    server.optim_step(&model, 2).await;
    let state = server.save("/save_weights", &model, 3, "state").await;
    let sampler = server
        .save("/save_weights_for_sampler", &model, 4, "sampler")
        .await;
    (model, state, sampler)
}

async fn sample(server: &TestServer, path: &str) -> Value {
    let session = server.session().await;
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "model_path": path});
    let sampler = server.ok("/create_sampling_session", body).await;
    let body = json!({
        "sampling_session_id": sampler["sampling_session_id"], "seq_id": 0, "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [1, 5]}]}, "sampling_params": {"max_tokens": 6, "seed": 3},
    });
    let id = server.promise("/asample", body).await;
    server.result(&id).await["sequences"].clone()
}

#[tokio::test]
async fn a_copy_shares_the_files_of_its_source_and_outlives_it() {
    let server = TestServer::start().await;
    let (model, state, sampler) = trained(&server).await;
    let expected = sample(&server, &sampler).await;
    let files = files_in(&server.data().join("checkpoints"));

    let state_copy = path_of(&copy(&server, "a", json!({"source_path": state})).await);
    let body = json!({"source_path": sampler, "destination_project_id": "local"});
    let sampler_copy = path_of(&copy(&server, "b", body).await);
    assert!(
        state_copy.ends_with(":train:0/weights/state"),
        "{state_copy}"
    );
    assert!(
        sampler_copy.ends_with("/sampler_weights/sampler"),
        "{sampler_copy}"
    );
    assert_eq!(
        files_in(&server.data().join("checkpoints")),
        files,
        "nothing was written"
    );
    let usage = server.get("/billing/usage/checkpoints/current").await;
    let on_disk: u64 = files
        .iter()
        .filter(|file| !file.ends_with("manifest.jsonl"))
        .map(|file| file.metadata().unwrap().len())
        .sum();
    assert_eq!(usage["data"][0]["checkpoint_count"], 4);
    assert_eq!(
        usage["data"][0]["size_bytes"],
        json!(on_disk),
        "shared files count once"
    );

    for source in [&state, &sampler] {
        let deleted = server
            .me()
            .call(Method::DELETE, &address(source), &Value::Null)
            .await;
        assert_eq!(deleted.status, 200);
    }
    assert_eq!(
        files_in(&server.data().join("checkpoints")),
        files,
        "they are still used"
    );
    let server = server.restart(|_| {}).await;
    assert_eq!(
        files_in(&server.data().join("checkpoints")),
        files,
        "they are still used"
    );
    assert_eq!(sample(&server, &sampler_copy).await, expected);

    // A run that loads the copy goes on as the source's run does.
    let uninterrupted = server.forward_backward(&model, 5).await;
    let resumed = server.model().await;
    let load = json!({"model_id": resumed, "seq_id": 1, "path": state_copy, "optimizer": true});
    let loaded = server.promise("/load_weights", load).await;
    assert_eq!(server.result(&loaded).await["path"], json!(state_copy));
    let found = server.forward_backward(&resumed, 2).await;
    assert_eq!(server.loss(&found).await, server.loss(&uninterrupted).await);

    for path in [&state_copy, &sampler_copy] {
        let deleted = server
            .me()
            .call(Method::DELETE, &address(path), &Value::Null)
            .await;
        assert_eq!(deleted.status, 200);
    }
    assert_eq!(
        files_in(&server.data().join("checkpoints")),
        Vec::<PathBuf>::new()
    );
}

#[tokio::test]
async fn a_repeated_copy_is_the_same_one() {
    let server = TestServer::start().await;
    let (_, state, sampler) = trained(&server).await;
    let body = json!({"source_path": state});
    let first = path_of(&copy(&server, "key", body.clone()).await);
    assert_eq!(path_of(&copy(&server, "key", body.clone()).await), first);
    let server = server.restart(|_| {}).await;
    assert_eq!(path_of(&copy(&server, "key", body.clone()).await), first);
    let other = path_of(&copy(&server, "other", body.clone()).await);
    assert_ne!(other, first);
    let keyless = path_of(&server.post("/copy_weights", body.clone()).await);
    assert!(![&first, &other].contains(&&keyless));
    // The answer to the first may have been lost, and the source deleted since.
    server
        .me()
        .call(Method::DELETE, &address(&state), &Value::Null)
        .await;
    assert_eq!(path_of(&copy(&server, "key", body).await), first);
    // The same moment, twice.
    let body = || json!({"source_path": sampler});
    let (one, two) = tokio::join!(copy(&server, "race", body()), copy(&server, "race", body()));
    assert_eq!(path_of(&one), path_of(&two));
}

#[tokio::test]
async fn a_key_that_was_used_for_another_copy_is_refused() {
    let server = TestServer::start().await;
    let (model, state, _) = trained(&server).await;
    path_of(&copy(&server, "key", json!({"source_path": state})).await);
    let other = server.model().await;
    let namesake = server.save("/save_weights", &other, 1, "state").await;
    let answer = copy(&server, "key", json!({"source_path": namesake})).await;
    assert_eq!(answer.status, 400, "{model}");
    assert!(
        answer.detail().contains("X-Idempotency-Key"),
        "{}",
        answer.detail()
    );
}

#[tokio::test]
async fn a_copy_is_a_run_that_cannot_be_trained() {
    let server = TestServer::start().await;
    let (_, state, _) = trained(&server).await;
    let copied = path_of(
        &copy(
            &server,
            "key",
            json!({"source_path": state, "ttl_seconds": 3600}),
        )
        .await,
    );
    let run = copied
        .strip_prefix("tinker://")
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    let session = run.split(':').next().unwrap().to_owned();
    for server in [server.restart(|_| {}).await] {
        let answer = server.post("/forward_backward", pass(&run, 1)).await;
        assert_eq!(answer.status, 400, "{}", answer.detail());
        let described = server.get(&format!("/training_runs/{run}")).await;
        assert_eq!(described["lora_rank"], 4);
        assert_eq!(described["last_checkpoint"]["tinker_path"], json!(copied));
        assert!(described["last_checkpoint"]["expires_at"].is_string());
        assert_eq!(described["last_checkpoint"]["public"], false);
        let info = server.get(&format!("/sessions/{session}")).await;
        assert_eq!(info["training_run_ids"], json!([run]));
        assert!(info["display_name"].as_str().unwrap().contains(&state));
    }
}

#[tokio::test]
async fn a_copy_that_cannot_be_made_says_why() {
    let server = TestServer::start().await;
    let (model, state, _) = trained(&server).await;
    let external = server.save("/save_weights_external", &model, 5, "e").await;
    let missing = state.replace("/state", "/none");
    for (body, status, named) in [
        (json!({"source_path": missing}), 404, "none"),
        (json!({"source_path": external}), 400, "source_path"),
        (json!({"source_path": "tinker://x"}), 404, "no run `x`"),
        (json!({"source_path": "x y"}), 400, "tinker://"),
        (
            json!({"source_path": state, "ttl_seconds": 5}),
            400,
            "ttl_seconds",
        ),
        (
            json!({"source_path": state, "destination_project_id": "p"}),
            403,
            "local",
        ),
        (
            json!({"source_path": state, "session_id": "s", "model_seq_id": 1}),
            400,
            "session_id",
        ),
        (
            json!({"source_path": state, "weights_access_token": "t"}),
            400,
            "publish",
        ),
        (json!({"source_path": state, "rename": "b"}), 400, "rename"),
        (json!({}), 400, "source_path"),
    ] {
        let answer = server.post("/copy_weights", body.clone()).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.detail());
        assert!(
            answer.detail().contains(named),
            "{body}: {}",
            answer.detail()
        );
    }
    let headers = [("x-tinker-weights-access-token", "tml-secret")];
    let body = json!({"source_path": state}).to_string();
    let answer = server
        .send(Method::POST, "/copy_weights", &headers, body)
        .await;
    assert_eq!(answer.status, 400);
    assert!(!answer.detail().contains("secret"));
}

#[tokio::test]
async fn a_copy_made_while_its_source_is_deleted_is_whole_or_not_there() {
    let server = TestServer::start().await;
    let model = server.model().await;
    for number in 1..=8 {
        let source = server
            .save("/save_weights_for_sampler", &model, number, "a")
            .await;
        let (key, at) = (format!("key-{number}"), address(&source));
        let me = server.me();
        let (copied, deleted) = tokio::join!(
            copy(&server, &key, json!({"source_path": source})),
            me.call(Method::DELETE, &at, &Value::Null),
        );
        assert_eq!(deleted.status, 200);
        match copied.status.as_u16() {
            200 => assert!(sample(&server, &path_of(&copied)).await.is_array()),
            404 => {}
            status => panic!("{status}: {}", copied.detail()),
        }
    }
}
