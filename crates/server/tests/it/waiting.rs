//! What waits for its turn takes no more memory than its part, and is the same when it is read again.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tinkrs_server::Settings;
use tinkrs_testkit::FakeBackend;

use crate::budget::{FIXED, MIB, accounted};
use crate::caller::{TestServer, base, long_pass, step};

/// A pass takes a hundred kilobytes of memory, and this many of them several times the room.
const PASSES: i64 = 24;

/// A 32nd is for what waits, and half of that for one owner.
fn little(settings: &mut Settings) {
    settings.memory = Some(FIXED + 32 * MIB);
}
const ROOM: u64 = MIB / 2;

/// Another pass for each number.
fn numbered_pass(model: &str, seq_id: i64) -> Value {
    let mut body = long_pass(model, seq_id, 40);
    let first = &mut body["forward_backward_input"]["data"][0];
    first["model_input"]["chunks"][0]["tokens"][0] = json!(seq_id);
    body
}

/// Queues passes, with steps in between, behind number 1, which has not come.
async fn queue_behind_a_gap(server: &TestServer, model: &str) -> Vec<String> {
    let mut passes = Vec::new();
    for number in 1..=PASSES {
        let body = numbered_pass(model, 2 * number);
        passes.push(server.promise("/forward_backward", body).await);
        server.optim_step(model, 2 * number + 1).await;
    }
    passes
}

async fn losses(server: &TestServer, passes: &[String]) -> Vec<f64> {
    let mut losses = Vec::new();
    for id in passes {
        losses.push(server.loss(id).await);
    }
    losses
}

/// The losses of the passes on a server that has all the memory.
async fn expected() -> Vec<f64> {
    let server = TestServer::start().await;
    let model = server.model().await;
    let passes = queue_behind_a_gap(&server, &model).await;
    assert!(accounted(&server, "waiting").await > 4 * ROOM);
    server.optim_step(&model, 1).await;
    let losses = losses(&server, &passes).await;
    assert_eq!(accounted(&server, "waiting").await, 0);
    losses
}

#[tokio::test]
async fn passes_that_wait_stay_within_their_memory_and_are_computed_as_if_they_had_it() {
    let expected = expected().await;
    let server = TestServer::with(little).await;
    let model = server.model().await;
    let passes = queue_behind_a_gap(&server, &model).await;
    let waiting = accounted(&server, "waiting").await;
    assert!((ROOM / 2..=ROOM).contains(&waiting), "{waiting}");
    server.optim_step(&model, 1).await;
    assert_eq!(losses(&server, &passes).await, expected);
    assert_eq!(accounted(&server, "waiting").await, 0);
}

#[tokio::test]
async fn passes_that_wait_are_the_same_after_a_restart() {
    let expected = expected().await;
    let server = TestServer::with(little).await;
    let model = server.model().await;
    let passes = queue_behind_a_gap(&server, &model).await;
    let server = server.restart(little).await;
    let waiting = accounted(&server, "waiting").await;
    assert!((ROOM / 2..=ROOM).contains(&waiting), "{waiting}");
    server.optim_step(&model, 1).await;
    let half = losses(&server, &passes[..10]).await;
    assert_eq!(half, expected[..10]);
    let server = server.restart(little).await;
    assert_eq!(losses(&server, &passes[10..]).await, expected[10..]);
}

#[tokio::test]
async fn a_pass_that_the_disk_does_not_give_back_fails_and_the_rest_goes_on() {
    let server = TestServer::with(|settings| settings.memory = Some(FIXED + 64 * MIB)).await;
    let model = server.model().await;
    let mut passes = Vec::new();
    for seq_id in 2..2 + PASSES {
        // So large that it is a file.
        let body = format!("{}{}", numbered_pass(&model, seq_id), " ".repeat(70_000));
        let headers = [("content-type", "application/json")];
        let answer = server
            .send(Method::POST, "/forward_backward", &headers, body)
            .await;
        let id = answer.json()["request_id"].as_str().unwrap().to_owned();
        passes.push(id);
    }
    let bodies = server.data().join("bodies");
    let file = |id: &String| {
        let mut files = std::fs::read_dir(&bodies)
            .unwrap()
            .map(|file| file.unwrap().path());
        let is_its = |file: &std::path::PathBuf| file.to_str().unwrap().contains(id.as_str());
        files.find(is_its).expect("a file")
    };
    let (lost, changed) = (&passes[PASSES as usize - 3], &passes[PASSES as usize - 2]);
    std::fs::remove_file(file(lost)).unwrap();
    std::fs::write(file(changed), "{}").unwrap();
    server.optim_step(&model, 1).await;
    for (id, why) in [(lost, "could not read"), (changed, "damaged on the disk")] {
        let failed = server.result(id).await;
        let error = failed["error"].as_str().expect("a message");
        assert!(error.contains(why), "{error}");
        assert_eq!(failed["category"], "server");
    }
    let last = server.loss(&passes[PASSES as usize - 1]).await;
    assert!(last > 0.0);
    let after = server
        .promise("/optim_step", step(&model, 2 + PASSES))
        .await;
    let stepped = server.result(&after).await;
    assert_eq!(stepped["metrics"]["optimizer_step"], 2.0, "{stepped}");
}

/// Holds up the thread that computes.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn set_closed(&self, closed: bool) {
        *self.0.0.lock().unwrap() = closed;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let (closed, changed) = &*self.0;
        let long = Duration::from_secs(60);
        let waited = changed.wait_timeout_while(closed.lock().unwrap(), long, |closed| *closed);
        assert!(!waited.unwrap().1.timed_out(), "the gate was not opened");
    }
}

/// A sample that takes some kilobytes of memory.
fn sample(seed: i64) -> Value {
    json!({
        "base_model": "tiny", "num_samples": 1, "prompt": {"chunks": [{"tokens": [1, 5]}]},
        "sampling_params": {"max_tokens": 8, "seed": seed, "stop": vec![90; 2048]},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_that_wait_stay_within_their_memory_and_are_drawn_as_if_they_had_it() {
    let gate = Gate::default();
    let inner = gate.clone();
    let backend = FakeBackend::new().before_slice(move || inner.pass());
    let data = Arc::new(tempfile::tempdir().unwrap());
    let server = TestServer::of(base(backend), data, little).await;
    let ample = TestServer::start().await;
    let model = server.model().await;
    gate.set_closed(true);
    let pass = server
        .promise("/forward_backward", long_pass(&model, 1, 1))
        .await;
    let (mut waiting, mut drawn) = (Vec::new(), Vec::new());
    for seed in 0..100 {
        waiting.push(server.promise("/asample", sample(seed)).await);
        drawn.push(ample.promise("/asample", sample(seed)).await);
    }
    let bytes = accounted(&server, "waiting").await;
    assert!((ROOM / 2..=ROOM).contains(&bytes), "{bytes}");
    // One that would take long to read again is refused, unless the owner has nothing else waiting.
    let mut long = sample(0);
    long["sampling_params"]["stop"] = "x".repeat(70_000).into();
    let refused = server.post("/asample", long.clone()).await;
    assert_eq!(refused.status, 429);
    assert!(refused.detail().contains("bytes of samples of this key"));
    let other = server.owner("tml-other");
    let taken = other.ok("/asample", long).await;
    assert_eq!(
        accounted(&server, "waiting").await,
        bytes,
        "it is in the journal"
    );
    gate.set_closed(false);
    server.loss(&pass).await;
    for (here, there) in waiting.iter().zip(&drawn) {
        let (here, there) = (server.result(here).await, ample.result(there).await);
        assert!(here["sequences"].is_array(), "{here}");
        assert_eq!(here["sequences"], there["sequences"]);
    }
    let taken = json!({"request_id": taken["request_id"]});
    let taken = other.call(Method::POST, "/retrieve_future", &taken).await;
    let error = taken.json()["error"].to_string();
    assert!(error.contains("stop"), "there is no tokenizer: {error}");
    assert_eq!(accounted(&server, "waiting").await, 0);
}

#[tokio::test]
async fn labels_of_saves_that_wait_are_bounded_and_other_owners_have_their_room() {
    let server = TestServer::with(|settings| settings.memory = Some(FIXED + 8 * MIB)).await;
    let model = server.model().await;
    // 256 KiB for what waits, and half of that for one owner.
    let save = |seq_id: i64| {
        json!({
            "model_id": model, "seq_id": seq_id, "path": format!("p{seq_id}"),
            "user_metadata": {"a": "x".repeat(60 << 10)},
        })
    };
    let first = server.promise("/save_weights", save(2)).await;
    let second = server.promise("/save_weights", save(3)).await;
    let refused = server.post("/save_weights", save(4)).await;
    assert_eq!(refused.status, 429, "{:?}", refused.body);
    // What others wait for is taken all the same.
    server.promise("/save_weights", save(1)).await;
    assert!(server.result(&first).await["path"].is_string());
    // The bytes of an operation are given back behind its result, so those of the first are free now.
    assert!(server.result(&second).await["path"].is_string());
    let later = server.promise("/save_weights", save(4)).await;
    assert!(server.result(&later).await["path"].is_string());
}
