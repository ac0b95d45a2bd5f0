//! The operations of a run, and the reason for every wait.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tinkrs_testkit::FakeBackend;

use crate::caller::{TestServer, base, long_pass, step};

/// Holds up the thread that computes.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let (closed, changed) = &*self.0;
        let limit = Duration::from_secs(60);
        let waited = changed.wait_timeout_while(closed.lock().unwrap(), limit, |closed| *closed);
        assert!(!waited.unwrap().1.timed_out(), "the gate was not opened");
    }

    fn set_closed(&self, closed: bool) {
        *self.0.0.lock().unwrap() = closed;
        self.0.1.notify_all();
    }
}

async fn operations(server: &TestServer, run: &str) -> Vec<Value> {
    let found = server
        .get(&format!("/training_runs/{run}/operations"))
        .await;
    found["operations"].as_array().unwrap().clone()
}

/// The reasons of an operation, by its sequence id.
fn reasons(operations: &[Value], seq_id: i64) -> Vec<(String, u64)> {
    let operation = operations.iter().find(|it| it["seq_id"] == seq_id);
    let operation = operation.unwrap_or_else(|| panic!("{seq_id}: {operations:?}"));
    let waits = operation["waits"].as_array().unwrap().iter();
    let wait = |it: &Value| {
        let reason = it["reason"].as_str().unwrap().to_owned();
        (reason, it["ms"].as_u64().unwrap())
    };
    waits.map(wait).collect()
}

fn longest(operations: &[Value], seq_id: i64) -> Option<String> {
    let reasons = reasons(operations, seq_id).into_iter();
    reasons.max_by_key(|(_, ms)| *ms).map(|(reason, _)| reason)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wait_has_its_reason() {
    let gate = Gate::default();
    let backend = FakeBackend::new().before_slice({
        let gate = gate.clone();
        move || gate.pass()
    });
    let server = TestServer::of(
        base(backend),
        Arc::new(tempfile::tempdir().unwrap()),
        |_| {},
    )
    .await;
    let (run, other) = (server.model().await, server.model().await);
    gate.set_closed(true);
    // The first is held; the second waits for it; the third's predecessor does not come.
    server.forward_backward(&run, 1).await;
    server.forward_backward(&run, 2).await;
    server.forward_backward(&run, 4).await;
    // Of the same owner, so it stands in the same line.
    let blocked = server.forward_backward(&other, 1).await;
    let pending = operations(&server, &run).await;
    assert!(
        pending[0]["outcome"].is_null() && pending[0]["seq_id"] == 4,
        "{pending:?}"
    );
    assert_eq!(longest(&pending, 4).as_deref(), Some("gap"));
    assert_eq!(longest(&pending, 2).as_deref(), Some("compute"));
    let waited = std::time::Instant::now();
    let state = loop {
        let runs = server.get("/studio/runs").await;
        let all = runs["runs"].as_array().unwrap().iter();
        let mut states = all.map(|it| (it["id"].clone(), it["state"].clone()));
        let state = states.find(|(id, _)| *id == run).unwrap().1;
        // The worker takes it up in its own time, and so does the clock.
        if state == "training" && waited.elapsed() > Duration::from_millis(30) {
            break runs;
        }
    };
    assert!(
        state["runs"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["state"] == "waiting")
    );
    let pending = operations(&server, &run).await;
    for (seq_id, is_computed) in [(1, true), (2, false), (4, false)] {
        let operation = pending.iter().find(|it| it["seq_id"] == seq_id).unwrap();
        let (accepted, started) = (&operation["accepted"], &operation["started"]);
        assert_eq!(
            started.as_i64() >= accepted.as_i64(),
            is_computed,
            "{operation}"
        );
    }
    let missing = server.forward_backward(&run, 3).await;
    gate.set_closed(false);
    server.loss(&missing).await;
    server.loss(&blocked).await;
    let last = server.optim_step(&run, 5).await;
    server.result(&last).await;

    let ended = operations(&server, &run).await;
    assert_eq!(ended[0]["kind"], "optim_step");
    assert_eq!(longest(&ended, 2).as_deref(), Some("compute"), "{ended:?}");
    let gap = reasons(&ended, 4);
    assert!(
        gap.iter().any(|(reason, ms)| reason == "gap" && *ms >= 30),
        "{gap:?}"
    );
    let turn = operations(&server, &other).await;
    assert_eq!(longest(&turn, 1).as_deref(), Some("turn"), "{turn:?}");
    for operation in &ended {
        let time = |name: &str| operation[name].as_i64().unwrap();
        assert!(time("accepted") <= time("started") && time("started") <= time("ended"));
        assert!(operation["compute_ms"].is_u64(), "{operation}");
    }
}

#[tokio::test]
async fn operations_come_in_pages() {
    let server = TestServer::start().await;
    let run = server.model().await;
    for seq_id in 1..=9 {
        let id = server.promise("/optim_step", step(&run, seq_id)).await;
        server.result(&id).await;
    }
    let path = format!("/training_runs/{run}/operations?limit=4");
    let (mut before, mut seen) = (String::new(), Vec::new());
    loop {
        let page = server.get(&format!("{path}{before}")).await;
        let operations = page["operations"].as_array().unwrap();
        seen.extend(operations.iter().map(|it| it["seq_id"].as_i64().unwrap()));
        let last = operations.last().unwrap()["number"].as_i64().unwrap();
        before = format!("&before={last}");
        if page["more"] == json!(false) {
            break;
        }
        assert_eq!(operations.len(), 4);
    }
    assert_eq!(seen, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
}

#[tokio::test]
async fn time_in_which_the_server_was_down_is_a_pause() {
    let server = TestServer::start().await;
    let run = server.model().await;
    // Number 1 does not come before the server stops.
    server
        .promise("/forward_backward", long_pass(&run, 2, 1))
        .await;
    let before = std::time::Instant::now();
    while before.elapsed() < Duration::from_millis(15) {
        tokio::task::yield_now().await;
    }
    let server = server.restart(|_| {}).await;
    let first = server.forward_backward(&run, 1).await;
    server.loss(&first).await;
    let last = server.optim_step(&run, 3).await;
    server.result(&last).await;
    let ended = operations(&server, &run).await;
    let waits = reasons(&ended, 2);
    assert!(
        waits
            .iter()
            .any(|(reason, ms)| reason == "paused" && *ms >= 15),
        "{waits:?}"
    );
}
