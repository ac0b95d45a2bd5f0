//! `checkpoint push-hf` from the local server to a small stand-in for the Hub.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post, put};
use axum::{Router, response::IntoResponse};
use serde_json::{Value, json};

use crate::user::{Local, User};

const TOKEN: &str = "hf_test";

/// What was uploaded.
#[derive(Debug, Default)]
struct Hub {
    url: String,
    repositories: Vec<Value>,
    branches: Vec<String>,
    readme: Option<String>,
    stored: BTreeMap<String, Bytes>,
    verified: Vec<Value>,
    commits: Vec<(String, Vec<Value>)>,
}

type Shared = Arc<Mutex<Hub>>;

fn answer(value: &Value) -> String {
    value.to_string()
}

fn parse(body: &Bytes) -> Value {
    serde_json::from_slice(body).unwrap()
}

async fn start() -> Shared {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hub = Shared::default();
    hub.lock().unwrap().url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new()
        .route("/api/whoami-v2", get(whoami))
        .route("/api/repos/create", post(create))
        .route("/api/models/{owner}/{name}/branch/{branch}", post(branch))
        .route(
            "/api/models/{owner}/{name}/preupload/{branch}",
            post(preupload),
        )
        .route("/api/models/{owner}/{name}/commit/{branch}", post(commit))
        .route("/{owner}/{name}/info/lfs/objects/batch", post(batch))
        .route("/{owner}/{name}/resolve/{branch}/{file}", get(file))
        .route("/store/{oid}", put(store))
        .route("/verify", post(verify))
        .with_state(Arc::clone(&hub));
    tokio::spawn(async move { axum::serve(listener, router).await });
    hub
}

async fn whoami(headers: HeaderMap) -> impl IntoResponse {
    match headers
        .get("authorization")
        .and_then(|value| value.to_str().ok())
    {
        Some("Bearer hf_test") => (StatusCode::OK, answer(&json!({"name": "ada"}))),
        _ => (
            StatusCode::UNAUTHORIZED,
            answer(&json!({"error": "Invalid token"})),
        ),
    }
}

async fn create(State(hub): State<Shared>, body: Bytes) -> impl IntoResponse {
    let mut hub = hub.lock().unwrap();
    let exists = !hub.repositories.is_empty();
    hub.repositories.push(parse(&body));
    if exists {
        (StatusCode::CONFLICT, answer(&json!({"error": "it exists"})))
    } else {
        (StatusCode::OK, answer(&json!({"url": "there"})))
    }
}

async fn branch(State(hub): State<Shared>, Path(path): Path<(String, String, String)>) {
    hub.lock().unwrap().branches.push(path.2);
}

async fn preupload(body: Bytes) -> String {
    let files = parse(&body)["files"].as_array().unwrap().clone();
    let mode = |name: &Value| {
        if name.as_str().unwrap().ends_with(".safetensors") {
            "lfs"
        } else {
            "regular"
        }
    };
    let files = files.iter().map(|file| {
        assert!(
            file["sample"].is_string() && file["size"].is_u64(),
            "{file}"
        );
        json!({"path": file["path"], "uploadMode": mode(&file["path"]), "shouldIgnore": false})
    });
    answer(&json!({"files": files.collect::<Vec<_>>()}))
}

async fn batch(
    State(hub): State<Shared>,
    Path((_, name)): Path<(String, String)>,
    body: Bytes,
) -> String {
    assert!(name.ends_with(".git"), "{name}");
    let url = hub.lock().unwrap().url.clone();
    let object = &parse(&body)["objects"][0];
    let upload = format!("{url}/store/{}", object["oid"].as_str().unwrap());
    answer(&json!({"objects": [{
        "oid": object["oid"], "size": object["size"],
        "actions": {
            "upload": {"href": upload, "header": {"x-signed": "yes"}},
            "verify": {"href": format!("{url}/verify")},
        },
    }]}))
}

async fn store(
    State(hub): State<Shared>,
    Path(oid): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) {
    // The store is another host's: the token is none of its business.
    assert!(!headers.contains_key("authorization"));
    assert_eq!(headers["x-signed"], "yes");
    assert_eq!(headers["content-length"], body.len().to_string().as_str());
    hub.lock().unwrap().stored.insert(oid, body);
}

async fn verify(State(hub): State<Shared>, body: Bytes) {
    hub.lock().unwrap().verified.push(parse(&body));
}

async fn commit(
    State(hub): State<Shared>,
    Path((_, _, branch)): Path<(String, String, String)>,
    body: Bytes,
) -> String {
    let text = std::str::from_utf8(&body).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    hub.lock().unwrap().commits.push((branch, lines.collect()));
    answer(&json!({"commitUrl": "there"}))
}

async fn file(State(hub): State<Shared>) -> Result<String, StatusCode> {
    hub.lock()
        .unwrap()
        .readme
        .clone()
        .ok_or(StatusCode::NOT_FOUND)
}

fn user_of(server: &Local, hub: &Shared) -> User {
    let url = hub.lock().unwrap().url.clone();
    server
        .user()
        .variable("HF_ENDPOINT", &url)
        .variable("HF_TOKEN", TOKEN)
}

#[tokio::test]
async fn a_checkpoint_is_pushed_with_a_card_and_a_name_of_its_own() {
    let (server, hub) = (Local::start().await, start().await);
    let user = user_of(&server, &hub);
    let trained = server.trained(&["a"]).await;
    let path = trained.paths[0].to_string();
    let report = user
        .run(&["--json", "checkpoint", "push-hf", &path])
        .await
        .json();
    let name = format!("tinker-tiny-{}", trained.run.replace(':', "-"));
    assert_eq!(
        report,
        json!({
            "checkpoint_path": path, "repo_id": format!("ada/{name}"),
            "revision": "weights-a", "public": false,
        })
    );
    {
        let hub = hub.lock().unwrap();
        let expected = json!({"name": name, "organization": "ada", "private": true});
        assert_eq!(hub.repositories, [expected]);
        assert_eq!(hub.branches, ["weights-a"]);
        let (branch, lines) = &hub.commits[0];
        assert_eq!(branch, "weights-a");
        assert_eq!(lines[0]["key"], "header");
        let names: Vec<_> = lines[1..]
            .iter()
            .map(|line| &line["value"]["path"])
            .collect();
        assert_eq!(
            names,
            [
                "README.md",
                "adapter_config.json",
                "adapter_model.safetensors"
            ]
        );
        let weights = &lines[3];
        assert_eq!(weights["key"], "lfsFile");
        let stored = &hub.stored[weights["value"]["oid"].as_str().unwrap()];
        assert_eq!(weights["value"]["size"], stored.len());
        // The name of the head that `peft` reads, not the one in checkpoints.
        let text = String::from_utf8_lossy(stored);
        assert!(text.contains("base_model.model.lm_head.lora_A.weight"));
        assert!(!text.contains("unembed_tokens"));
        assert_eq!(hub.verified.len(), 1);
    }

    // Again, with choices, to a repository that is there.
    let choices = [
        "checkpoint",
        "push-hf",
        &path,
        "--repo",
        "ada/mine",
        "--public",
        "--commit-message",
        "hello",
        "--ignore-pattern",
        "*.safetensors",
        "--no-model-card",
    ];
    let table = user.run(&choices).await.ok();
    assert!(
        table.contains("ada/mine") && !table.contains("Revision"),
        "{table}"
    );
    let (branch, lines) = hub.lock().unwrap().commits.pop().unwrap();
    assert_eq!((branch.as_str(), lines.len()), ("main", 2));
    assert_eq!(lines[0]["value"]["summary"], "hello");
    trained.finish().await;
}

#[tokio::test]
async fn another_checkpoint_is_not_overwritten() {
    let (server, hub) = (Local::start().await, start().await);
    let user = user_of(&server, &hub);
    let trained = server.trained(&["a"]).await;
    let path = trained.paths[0].to_string();
    hub.lock().unwrap().readme = Some("From `tinker://other:train:0/weights/x`.".to_owned());
    let push = ["checkpoint", "push-hf", &path, "-r", "mine"];
    let stderr = user.run(&push).await.failed(1);
    assert!(
        stderr.contains("ada/mine has another checkpoint already"),
        "{stderr}"
    );
    assert!(hub.lock().unwrap().commits.is_empty());
    hub.lock().unwrap().readme = Some(format!("From {path}"));
    user.run(&push).await.ok();
    trained.finish().await;
}

#[tokio::test]
async fn the_hub_login_is_checked_before_anything_else() {
    let hub = start().await;
    let url = hub.lock().unwrap().url.clone();
    let path = "tinker://r:train:0/weights/a";
    let nobody = User::of("http://127.0.0.1:9");
    let stderr = nobody.run(&["checkpoint", "push-hf", path]).await.failed(1);
    assert!(
        stderr.contains("no token") && stderr.contains("hint: set HF_TOKEN"),
        "{stderr}"
    );
    let wrong = User::of("http://127.0.0.1:9")
        .variable("HF_ENDPOINT", &url)
        .variable("HF_TOKEN", "hf_wrong");
    let stderr = wrong.run(&["checkpoint", "push-hf", path]).await.failed(1);
    assert!(stderr.contains("status 401: Invalid token"), "{stderr}");
    assert!(!stderr.contains("hf_wrong"), "{stderr}");
}
