//! An operation that ends the process is not tried for ever, and everything else goes on.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use tinkrs_server::{LocalServer, Settings};
use tinkrs_testkit::FakeBackend;

use crate::caller::{base, pass, step, try_send};

/// The token that the backend dies at.
const DEADLY: u32 = 66;
/// The data folder of a server that is a process of its own.
const DATA: &str = "TINKRS_TEST_POISONED_DATA";

/// Not a test by itself: a server in a process of its own, which may die.
#[test]
fn a_server_in_a_process_of_its_own() {
    let Some(data) = std::env::var_os(DATA) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let models = vec![base(FakeBackend::new().dies_at(DEADLY))];
        let server = LocalServer::start(models, Settings::new(data))
            .await
            .unwrap();
        let mut out = std::io::stdout();
        writeln!(out, "\nlistening on {}", server.address()).unwrap();
        // Until the test has no use for it.
        let _ =
            tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
        server.stop().await.unwrap();
    });
}

struct Process {
    child: Child,
    /// `None` if it died before it listened.
    address: Option<SocketAddr>,
}

impl Process {
    fn start(data: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "poison::a_server_in_a_process_of_its_own",
                "--nocapture",
            ])
            .env(DATA, data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let address =
            lines.find_map(|line| Some(line.strip_prefix("listening on ")?.parse().unwrap()));
        // The rest is read, so that it can be written.
        std::thread::spawn(move || lines.count());
        Self { child, address }
    }

    /// Waits for the end of the process.
    fn died(mut self) {
        // Waiting would close it, and the process would stop by itself.
        let _stdin = self.child.stdin.take();
        let status = self.child.wait().unwrap();
        assert!(!status.success(), "it lives: {status}");
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.try_post(path, body).await;
        answer.unwrap_or_else(|| panic!("{path}: it died"))
    }

    /// Posts something that the process may not live to answer.
    async fn try_post(&self, path: &str, body: Value) -> Option<Value> {
        let path = format!("/api/v1{path}");
        let headers = [
            ("content-type", "application/json"),
            ("accept", "application/json"),
        ];
        let address = self.address.expect("it listens");
        loop {
            let sent = try_send(address, Method::POST, &path, &headers, body.to_string());
            let answer = sent.await.ok()?;
            if answer.status != 408 {
                assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
                return Some(answer.json());
            }
        }
    }

    async fn result(&self, promise: &Value) -> Value {
        self.post(
            "/retrieve_future",
            json!({"request_id": promise["request_id"]}),
        )
        .await
    }

    async fn session(&self) -> Value {
        let body = json!({"tags": [], "sdk_version": "0.36.0"});
        self.post("/create_session", body).await["session_id"].clone()
    }

    async fn model(&self) -> String {
        let body = json!({
            "session_id": self.session().await, "model_seq_id": 0, "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1},
        });
        let created = self.post("/create_model", body).await;
        let result = self.result(&created).await;
        result["model_id"].as_str().expect("an id").to_owned()
    }
}

/// A request for samples of a sampling session.
fn sample(sampler: &Value, seq_id: u64, token: u32, count: u32) -> Value {
    json!({
        "sampling_session_id": sampler, "seq_id": seq_id, "num_samples": count,
        "prompt": {"chunks": [{"tokens": [token]}]},
        "sampling_params": {"max_tokens": 100, "seed": 1, "stop": []},
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pass that the backend dies of.
fn deadly_pass(model: &str, seq_id: i64) -> Value {
    let mut body = pass(model, seq_id);
    let datum = &mut body["forward_backward_input"]["data"][0];
    datum["model_input"] = json!({"chunks": [{"type": "encoded_text", "tokens": [1, DEADLY, 2]}]});
    body
}

fn assert_poison(result: &Value) {
    let error = result["error"]
        .as_str()
        .unwrap_or_else(|| panic!("no error: {result}"));
    assert!(
        error.contains("ended 2 times") && error.contains("not tried again"),
        "{error}"
    );
}

#[tokio::test]
async fn an_operation_that_ends_the_process_twice_fails_and_everything_else_goes_on() {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let first = Process::start(data.path());
    let (model, other) = (first.model().await, first.model().await);
    let done = first.post("/forward_backward", pass(&other, 1)).await;
    let loss = first.result(&done).await;
    // They wait for the first number, so all of them are answered before anything happens.
    let deadly = first
        .post("/forward_backward", deadly_pass(&model, 2))
        .await;
    let after = first.post("/optim_step", step(&model, 3)).await;
    let waits = first.post("/optim_step", step(&other, 3)).await;
    first.try_post("/forward_backward", pass(&model, 1)).await;
    first.died();
    Process::start(data.path()).died();

    let third = Process::start(data.path());
    assert_poison(&third.result(&deadly).await);
    let before = third.post("/forward_backward", pass(&model, 1)).await;
    assert_eq!(third.result(&before).await, loss, "it is the first request");
    let after = third.result(&after).await;
    assert_eq!(after["metrics"]["optimizer_step"], 1.0, "{after}");
    assert_eq!(third.result(&done).await, loss);
    third.post("/optim_step", step(&other, 2)).await;
    let waited = third.result(&waits).await;
    assert_eq!(waited["metrics"]["optimizer_step"], 2.0, "{waited}");
    drop(third);

    // It is not tried by a later server either.
    let fourth = Process::start(data.path());
    assert_poison(&fourth.result(&deadly).await);
    let passed = fourth.post("/forward_backward", pass(&model, 4)).await;
    assert!(fourth.result(&passed).await["metrics"].is_object());
}

#[tokio::test]
async fn of_several_samples_the_one_that_ends_the_process_twice_fails() {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let first = Process::start(data.path());
    let session = first.session().await;
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
    let sampler = first.post("/create_sampling_session", body).await["sampling_session_id"].clone();
    let others = [
        first.post("/asample", sample(&sampler, 0, 5, 2000)).await,
        first.post("/asample", sample(&sampler, 1, 5, 2000)).await,
    ];
    let deadly = sample(&sampler, 2, DEADLY, 1);
    first.try_post("/asample", deadly.clone()).await;
    first.died();
    Process::start(data.path()).died();

    let third = Process::start(data.path());
    let deadly = third.post("/asample", deadly).await;
    assert_poison(&third.result(&deadly).await);
    let [one, other] = others;
    let one = third.result(&one).await["sequences"].clone();
    assert_eq!(one.as_array().map(Vec::len), Some(2000));
    assert_eq!(third.result(&other).await["sequences"], one);
}
