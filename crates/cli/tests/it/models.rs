//! Models on this machine: named, listed, forgotten, and pulled from a stand-in for the Hub.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as InPath, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};

use crate::user::User;

const TOKEN: &str = "hf_secret";

/// A user without a server.
fn user() -> User {
    User::of("http://127.0.0.1:9").without_key()
}

fn nano(folder: &Path) -> String {
    tinkrs_nano::write_to(folder).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_model_that_was_added_is_used_by_its_name_until_it_is_forgotten() {
    let user = user();
    let folder = nano(&user.home().join("files"));
    let added = user
        .run(&["models", "add", "me/mine", &folder, "--json"])
        .await
        .json();
    assert_eq!(added["usable"], true);
    assert_eq!(added["architecture"], "Llama");
    let listed = user.run(&["models", "list", "--json"]).await.json();
    let names: Vec<_> = listed["models"].as_array().unwrap().iter().collect();
    assert_eq!(names[0]["name"], "tinkrs/nano");
    assert_eq!(names[0]["source"], "built-in");
    assert_eq!(names[1]["name"], "me/mine");
    assert_eq!(names[1]["parameters"], names[0]["parameters"]);
    let question = "What color is the sky?";
    let ask = [
        "sample",
        question,
        "--model",
        "me/mine",
        "--local",
        "--temperature",
        "0",
    ];
    assert_eq!(user.run(&ask).await.ok(), "The sky is blue.\n");

    let removed = user.run(&["models", "remove", "me/mine", "--delete"]).await;
    assert!(removed.failed(1).contains("is left alone"));
    user.run(&["models", "remove", "me/mine"]).await.ok();
    assert!(Path::new(&folder).join("config.json").exists());
    let unknown = user.run(&ask).await.failed(1);
    assert!(
        unknown.contains("`me/mine` is not a model on this machine"),
        "{unknown}"
    );
    let gone = user.run(&["models", "remove", "me/mine"]).await.failed(1);
    assert!(gone.contains("hint: `tinkrs models list`"), "{gone}");
}

#[tokio::test]
async fn what_cannot_be_used_is_not_added_and_says_why() {
    let user = user();
    let folder = user.home().join("broken");
    nano(&folder);
    let path = folder.to_str().unwrap();
    let add =
        async |name: &str, path: &str| user.run(&["models", "add", name, path]).await.failed(1);
    assert!(add("a b", path).await.contains("cannot be the name"));
    assert!(add("./folder", "x").await.contains("the name comes first"));
    assert!(
        add("x", "no-such-folder")
            .await
            .contains("could not find no-such-folder")
    );
    assert!(
        add("tinkrs/nano", path)
            .await
            .contains("is the built-in model")
    );
    let missing = user.run(&["models", "add", "x"]).await.failed(1);
    assert!(
        missing.contains("the Hub's cache has no model `x`"),
        "{missing}"
    );

    std::fs::write(folder.join("tokenizer.json"), "{").unwrap();
    assert!(
        add("x", path)
            .await
            .contains("its tokenizer cannot be read")
    );
    std::fs::write(folder.join("model.safetensors"), "short").unwrap();
    let weights = add("x", path).await;
    assert!(weights.contains("model.safetensors"), "{weights}");
    std::fs::write(folder.join("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    let config = add("x", path).await;
    assert!(config.contains("mamba"), "{config}");
    let gguf = user.home().join("x.gguf");
    std::fs::write(&gguf, "GGUF?").unwrap();
    let gguf = add("x", gguf.to_str().unwrap()).await;
    assert!(gguf.contains("x.gguf"), "{gguf}");
}

#[tokio::test]
async fn a_model_that_is_gone_or_only_in_the_hubs_cache_is_listed_with_what_to_do() {
    let user = user();
    let folder = user.home().join("files");
    nano(&folder);
    let path = folder.to_str().unwrap();
    user.run(&["models", "add", "me/gone", path]).await.ok();
    std::fs::remove_dir_all(&folder).unwrap();
    let cache = user.home().join(".cache/huggingface/hub/models--ada--tiny");
    std::fs::create_dir_all(cache.join("refs")).unwrap();
    std::fs::write(cache.join("refs/main"), "abc").unwrap();
    nano(&cache.join("snapshots/abc"));
    let listed = user.run(&["models", "list"]).await.ok();
    let line = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(
        line("me/gone").contains("is not there any more"),
        "{listed}"
    );
    assert!(
        line("ada/tiny").contains("tinkrs models add ada/tiny"),
        "{listed}"
    );
    user.run(&["models", "add", "ada/tiny"]).await.ok();
}

/// A Hub with one repository, which breaks off every transfer after so many bytes.
#[derive(Debug, Default)]
struct Hub {
    files: BTreeMap<String, Vec<u8>>,
    cut_after: usize,
    /// How many transfers of a name are cut.
    cuts: usize,
    ranges: Vec<(String, Option<String>)>,
    lies: bool,
    /// Where weights are sent from instead.
    elsewhere: Option<String>,
}

type Shared = Arc<Mutex<Hub>>;

async fn hub(change: impl FnOnce(&mut Hub)) -> (Shared, String) {
    let folder = tempfile::tempdir().unwrap();
    nano(folder.path());
    let mut hub = Hub {
        cut_after: usize::MAX,
        ..Hub::default()
    };
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        hub.files.insert(name, std::fs::read(entry.path()).unwrap());
    }
    hub.files
        .insert("README.md".to_owned(), b"not needed".to_vec());
    change(&mut hub);
    let hub = Arc::new(Mutex::new(hub));
    let router = Router::new()
        .route("/api/models/{owner}/{name}/revision/{revision}", get(info))
        .route("/{owner}/{name}/resolve/{revision}/{file}", get(file))
        .with_state(Arc::clone(&hub));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (hub, url)
}

fn is_allowed(headers: &HeaderMap) -> bool {
    let token = headers.get("authorization");
    token.is_some_and(|token| token == &format!("Bearer {TOKEN}"))
}

async fn info(
    State(hub): State<Shared>,
    InPath((_, name, _)): InPath<(String, String, String)>,
    headers: HeaderMap,
) -> Response {
    if !is_allowed(&headers) || name != "nano" {
        let body = json!({"error": "Repository not found"}).to_string();
        return (StatusCode::NOT_FOUND, body).into_response();
    }
    let hub = hub.lock().unwrap();
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let siblings = hub.files.iter().map(|(name, bytes)| {
        use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
        let mut bytes = bytes.clone();
        if hub.lies {
            bytes.reverse();
        }
        let size = bytes.len();
        if name.ends_with(".safetensors") {
            let sha256 = hex(digest(&SHA256, &bytes).as_ref());
            return json!({"rfilename": name, "size": size, "lfs": {"sha256": sha256, "size": size}});
        }
        let blob = [format!("blob {size}\0").into_bytes(), bytes].concat();
        let id = hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &blob).as_ref());
        json!({"rfilename": name, "size": size, "blobId": id})
    });
    let siblings: Vec<Value> = siblings.collect();
    json!({"sha": "c0ffee", "siblings": siblings})
        .to_string()
        .into_response()
}

async fn file(
    State(hub): State<Shared>,
    InPath((_, _, commit, name)): InPath<(String, String, String, String)>,
    headers: HeaderMap,
) -> Response {
    assert_eq!(commit, "c0ffee");
    assert!(is_allowed(&headers));
    let mut hub = hub.lock().unwrap();
    if let Some(url) = hub
        .elsewhere
        .as_ref()
        .filter(|_| name == "model.safetensors")
    {
        let to = [("location", format!("{url}/{name}"))];
        return (StatusCode::FOUND, to).into_response();
    }
    let range = headers
        .get("range")
        .map(|range| range.to_str().unwrap().to_owned());
    hub.ranges.push((name.clone(), range.clone()));
    let bytes = hub.files[&name].clone();
    let start: usize = range.map_or(0, |range| {
        let start = range
            .strip_prefix("bytes=")
            .unwrap()
            .strip_suffix('-')
            .unwrap();
        start.parse().unwrap()
    });
    let rest = bytes[start..].to_vec();
    let response = Response::builder().header("content-length", rest.len());
    let response = match start {
        0 => response,
        _ => {
            let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
            response.status(206).header("content-range", range)
        }
    };
    if rest.len() > hub.cut_after && hub.cuts > 0 {
        hub.cuts -= 1;
        let sent = rest[..hub.cut_after].to_vec();
        let broken = Err(std::io::Error::other("the connection breaks here"));
        let pieces = futures_util::stream::iter([Ok(sent), broken]);
        return response.body(Body::from_stream(pieces)).unwrap();
    }
    response.body(Body::from(rest)).unwrap()
}

fn puller(url: &str) -> User {
    user()
        .variable("HF_ENDPOINT", url)
        .variable("HF_TOKEN", TOKEN)
}

#[tokio::test]
async fn a_pull_goes_on_where_the_transfer_was_cut() {
    let (hub, url) = hub(|hub| {
        hub.cut_after = 1_000_000;
        hub.cuts = 2;
    })
    .await;
    let user = puller(&url);
    let pulled = user
        .run(&["models", "pull", "tinkrs-test/nano", "--json"])
        .await;
    assert!(!pulled.stderr.contains(TOKEN));
    let pulled = pulled.json();
    assert_eq!(pulled["source"], "pulled");
    let folder = pulled["path"].as_str().unwrap();
    {
        let hub = hub.lock().unwrap();
        let weights = "model.safetensors";
        let asked: Vec<_> = hub
            .ranges
            .iter()
            .filter(|(name, _)| name == weights)
            .collect();
        assert_eq!(asked.len(), 3, "{asked:?}");
        assert_eq!(asked[0].1, None);
        assert!(
            asked[1..].iter().all(|(_, range)| range.is_some()),
            "{asked:?}"
        );
        assert_ne!(asked[1].1, asked[2].1);
        for (name, bytes) in &hub.files {
            let here = std::fs::read(Path::new(folder).join(name)).ok();
            assert_eq!(here.is_some(), name != "README.md", "{name}");
            assert!(here.is_none_or(|here| here == *bytes), "{name}");
        }
        let left = std::fs::read_dir(folder).unwrap();
        assert_eq!(left.count(), hub.files.len() - 1, "no parts are left");
    }
    let question = [
        "sample",
        "What color is the sky?",
        "--temperature",
        "0",
        "--local",
    ];
    let ask = [&question[..], &["--model", "tinkrs-test/nano"]].concat();
    assert_eq!(user.run(&ask).await.ok(), "The sky is blue.\n");

    let before = hub.lock().unwrap().ranges.len();
    let again = user.run(&["models", "pull", "tinkrs-test/nano"]).await;
    assert!(
        again.stderr.contains("model.safetensors: here already"),
        "{again:?}"
    );
    assert_eq!(hub.lock().unwrap().ranges.len(), before);
    let delete = ["models", "remove", "tinkrs-test/nano", "--delete"];
    user.run(&delete).await.ok();
    assert!(!Path::new(folder).exists());
}

#[tokio::test]
async fn a_pull_that_gave_up_is_taken_up_by_the_next_one() {
    let (hub, url) = hub(|hub| {
        hub.cut_after = 0;
        hub.cuts = usize::MAX;
    })
    .await;
    let user = puller(&url);
    let pull = ["models", "pull", "tinkrs-test/nano"];
    let failed = user.run(&pull).await.failed(1);
    assert!(
        failed.contains("hint: the same command continues"),
        "{failed}"
    );
    {
        // Now the first bytes come, and then the end of them.
        let mut hub = hub.lock().unwrap();
        hub.cut_after = 1_000_000;
        hub.cuts = 1;
    }
    user.run(&pull).await.ok();
}

#[tokio::test]
async fn a_file_that_is_not_what_the_hub_says_is_thrown_away() {
    let (hub, url) = hub(|hub| hub.lies = true).await;
    let user = puller(&url);
    let pull = ["models", "pull", "tinkrs-test/nano"];
    let failed = user.run(&pull).await.failed(1);
    assert!(
        failed.contains("is not what the Hub says it is"),
        "{failed}"
    );
    let listed = user.run(&["models", "list", "--json"]).await.json();
    assert_eq!(listed["models"].as_array().unwrap().len(), 1);
    hub.lock().unwrap().lies = false;
    user.run(&pull).await.ok();
}

#[tokio::test]
async fn a_repository_that_is_not_there_is_said_with_what_to_check() {
    let (_, url) = hub(|_| {}).await;
    let user = puller(&url);
    let missing = user
        .run(&["models", "pull", "tinkrs-test/other"])
        .await
        .failed(1);
    assert!(
        missing.contains("does not show tinkrs-test/other"),
        "{missing}"
    );
    assert!(
        missing.contains("HF_TOKEN") && !missing.contains(TOKEN),
        "{missing}"
    );
    let name = user.run(&["models", "pull", "not a name"]).await.failed(1);
    assert!(name.contains("is not a repository of the Hub"), "{name}");
    let nobody = User::of("http://127.0.0.1:9").variable("HF_ENDPOINT", "http://127.0.0.1:9");
    let nobody = nobody.run(&["models", "pull", "a/b"]).await.failed(1);
    assert!(
        nobody.contains("could not reach the Hub at http://127.0.0.1:9"),
        "{nobody}"
    );
}

#[tokio::test]
async fn the_token_goes_to_the_hub_and_not_where_it_sends_us() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (hub, url) = hub(|_| {}).await;
    let weights = hub.lock().unwrap().files["model.safetensors"].clone();
    let store = get({
        let seen = Arc::clone(&seen);
        async move |headers: HeaderMap| {
            let token = headers.get("authorization").cloned();
            seen.lock().unwrap().push(token);
            weights.clone()
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/model.safetensors", store);
    tokio::spawn(async move { axum::serve(listener, router).await });
    hub.lock().unwrap().elsewhere = Some(elsewhere);
    let pull = ["models", "pull", "tinkrs-test/nano"];
    puller(&url).run(&pull).await.ok();
    assert_eq!(*seen.lock().unwrap(), [None]);
}

#[tokio::test]
async fn a_file_that_another_pull_is_at_is_left_to_it() {
    let (hub, url) = hub(|hub| {
        hub.cut_after = 1_000_000;
        hub.cuts = usize::MAX;
    })
    .await;
    let user = puller(&url);
    let pull = ["models", "pull", "tinkrs-test/nano"];
    hub.lock().unwrap().cut_after = 0;
    user.run(&pull).await.failed(1);
    let folder = user.home().join(".tinkrs/models/tinkrs-test--nano");
    let mut parts = crate::user::files(&folder).into_iter();
    let part = parts.find(|path| path.extension().is_some_and(|end| end == "part"));
    let part = std::fs::File::open(part.unwrap()).unwrap();
    part.lock().unwrap();
    hub.lock().unwrap().cuts = 0;
    let refused = user.run(&pull).await.failed(1);
    assert!(
        refused.contains("another download of it is under way"),
        "{refused}"
    );
    drop(part);
    user.run(&pull).await.ok();
}

#[cfg(unix)]
#[tokio::test]
async fn what_was_pulled_into_a_linked_folder_is_deleted_with_its_last_name() {
    let (_, url) = hub(|_| {}).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link");
    std::fs::create_dir(elsewhere.path().join("real")).unwrap();
    std::os::unix::fs::symlink("real", &link).unwrap();
    let user = puller(&url).variable("TINKRS_HOME", link.to_str().unwrap());
    let pull = ["models", "pull", "tinkrs-test/nano", "--json"];
    let pulled = user.run(&pull).await.json();
    assert_eq!(pulled["source"], "pulled");
    user.run(&[&pull[..], &["--name", "mine"]].concat())
        .await
        .json();
    let remove = |name| ["models", "remove", name, "--delete"];
    let refused = user.run(&remove("mine")).await.failed(1);
    assert!(
        refused.contains("has another name, `tinkrs-test/nano`"),
        "{refused}"
    );
    user.run(&["models", "remove", "mine"]).await.ok();
    user.run(&remove("tinkrs-test/nano")).await.ok();
    assert!(!Path::new(pulled["path"].as_str().unwrap()).exists());
}

#[tokio::test]
async fn a_pull_leaves_nothing_of_another_revision_in_the_folder() {
    let (hub, url) = hub(|hub| {
        let index = b"{\"weight_map\": {}}".to_vec();
        let index = ("model.safetensors.index.json".to_owned(), index);
        hub.files
            .extend([index, ("model-1.safetensors".to_owned(), vec![1])]);
    })
    .await;
    let user = puller(&url);
    let pull = ["models", "pull", "tinkrs-test/nano", "--json"];
    // Its weights are not what the index says.
    user.run(&pull).await.failed(1);
    hub.lock().unwrap().files.retain(|name, _| {
        let is_of_parts = name.contains("index") || name.contains("-1");
        !is_of_parts
    });
    let pulled = user.run(&pull).await.json();
    assert_eq!(pulled["usable"], true);
    let old = ["--revision", "v1/beta", "--name", "old"];
    let old = user.run(&[&pull[..], &old].concat()).await.json();
    assert_ne!(old["path"], pulled["path"]);
    assert_eq!(old["source"], "pulled");
}
