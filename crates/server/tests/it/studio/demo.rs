//! The demo that a first visit offers, and the files of the pages.

use std::sync::Mutex;

use http::Method;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::browser::Browser;
use crate::caller::{KEY, TestServer};

#[tokio::test]
async fn a_demo_runs_as_whoever_starts_it_and_one_at_a_time() {
    let server = TestServer::start().await;
    let start = || server.post("/studio/demo", json!({}));
    let absent = start().await;
    assert_eq!(absent.status, 404);
    assert!(absent.detail().contains("no demo"), "{}", absent.detail());

    let (told, mut credentials) = mpsc::unbounded_channel();
    let (end, ended) = oneshot::channel::<()>();
    let ended = Mutex::new(Some(ended));
    server.server().offer_demo(move |credential| {
        let _ = told.send(credential);
        let ended = ended.lock().unwrap().take();
        async move {
            if let Some(ended) = ended {
                let _ = ended.await;
            }
            Ok(())
        }
    });
    assert_eq!(start().await.status, 200);
    let credential = credentials.recv().await.unwrap();
    // It is a credential of the caller's, and not the key.
    assert_ne!(credential, KEY);
    let headers = [("x-api-key", credential.as_str())];
    let path = "/api/v1/training_runs";
    let listed = server.try_send(Method::GET, path, &headers, "").await;
    assert_eq!(listed.unwrap().status, 200);
    let second = start().await;
    assert!(
        second.detail().contains("running already"),
        "{}",
        second.detail()
    );

    drop(end);
    // The first is over in a moment, and then there may be another.
    while start().await.status != 200 {
        tokio::task::yield_now().await;
    }
    credentials.recv().await.unwrap();
}

#[tokio::test]
async fn pages_load_files_that_may_be_kept_for_ever() {
    let server = TestServer::start().await;
    let mut browser = Browser::logged_in(&server, KEY).await;
    let page = String::from_utf8(browser.get("/").await.body.to_vec()).unwrap();
    let links = page.split('"').filter(|part| part.starts_with("/assets/"));
    let links: Vec<_> = links.map(str::to_owned).collect();
    assert!(links.len() >= 4, "{page}");
    for link in links {
        let plain = browser.get(&link).await;
        assert_eq!(plain.status, 200, "{link}");
        assert!(!plain.headers.contains_key("content-encoding"), "{link}");
        let kept = plain.headers["cache-control"].to_str().unwrap();
        assert!(kept.contains("immutable"), "{kept}");
        let gzip = [("accept-encoding", "br, gzip;q=0.9")];
        let small = browser.send(Method::GET, &link, &gzip, "").await;
        assert_eq!(small.headers["content-encoding"], "gzip", "{link}");
        assert!(small.body.starts_with(&[0x1f, 0x8b]), "{link}");
    }
    assert_eq!(browser.get("/assets/nothing.js").await.status, 404);
}

#[tokio::test]
async fn the_view_of_the_server_counts_checkpoints_and_their_bytes() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let disk = async || server.get("/studio/server").await["disk"].clone();
    let empty = disk().await;
    assert_eq!(
        (&empty["checkpoint_count"], &empty["checkpoints"]),
        (&json!(0), &json!(0))
    );
    server.save("/save_weights", &run, 1, "kept").await;
    let one = disk().await;
    assert_eq!(one["checkpoint_count"], 1);
    assert!(one["checkpoints"].as_u64().unwrap() > 1000, "{one}");
}
