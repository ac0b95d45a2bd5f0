//! Downloading checkpoints through signed links.

use std::collections::BTreeMap;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use ring::hmac;
use serde_json::{Value, json};

use crate::caller::{Answer, TestServer, address};

async fn archive(server: &TestServer, path: &str) -> Answer {
    let at = format!("{}/archive", address(path));
    server.me().call(Method::GET, &at, &Value::Null).await
}

async fn links(server: &TestServer, path: &str) -> Value {
    server
        .get(&format!("{}/external_weights_urls", address(path)))
        .await
}

fn unpack(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        files.insert(name, bytes);
    }
    files
}

/// Reads the header of a safetensors file.
fn tensors(file: &[u8]) -> Value {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&file[8..8 + length]).unwrap()
}

fn assert_peft(files: &BTreeMap<String, Vec<u8>>) {
    let config: Value = serde_json::from_slice(&files["adapter_config.json"]).unwrap();
    assert_eq!(config["peft_type"], "LORA");
    assert_eq!(config["r"], 4);
    let tensors = tensors(&files["adapter_model.safetensors"]);
    let names: Vec<_> = tensors.as_object().unwrap().keys().collect();
    // The head's name is the hosted service's: the official cookbook finds the layer by it.
    let head = "base_model.model.model.unembed_tokens.lora_A.weight";
    assert!(names.iter().any(|name| *name == head), "{names:?}");
}

#[tokio::test]
async fn links_begin_with_the_public_url_behind_a_proxy() {
    let server = TestServer::with(|settings| {
        settings.public_url = Some("https://train.example.org/".to_owned());
    })
    .await;
    let model = server.model().await;
    let saved = server.save("/save_weights_external", &model, 1, "a").await;
    for link in links(&server, &saved).await["urls"]
        .as_object()
        .unwrap()
        .values()
    {
        let path = link
            .as_str()
            .unwrap()
            .strip_prefix("https://train.example.org");
        let path = path.unwrap_or_else(|| panic!("{link}"));
        assert!(path.starts_with("/downloads/"), "{path}");
        let headers = [("x-api-key", "")];
        let file = server.try_send(Method::GET, path, &headers, "").await;
        assert_eq!(file.unwrap().status, 200, "{path}");
    }
}

#[tokio::test]
async fn an_archive_is_a_link_that_says_when_it_ends() {
    let server = TestServer::real(|_| {}).await;
    let model = server.model().await;
    for (number, operation, file) in [
        (1, "/save_weights", Some("state.safetensors")),
        (2, "/save_weights_for_sampler", None),
        (3, "/save_weights_external", None),
    ] {
        let path = server.save(operation, &model, number, "a").await;
        let answer = archive(&server, &path).await;
        assert_eq!(answer.status, 302, "{operation}");
        let link = answer.headers["location"].to_str().unwrap().to_owned();
        assert_eq!(answer.json()["url"], json!(link));
        let expires = answer.headers["expires"].to_str().unwrap();
        let expires = rfc2822::DateTimeParser::new()
            .parse_timestamp(expires)
            .unwrap();
        let minutes = expires.duration_since(Timestamp::now()).as_mins();
        assert!((10..=60).contains(&minutes), "{minutes} minutes");

        let whole = server.follow(&link, &[]).await;
        assert_eq!(whole.status, 200, "{:?}", whole.body);
        let files = unpack(&whole.body);
        assert_peft(&files);
        assert!(
            file.is_none_or(|file| files.contains_key(file)),
            "{:?}",
            files.keys()
        );
    }
}

#[tokio::test]
async fn a_broken_download_goes_on_where_it_ended() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let path = server.save("/save_weights", &model, 1, "a").await;
    let link = archive(&server, &path).await.headers["location"]
        .to_str()
        .unwrap()
        .to_owned();
    let whole = server.follow(&link, &[]).await;
    let half = whole.body.len() / 2;
    // Links and archives are the same after a restart.
    let link = link.strip_prefix(&server.url()).unwrap().to_owned();
    let server = server.restart(|_| {}).await;
    let link = format!("{}{link}", server.url());
    let range = format!("bytes={half}-");
    let rest = server.follow(&link, &[("range", &range)]).await;
    assert_eq!(rest.status, 206);
    let expected = format!("bytes {half}-{}/{}", whole.body.len() - 1, whole.body.len());
    assert_eq!(rest.headers["content-range"], expected.as_str());
    assert_eq!(
        rest.headers["last-modified"],
        whole.headers["last-modified"]
    );
    assert_eq!([&whole.body[..half], &rest.body[..]].concat(), whole.body);
    let beyond = format!("bytes={}-", whole.body.len());
    assert_eq!(
        server.follow(&link, &[("range", &beyond)]).await.status,
        416
    );
    let left = std::fs::read_dir(server.data().join("partial"))
        .unwrap()
        .count();
    assert_eq!(left, 0, "archives take no room when nobody downloads them");
}

#[tokio::test]
async fn the_files_of_external_weights_are_fetched_one_by_one_without_a_key() {
    let server = TestServer::real(|_| {}).await;
    let model = server.model().await;
    let path = server.save("/save_weights_external", &model, 1, "a").await;
    let found = links(&server, &path).await;
    let expires: Timestamp = found["expires"].as_str().unwrap().parse().unwrap();
    assert!(expires > Timestamp::now());
    let mut files = BTreeMap::new();
    for (name, link) in found["urls"].as_object().unwrap() {
        let link = link.as_str().unwrap();
        let whole = server.follow(link, &[]).await;
        assert_eq!(whole.status, 200, "{name}");
        let part = server.follow(link, &[("range", "bytes=2-5")]).await;
        assert_eq!(
            (part.status.as_u16(), &part.body[..]),
            (206, &whole.body[2..6]),
            "{name}"
        );
        files.insert(name.clone(), whole.body.to_vec());
    }
    assert_eq!(files.len(), 2, "{:?}", files.keys());
    assert_peft(&files);

    let training = server.save("/save_weights", &model, 2, "a").await;
    let at = format!("{}/external_weights_urls", address(&training));
    let answer = server.me().call(Method::GET, &at, &Value::Null).await;
    assert_eq!(
        answer.status, 400,
        "only external weights have links of their own"
    );
}

#[tokio::test]
async fn a_link_that_was_changed_in_any_way_is_refused() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let path = server.save("/save_weights_external", &model, 1, "a").await;
    let other = server.save("/save_weights_external", &model, 2, "b").await;
    let link = |found: &Value| {
        found["urls"]["adapter_config.json"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (found, other) = (links(&server, &path).await, links(&server, &other).await);
    let (good, other) = (link(&found), link(&other));
    let (place, query) = good.split_once('?').unwrap();
    let (_, other_query) = other.split_once('?').unwrap();
    let seconds = query
        .strip_prefix("expires=")
        .unwrap()
        .split('&')
        .next()
        .unwrap();
    let later = (seconds.parse::<i64>().unwrap() + 3600).to_string();
    let mut forged = vec![
        place.to_owned(),
        format!("{place}?"),
        format!("{place}?{other_query}"),
        format!("{good}&x=1"),
        format!("{good}="),
        good.replace(seconds, &later),
        good.replace("adapter_config.json", "adapter_model.safetensors"),
        good.replace("adapter_config.json", "..%2f..%2fsecret"),
        good.replace("adapter_config.json", "%2e%2e"),
    ];
    // A signature of the right length, with one character another one.
    let (start, signature) = good.split_once("signature=").unwrap();
    for index in [0, signature.len() / 2] {
        let mut changed = signature.as_bytes().to_vec();
        changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
        forged.push(format!(
            "{start}signature={}",
            String::from_utf8(changed).unwrap()
        ));
    }
    for link in forged {
        let answer = server.follow(&link, &[]).await;
        assert_eq!(answer.status, 403, "{link}");
        assert!(answer.detail().contains("link"), "{link}");
    }
    assert_eq!(server.follow(&good, &[]).await.status, 200);

    // A link that was made by this server's secret, and whose time is over.
    let expired = expired_link(&server, place.strip_prefix(&server.url()).unwrap());
    let answer = server.follow(&expired, &[]).await;
    assert_eq!(
        (answer.status.as_u16(), answer.detail().contains("expired")),
        (403, true)
    );

    server
        .me()
        .call(Method::DELETE, &address(&path), &Value::Null)
        .await;
    let gone = server.follow(&good, &[]).await;
    assert_eq!(
        (gone.status.as_u16(), gone.detail().contains("deleted")),
        (404, true)
    );
}

/// Signs a path as the server does, for a time that is over.
fn expired_link(server: &TestServer, path: &str) -> String {
    let secret = std::fs::read(server.data().join("secret")).unwrap();
    let root = hmac::Key::new(hmac::HMAC_SHA256, &secret);
    let key = hmac::sign(&root, b"tinkrs link");
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_ref());
    let expires = Timestamp::now().as_second() - 1;
    let signature = hmac::sign(&key, format!("{expires}\n{path}").as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(signature);
    format!(
        "{}{path}?expires={expires}&signature={signature}",
        server.url()
    )
}
