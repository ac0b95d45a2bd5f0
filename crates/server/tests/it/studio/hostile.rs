//! Names and numbers that are meant to do harm.

use std::time::Instant;

use http::Method;
use serde_json::{Map, Value, json};

use super::browser::Browser;
use crate::caller::{KEY, TestServer};

const MARKUP: &str = "</script><img src=x onerror=alert(1)>\"'&";
const BIDI: &str = "\u{202e}evil\u{2066}\u{200f}";

#[tokio::test]
async fn hostile_names_come_back_as_they_are_and_are_text_in_pages() {
    let server = TestServer::start().await;
    let body = json!({"tags": [MARKUP, BIDI], "sdk_version": MARKUP, "display_name": BIDI});
    let session = server.ok("/create_session", body).await;
    let create = json!({
        "session_id": session["session_id"], "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 4}, "user_metadata": {MARKUP: BIDI, "big": "x".repeat(60_000)},
    });
    let created = server.promise("/create_model", create).await;
    let run = server.result(&created).await["model_id"].clone();
    let run = run.as_str().unwrap();
    let path = format!("/training_runs/{run}/metrics");
    server
        .ok(
            &path,
            json!({"step": 1, "metrics": {MARKUP: 1.0, BIDI: 2.0}}),
        )
        .await;
    let found = server.get(&path).await;
    let names: Vec<_> = found["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].clone())
        .collect();
    assert!(
        names.contains(&json!(MARKUP)) && names.contains(&json!(BIDI)),
        "{names:?}"
    );
    let summary = server.get("/studio/runs").await["runs"][0].clone();
    assert_eq!(summary["tags"], json!([MARKUP, BIDI]));
    assert_eq!(server.get("/studio/runs?query=onerror").await["total"], 1);
    assert_eq!(
        server.get("/studio/runs?query=%25").await["total"],
        0,
        "no wildcard"
    );
    let long = format!("/studio/runs?query={}", "x".repeat(300));
    assert_eq!(server.send(Method::GET, &long, &[], "").await.status, 400);
    let mut browser = Browser::logged_in(&server, KEY).await;
    for path in ["/".to_owned(), format!("/runs/{run}"), "/server".to_owned()] {
        let answer = browser.get(&path).await;
        assert_eq!(answer.status, 200, "{path}");
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(!text.contains("<img src=x"), "{path}: {text}");
    }
}

#[tokio::test]
async fn a_run_has_a_bounded_number_of_metrics_and_points() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let path = format!("/training_runs/{run}/metrics");
    let mut refused = 0;
    // Ten thousand names, of which a thousand are taken.
    for batch in 0..157 {
        let name = |n| (format!("m{}", batch * 64 + n), json!(n));
        let metrics: Map<String, Value> = (0..64).map(name).collect();
        let answer = server
            .post(&path, json!({"step": 1, "metrics": metrics}))
            .await;
        if answer.status == 400 {
            assert!(
                answer.detail().contains("at most 1000"),
                "{}",
                answer.detail()
            );
            refused += 1;
        } else {
            assert_eq!(answer.status, 200);
        }
    }
    assert_eq!(refused, 157 - 15);
    let found = server.get(&format!("{path}?points=5000")).await;
    assert_eq!(found["series"].as_array().unwrap().len(), 15 * 64);
    let known = json!({"step": 2, "metrics": {"m0": 1}});
    server.ok(&path, known).await;
    // Those of the server have room beside them.
    let id = server.optim_step(&run, 1).await;
    server.result(&id).await;
    let found = server.get(&format!("{path}?names=optim_step_ms")).await;
    assert_eq!(found["series"][0]["count"], 1);
}

#[tokio::test]
async fn many_steps_of_many_reporters_are_answered_soon() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let path = format!("/training_runs/{run}/metrics");
    let far = [0_u64, 1, 1 << 40, (1 << 53) - 1];
    for step in far {
        server
            .ok(&path, json!({"step": step, "metrics": {"far": 1}}))
            .await;
    }
    let found = server.get(&format!("{path}?names=far&points=2")).await;
    assert_eq!(found["last_step"], json!(far[3]));
    assert!(found["series"][0]["points"].as_array().unwrap().len() <= 2);
    let start = Instant::now();
    let reports = (0..2000).map(|step| {
        let body = json!({"step": step, "metrics": {"a": step, "b": 0.5}});
        server.ok(&path, body)
    });
    futures_util::future::join_all(reports).await;
    let found = server.get(&format!("{path}?names=a")).await;
    assert_eq!(found["series"][0]["count"], 2000, "{:?}", start.elapsed());
    assert!(found["series"][0]["points"].as_array().unwrap().len() <= 501);
}
