//! Many clients at once: nothing is lost, nothing happens twice, and memory stays where it was.
//!
//! Rounds of 400 samples and 50 training runs, beside listings without end. There are a few of them;
//! `TINKRS_LOAD_SECONDS` asks for as many more as fit in that time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::Method;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

use crate::caller::{Local, TestServer, pass, step};

const ROUNDS: usize = 8;
const RUNS: usize = 50;
const STEPS: i64 = 3;
const SAMPLES: usize = 400;
/// Samples differ in this many ways.
const KINDS: usize = 8;
const SAMPLED_TOKENS: usize = 12;

/// How many bytes this process has in memory.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}

async fn session(local: &Local) -> Value {
    let body = json!({"tags": [], "sdk_version": "0.36.0"});
    local.ok("/create_session", body).await["session_id"].clone()
}

/// Sends a request twice at the same moment, as a client does whose connection broke.
async fn submit_twice(local: &Local, path: &str, body: &Value) -> Value {
    let (first, second) = tokio::join!(local.ok(path, body.clone()), local.ok(path, body.clone()));
    assert_eq!(first["request_id"], second["request_id"], "{path}");
    first
}

/// Trains a run of its own, and returns its losses.
async fn train(local: &Local) -> Vec<f64> {
    let session = session(local).await;
    let create = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 4, "seed": 1},
    });
    let created = submit_twice(local, "/create_model", &create).await;
    let model = local.result(&created).await["model_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut passes = Vec::new();
    let mut steps = Vec::new();
    for number in 0..STEPS {
        let seq_id = 2 * number + 1;
        passes.push(submit_twice(local, "/forward_backward", &pass(&model, seq_id)).await);
        steps.push(submit_twice(local, "/optim_step", &step(&model, seq_id + 1)).await);
    }
    let mut losses = Vec::new();
    for promise in &passes {
        let result = local.result(promise).await;
        losses.push(result["metrics"]["loss:sum"].as_f64().unwrap());
    }
    for (number, promise) in (1..).zip(&steps) {
        let result = local.result(promise).await;
        assert_eq!(
            result["metrics"]["step"],
            json!(f64::from(number)),
            "each step is one"
        );
    }
    let finish = json!({"reason": {"type": "success"}, "detail": null});
    let path = format!("/sessions/{}/finish", session.as_str().unwrap());
    local.ok(&path, finish).await;
    losses
}

/// Samples, and returns the tokens.
async fn sample(local: &Local, sampler: &Value, number: usize) -> Value {
    let body = json!({
        "sampling_session_id": sampler, "seq_id": number, "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [1 + number % KINDS, 5, 9]}]},
        "sampling_params": {"max_tokens": SAMPLED_TOKENS, "seed": number % KINDS, "stop": []},
    });
    let promise = submit_twice(local, "/asample", &body).await;
    local.result(&promise).await["sequences"][0]["tokens"].clone()
}

/// Lists everything again and again until it is told to stop, and returns how often.
async fn list(local: &Local, stop: &tokio::sync::watch::Receiver<bool>) -> usize {
    let mut listed = 0;
    while !*stop.borrow() {
        for path in [
            "/training_runs?limit=200",
            "/checkpoints",
            "/sessions?limit=500",
            "/healthz",
        ] {
            let answer = local.call(Method::GET, path, &Value::Null).await;
            assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
            listed += 1;
        }
        let found = local.ok("/sessions/search", json!({"limit": 200})).await;
        assert!(found["sessions"].as_array().unwrap().len() <= 200);
        tokio::task::yield_now().await;
    }
    listed
}

/// Adds up what was used.
async fn used(local: &Local, kind: &str) -> u64 {
    let hour = Timestamp::from_second(Timestamp::now().as_second() / 3600 * 3600).unwrap();
    let (start, end) = (hour - 24.hours(), hour + 2.hours());
    let path = format!("/billing/usage/events?starting_on={start}&ending_before={end}");
    let usage = local.call(Method::GET, &path, &Value::Null).await.json();
    let events = usage["data"].as_array().unwrap().iter();
    let events = events.filter(|event| event["event_info"]["type"] == kind);
    events
        .map(|event| event["event_info"]["token_count"].as_u64().unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_samples_and_listings_at_once_lose_and_repeat_nothing() {
    let seconds = std::env::var("TINKRS_LOAD_SECONDS").ok();
    let seconds = seconds.map_or(0, |text| {
        text.parse().expect("TINKRS_LOAD_SECONDS: a number")
    });
    let server = TestServer::start().await;
    let local = server.local();

    // What everything has to be like when it is alone.
    let expected_losses = train(&local).await;
    let own = session(&local).await;
    let sampler = |number: usize| json!({"session_id": own, "sampling_session_seq_id": number, "base_model": "tiny"});
    let alone = local.ok("/create_sampling_session", sampler(0)).await;
    let alone = &alone["sampling_session_id"];
    let mut expected_tokens = Vec::new();
    for number in 0..KINDS {
        expected_tokens.push(sample(&local, alone, number).await);
    }

    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    let mut before = None;
    loop {
        rounds += 1;
        let sampler = local.ok("/create_sampling_session", sampler(rounds)).await;
        let sampler = &sampler["sampling_session_id"];
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let work = async {
            let done = tokio::join!(
                join_all((0..RUNS).map(|_| train(&local))),
                join_all((0..SAMPLES).map(|number| sample(&local, sampler, number))),
            );
            stop.send_replace(true);
            done
        };
        let ((losses, tokens), listed) = tokio::join!(work, list(&local, &stopped));
        assert_eq!(losses, vec![expected_losses.clone(); RUNS]);
        for (number, tokens) in tokens.iter().enumerate() {
            assert_eq!(*tokens, expected_tokens[number % KINDS], "sample {number}");
        }
        assert!(listed > 0);
        // The first round fills what is meant to be filled: caches, pools, the heap.
        let now = resident_bytes();
        let first = *before.get_or_insert(now);
        if let (Some(first), Some(now)) = (first, now) {
            let grown = now.saturating_sub(first) >> 20;
            assert!(grown < 256, "{grown} MiB more after {rounds} rounds");
            assert!(now >> 20 < 2048, "{} MiB", now >> 20);
        }
        if rounds >= ROUNDS && Instant::now() >= deadline {
            break;
        }
    }

    // Each was counted once, as it happened once.
    let runs = (rounds * RUNS + 1) as u64;
    let samples = (rounds * SAMPLES + KINDS) as u64;
    assert_eq!(
        used(&local, "training").await,
        runs * STEPS.cast_unsigned() * 3
    );
    assert_eq!(
        used(&local, "sampling_sample").await,
        samples * SAMPLED_TOKENS as u64
    );
    assert_eq!(used(&local, "sampling_prefill").await, samples * 3);
    let mut ids = BTreeSet::new();
    let page = server.get("/training_runs?limit=100000").await;
    for run in page["training_runs"].as_array().unwrap() {
        assert!(
            ids.insert(run["training_run_id"].to_string()),
            "{run} twice"
        );
        assert_eq!(run["corrupted"], false);
    }
    assert_eq!(ids.len() as u64, runs);
}
