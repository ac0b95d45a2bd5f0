//! Tokenizers that are downloaded: by training and sampling clients, from an honest hub and from others.

use crate::hub::{Behaviour, COMMIT, FakeHub};
use crate::support::{RealServer, sampling, training};
use anyhow::Result;
use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tinkrs::hub::Hub;
use tinkrs::{Error, ServiceClient, Tokenizer, TokenizerSource};
use tinkrs_server::BaseModel;
use tinkrs_testkit::scripted::{API_KEY, BASE_MODEL, Reply, refuse, status};
use tinkrs_testkit::{FakeBackend, ScriptedServer};

/// `tokenizer.json` of the tests of `tinkrs-chat`, or the files in Kimi's form.
fn data(name: &str) -> PathBuf {
    let chat = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chat/tests/data");
    chat.join(name)
}

/// Loads on a thread for blocking work, as async code should.
async fn load(source: TokenizerSource) -> Result<Arc<Tokenizer>, Error> {
    tokio::task::spawn_blocking(move || source.load())
        .await
        .unwrap()
}

/// The whole chain of causes.
fn explain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Lists the files below a folder, without those that are hidden.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.file_name().unwrap().to_str().unwrap().starts_with('.') {
                let path = path.strip_prefix(folder).unwrap();
                found.push(path.display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn training_and_sampling_clients_download_the_tokenizer_of_their_model() -> Result<()> {
    let server = RealServer::start().await?;
    let hub = FakeHub::with_files_of(&data("")).await;
    let (one, other) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let expected = Tokenizer::from_path(data(""))?.encode("the weather today")?;

    let heard = Arc::new(Mutex::new(BTreeMap::new()));
    let listener = Arc::clone(&heard);
    let client = training(&server).await?;
    let request = client.get_tokenizer().hub(hub.hub(one.path()));
    let tokenizer = request.on_progress(Arc::new(move |progress| {
        let seen = (progress.received_bytes, progress.total_bytes);
        listener
            .lock()
            .unwrap()
            .insert(progress.name.to_owned(), seen);
    }));
    assert_eq!(tokenizer.await?.encode("the weather today")?, expected);
    let size = std::fs::metadata(data("tokenizer.json"))?.len();
    let whole = BTreeMap::from([("tokenizer.json".to_owned(), (size, Some(size)))]);
    assert_eq!(*heard.lock().unwrap(), whole);
    let asked = hub.take_asked();
    assert_eq!(
        asked,
        [
            "/api/models/test/model/revision/main".to_owned(),
            format!("/test/model/resolve/{COMMIT}/tokenizer.json"),
        ]
    );

    let client = sampling(&server).await?;
    let tokenizer = client.get_tokenizer().hub(hub.hub(other.path())).await?;
    assert_eq!(tokenizer.encode("the weather today")?, expected);
    assert_eq!(hub.take_asked(), asked);
    // Again: neither the hub nor the disk is asked.
    std::fs::remove_dir_all(other.path())?;
    client.get_tokenizer().hub(hub.hub(other.path())).await?;
    assert!(hub.take_asked().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_server_that_has_the_tokenizer_sends_it_once_and_no_hub_is_asked() -> Result<()> {
    let hub = FakeHub::with_files_of(&data("")).await;
    let nowhere = tempfile::tempdir()?;
    for (folder, main) in [("", "tokenizer.json"), ("kimi", "tiktoken.model")] {
        let own = Arc::new(Tokenizer::from_path(data(folder))?);
        let mut model = BaseModel::new(BASE_MODEL, FakeBackend::new());
        model.tokenizer = Some(Arc::clone(&own));
        let server = RealServer::of(model).await?;
        let cache = tempfile::tempdir()?;
        let (one, other) = (training(&server).await?, sampling(&server).await?);
        for request in [one.get_tokenizer(), other.get_tokenizer()] {
            let request = request.hub(hub.hub(nowhere.path())).cache(cache.path());
            let tokenizer = request.await?;
            assert!(tokenizer.path().starts_with(cache.path()));
            assert!(tokenizer.path().ends_with(main));
            let text = "the weather today";
            assert_eq!(tokenizer.encode(text)?, own.encode(text)?);
        }
        assert!(hub.take_asked().is_empty());
    }
    Ok(())
}

/// The files of a tokenizer as a server would send them, and what it says of them.
fn sent(names: &[&str], text: &str) -> tinkrs::serde_json::Value {
    let files = names.iter().map(|name| ((*name).to_owned(), text.into()));
    let files: tinkrs::serde_json::Map<_, _> = files.collect();
    tinkrs::serde_json::json!({"digest": "0".repeat(64), "files": files})
}

#[tokio::test]
async fn a_server_that_lies_about_a_tokenizer_leaves_nothing_behind() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = ServiceClient::builder().base_url(server.url());
    let rest = service.api_key(API_KEY).build().create_rest_client();
    let home = tempfile::tempdir()?;
    let cache = home.path().join("cache");
    let json = tinkrs::serde_json::json!({"digest": "x"});
    for (answer, expected) in [
        (
            Reply::json(&sent(&["tokenizer.json", "../../evil"], "{}")),
            "found `../../evil`",
        ),
        (
            Reply::json(&sent(&["/etc/passwd", "tokenizer.json"], "{}")),
            "found `/etc/passwd`",
        ),
        (
            Reply::json(&sent(&["chat_template.jinja"], "{}")),
            "found neither",
        ),
        (
            Reply::json(&sent(&["tokenizer.json"], "{}")),
            "the files have",
        ),
        (Reply::json(&json), "nothing was sent"),
        (status(200).body(vec![b' '; 130 << 20]), "134217728 bytes"),
        (refuse(400, "`model`: found `m`"), "`model`: found `m`"),
    ] {
        server.on("tokenizer").reply(answer);
        let error = rest.fetch_tokenizer("m", &cache).await.unwrap_err();
        assert!(explain(&error).contains(expected), "{}", explain(&error));
        assert_eq!(files(home.path()), [] as [&str; 0], "{expected}");
    }
    for missing in [404, 405, 501] {
        server.on("tokenizer").always().reply(status(missing));
        assert_eq!(rest.fetch_tokenizer("m", &cache).await?, None, "{missing}");
    }
    Ok(())
}

#[tokio::test]
async fn the_folder_that_a_server_names_is_used_if_it_is_on_this_machine() -> Result<()> {
    let hub = FakeHub::with_files_of(&data("")).await;
    for (folder, is_here) in [(data("kimi"), true), (data("nowhere"), false)] {
        let mut model = BaseModel::new(BASE_MODEL, FakeBackend::new());
        model.tokenizer_id = folder.to_str().map(str::to_owned);
        let server = RealServer::of(model).await?;
        let cache = tempfile::tempdir()?;
        let of_training = training(&server).await?.get_tokenizer();
        let of_sampling = sampling(&server).await?.get_tokenizer();
        for request in [of_training, of_sampling] {
            let tokenizer = request.hub(hub.hub(cache.path())).await?;
            assert_eq!(tokenizer.path().starts_with(&folder), is_here);
        }
        assert_eq!(hub.take_asked().is_empty(), is_here);
    }
    Ok(())
}

#[tokio::test]
async fn the_cache_is_that_of_the_hubs_own_tools_and_serves_without_a_network() -> Result<()> {
    let hub = FakeHub::with_files_of(&data("")).await;
    let folder = tempfile::tempdir()?;
    let cache = folder.path().join("cache");
    load(TokenizerSource::new("me/mine").hub(hub.hub(&cache))).await?;
    let repository = cache.join("models--me--mine");
    let snapshot = format!("snapshots/{COMMIT}");
    let blob = hub.blob(Path::new(""), "tokenizer.json");
    let expected = [
        blob.display().to_string(),
        "refs/main".to_owned(),
        format!("{snapshot}/tokenizer.json"),
    ];
    assert_eq!(files(&repository), expected);
    assert_eq!(
        std::fs::read_to_string(repository.join("refs/main"))?,
        COMMIT
    );

    // Elsewhere, so that it is read from the disk again.
    let moved = folder.path().join("moved");
    std::fs::rename(&cache, &moved)?;
    let offline = |model: &str| {
        let hub = Hub::at("http://127.0.0.1:9")
            .with_cache(&moved)
            .offline(true);
        load(TokenizerSource::new(model).hub(hub))
    };
    offline("me/mine").await?;
    let error = explain(&offline("me/other").await.unwrap_err());
    assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
    assert!(error.contains("hf download me/other"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_pinned_tokenizer_in_kimis_form_is_downloaded_at_its_revision() -> Result<()> {
    let hub = FakeHub::with_files_of(&data("kimi")).await;
    let cache = tempfile::tempdir()?;
    let source = TokenizerSource::new("moonshotai/Kimi-K2.5:128k").hub(hub.hub(cache.path()));
    let tokenizer = load(source).await?;
    let revision = "4d01dfe0332d63057c186e0b262165819efb6611";
    let asked = hub.take_asked();
    let info = format!("/api/models/moonshotai/Kimi-K2.5/revision/{revision}");
    assert_eq!(asked[0], info);
    assert!(asked[2].ends_with("/tiktoken.model"), "{asked:?}");
    let golden = std::fs::read_to_string(data("kimi/golden.json"))?;
    let golden: tinkrs::serde_json::Value = tinkrs::serde_json::from_str(&golden)?;
    for case in golden["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let tokens: Vec<u32> = tinkrs::serde_json::from_value(case["tokens"].clone())?;
        assert_eq!(tokenizer.encode(text)?, tokens, "{text:?}");
    }
    let repository = cache.path().join("models--moonshotai--Kimi-K2.5");
    assert!(!repository.join("refs/main").exists(), "it may be old");

    // What is left of it without its settings is completed.
    let folder = repository.join("snapshots").join(revision);
    let moved = tempfile::tempdir()?;
    std::fs::rename(
        &repository,
        moved.path().join("models--moonshotai--Kimi-K2.5"),
    )?;
    let folder = moved.path().join(folder.strip_prefix(cache.path())?);
    std::fs::remove_file(folder.join("tokenizer_config.json"))?;
    let source = TokenizerSource::new("moonshotai/Kimi-K2.5").hub(hub.hub(moved.path()));
    load(source).await?;
    assert_eq!(hub.take_asked(), [info], "the contents are there");
    Ok(())
}

#[tokio::test]
async fn a_hub_that_lies_leaves_nothing_behind_and_an_honest_one_is_believed() -> Result<()> {
    let hub = FakeHub::with_files_of(&data("")).await;
    let cases = [
        (Behaviour::OtherBytes, "has the digest"),
        (Behaviour::Longer, "which is the limit"),
        (Behaviour::Shorter, "has the digest"),
        (Behaviour::LoginPage, "is not one of the Hub's"),
        (Behaviour::LoginPageForFiles, "has the digest"),
        (Behaviour::Circle, "too many redirects"),
        (Behaviour::NoDigests, "no digest of tokenizer.json"),
        (Behaviour::StrangeCommit, "has no commit"),
        (Behaviour::Huge, "has more than 268435456 bytes"),
        (
            Behaviour::Unknown,
            "status 404: Repository not found (check its name",
        ),
        (Behaviour::Empty, "has no tokenizer.json or tiktoken.model"),
    ];
    for (behaviour, expected) in cases {
        let cache = tempfile::tempdir()?;
        let source = TokenizerSource::new("org/name").hub(hub.hub(cache.path()));
        hub.behave(behaviour);
        let error = explain(&load(source.clone()).await.unwrap_err());
        assert!(error.contains(expected), "{behaviour:?}: {error}");
        assert!(error.contains("no tokenizer for `org/name`"), "{error}");
        assert_eq!(files(cache.path()), [] as [&str; 0], "{behaviour:?}");
        hub.behave(Behaviour::Honest);
        load(source).await?;
        let left = files(&cache.path().join("models--org--name"));
        assert_eq!(left.len(), 3, "{behaviour:?}: {left:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_hub_that_is_not_there_is_named() -> Result<()> {
    let cache = tempfile::tempdir()?;
    let hub = Hub::at("http://127.0.0.1:9").with_cache(cache.path());
    let error = load(TokenizerSource::new("org/name").hub(hub)).await;
    let error = explain(&error.unwrap_err());
    assert!(
        error.contains("could not reach the Hub at http://127.0.0.1:9"),
        "{error}"
    );
    Ok(())
}

#[tokio::test]
async fn what_another_process_is_downloading_is_waited_for() -> Result<()> {
    let mut hub = FakeHub::with_files_of(&data("")).await;
    let cache = tempfile::tempdir()?;
    let blob = hub.blob(&cache.path().join("models--org--name"), "tokenizer.json");
    let digest = blob.file_name().unwrap().to_str().unwrap();
    let part = blob.with_file_name(format!(".{digest}.{}.part", &digest[..16]));
    std::fs::create_dir_all(part.parent().unwrap())?;
    let held = std::fs::File::create(&part)?;
    held.lock()?;
    let source = TokenizerSource::new("org/name").hub(hub.hub(cache.path()));
    let loading = tokio::spawn(load(source));
    hub.count.wait_for(|count| *count > 0).await?;
    drop(held);
    loading.await??;
    Ok(())
}

/// What the next test runs in a process of its own, with the variables that users have.
#[test]
fn a_process_that_may_not_write_much() {
    let Some(report) = std::env::var_os("TINKRS_TEST_REPORT") else {
        return;
    };
    let error = TokenizerSource::new("org/name").load().unwrap_err();
    std::fs::write(report, explain(&error)).unwrap();
}

/// A limit on the size of files makes the system refuse to write as a full disk does.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_is_said_and_the_download_goes_on_when_there_is_room() -> Result<()> {
    let hub = FakeHub::with_files_of(&data("")).await;
    let cache = tempfile::tempdir()?;
    let report = tempfile::NamedTempFile::new()?;
    // By itself, the signal would end the process.
    let child = tokio::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$@\"", "sh"])
        .arg(std::env::current_exe()?)
        .args([
            "--exact",
            "--nocapture",
            "tokenizers::a_process_that_may_not_write_much",
        ])
        .env("TINKRS_TEST_REPORT", report.path())
        .env("HF_ENDPOINT", &hub.url)
        .env("HF_HUB_CACHE", cache.path())
        .output()
        .await?;
    let failed = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{failed}");
    let error = std::fs::read_to_string(report.path())?;
    assert!(error.contains("could not write"), "{error}");
    assert!(error.contains("too large"), "{error}");
    assert_eq!(files(cache.path()), [] as [&str; 0]);
    load(TokenizerSource::new("org/name").hub(hub.hub(cache.path()))).await?;
    Ok(())
}
