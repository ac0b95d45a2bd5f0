//! The referee: it passes a server that keeps to the protocol, and fails one that does not, by name.
//!
//! Each faulty server is ours with one fault in front of it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tinkrs_testkit::scripted::{ANY, Gate, Reply, ScriptedServer, status};
use tinkrs_types::ForwardBackwardOutput;
use tinkrs_types::training::{BatchedTensor, OutputRecord};
use tinkrs_wire::op::forward_backward;

const KEY: &str = "tml-conform-test";

/// Our server as a process, which ends when this is dropped.
struct Ours {
    process: Child,
    url: String,
    _data: tempfile::TempDir,
}

impl Ours {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_tinkrs"))
            .args(["serve", "--addr", "127.0.0.1:0", "--data-dir"])
            .arg(data.path())
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let url = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        Self {
            process,
            url,
            _data: data,
        }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How a run ended: its exit code, and a result and a reason for each case.
struct Judged {
    code: Option<i32>,
    report: Value,
    stderr: String,
}

impl Judged {
    fn result(&self, name: &str) -> (&str, &str) {
        let cases = self.report["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["name"] == name);
        let case = case.unwrap_or_else(|| panic!("no case {name}"));
        (
            case["result"].as_str().unwrap(),
            case["detail"].as_str().unwrap(),
        )
    }
}

/// Runs the suite, or a part of it.
async fn conform(url: &str, only: &[&str], more: &[&str]) -> Judged {
    let home = tempfile::tempdir().unwrap();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tinkrs"));
    command.args(["conform", url, "--json"]).args(more);
    for name in only {
        command.args(["--only", name]);
    }
    command
        .env_clear()
        .env("HOME", home.path())
        .env("TINKER_API_KEY", KEY);
    let output = command.output().await.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&output.stdout);
    Judged {
        code: output.status.code(),
        report: report.unwrap_or_else(|error| panic!("{error}: {stderr}")),
        stderr,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_referee_passes_our_server_and_leaves_nothing_behind() {
    let ours = Ours::start();
    let only = ["service", "sessions", "ordering", "weights", "checkpoints"];
    let judged = conform(&ours.url, &only, &[]).await;
    assert_eq!(
        judged.code,
        Some(0),
        "{}\n{:#}",
        judged.stderr,
        judged.report
    );
    assert_eq!(judged.report["passed"], judged.report["scored"]);
    let service = tinkrs::ServiceClient::builder()
        .base_url(ours.url.as_str())
        .api_key(KEY)
        .telemetry(false)
        .build();
    let left = service
        .create_rest_client()
        .list_user_checkpoints()
        .await
        .unwrap();
    assert!(left.checkpoints.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_fails_the_case_that_is_about_it() {
    let ours = Ours::start();
    type Fault = fn(&ScriptedServer);
    let cases: &[(&str, Fault, &str)] = &[
        (
            "service/config",
            |server| {
                let page = Reply::json(&Value::Null)
                    .body("<html>hello</html>")
                    .header("content-type", "text/html");
                drop(server.on("client_config").always().reply(page));
            },
            "not a JSON object",
        ),
        (
            "sessions/finish",
            |server| {
                let alive = Reply::json(&json!({"type": "session_heartbeat"}));
                drop(server.on("session_heartbeat").always().reply(alive));
            },
            "expected status 410",
        ),
        (
            "models/unknown-base",
            |server| {
                let any = Reply::json(&json!({"request_id": "r"}));
                let made = Reply::json(&json!({"model_id": "m"}));
                drop(server.on("create_model").always().reply(any));
                drop(server.on("retrieve_future").always().reply(made));
            },
            "expected a refusal",
        ),
        (
            "ordering/step-once",
            |server| {
                let fresh = Reply::json(&json!({"request_id": "another"}));
                drop(server.on("optim_step").nth(3).executed().reply(fresh));
            },
            "expected the request id of the first",
        ),
        (
            "sampling/sequence-ids",
            |server| {
                let bare = Reply::json(&json!({"request_id": "r"}));
                drop(server.on("asample").always().executed().reply(bare));
            },
            "expected 3 ids in `sample_sequence_ids`",
        ),
        (
            "passes/loss",
            |server| {
                drop(
                    server
                        .on("retrieve_future")
                        .for_request_type("ForwardBackward")
                        .always()
                        .reply(Reply::message(wrong_pass())),
                );
            },
            "expected `loss:sum` ",
        ),
        (
            "passes/outputs",
            |server| {
                drop(
                    server
                        .on("retrieve_future")
                        .for_request_type("ForwardBackward")
                        .always()
                        .reply(Reply::message("garbage")),
                );
            },
            "cannot be read",
        ),
        (
            "checkpoints/ttl",
            |server| {
                drop(
                    server
                        .on("set_checkpoint_ttl")
                        .always()
                        .reply(Reply::json(&json!({}))),
                );
            },
            "`expires_at` in two hours",
        ),
        (
            "errors/unknown-path",
            |server| {
                drop(server.on(ANY).always().reply(status(500)));
            },
            "expected 404",
        ),
    ];
    for (name, fault, reason) in cases {
        let server = ScriptedServer::in_front_of(&ours.url).await;
        fault(&server);
        let judged = conform(&server.url(), &[name], &["--case-timeout", "20"]).await;
        let (result, detail) = judged.result(name);
        assert_eq!(result, "fail", "{name}: {detail}");
        assert!(detail.contains(reason), "{name}: {detail}");
        assert_eq!(judged.code, Some(1), "{name}");
        server.take_complaints();
        // Without the fault the same case passes, so it is the fault that fails it.
        let judged = conform(&ours.url, &[name], &[]).await;
        assert_eq!(
            judged.result(name).0,
            "pass",
            "{name}: {}",
            judged.result(name).1
        );
    }
}

/// A result of two datums whose loss does not follow from its log-probabilities.
fn wrong_pass() -> Vec<u8> {
    let logprobs = [-1.0_f32; 11];
    let field = BatchedTensor::from_datums([&logprobs[..], &logprobs[..]]);
    let record = OutputRecord::new(2, BTreeMap::from([("logprobs".to_owned(), field)])).unwrap();
    let metrics = BTreeMap::from([("loss:sum".to_owned(), 1.0)]);
    let output = ForwardBackwardOutput::new("TorchLossReturn".to_owned(), vec![record], metrics);
    forward_backward::encode_result(output)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_does_not_hang_the_referee() {
    let ours = Ours::start();
    let only = ["sessions/create", "models/create", "passes/outputs"];
    for hangs in [true, false] {
        let server = ScriptedServer::in_front_of(&ours.url).await;
        let gate = Gate::closed();
        if hangs {
            server.on("retrieve_future").always().stall_until(&gate);
        } else {
            let again = Reply::json(&json!({"type": "try_again", "request_id": "r"}));
            server.on("retrieve_future").always().reply(again);
        }
        let started = Instant::now();
        let judged = conform(&server.url(), &only, &["--case-timeout", "1"]).await;
        assert_eq!(judged.code, Some(1));
        assert_eq!(judged.result("sessions/create").0, "pass");
        let (result, detail) = judged.result("models/create");
        assert_eq!(result, "fail");
        assert!(detail.contains("keeps the client waiting"), "{detail}");
        assert_eq!(judged.result("passes/outputs").0, "skipped");
        assert!(started.elapsed() < Duration::from_secs(60));
        gate.open();
        server.take_complaints();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_makes_no_sense_scores_nothing_and_never_sees_its_text_believed() {
    let hostile = Reply::json(&json!({"request_id": 7, "session_id": ["no"], "detail": KEY}));
    let page = Reply::json(&Value::Null).body("<html>\u{1b}[2J | tml-x</html>");
    for reply in [hostile, page, status(500), status(418).body("")] {
        let server = ScriptedServer::start().await;
        server.on(ANY).always().reply(reply);
        let judged = conform(&server.url(), &[], &["--case-timeout", "2", "--quick"]).await;
        assert_eq!(judged.code, Some(1));
        let all = judged.report["cases"].as_array().unwrap();
        assert!(all.len() > 100);
        let passed: Vec<_> = all
            .iter()
            .filter(|case| case["result"] == "pass")
            .map(|case| &case["name"])
            .collect();
        assert!(passed.len() < 12, "{passed:?}");
        assert!(!judged.report.to_string().contains(KEY) && !judged.stderr.contains(KEY));
        server.take_complaints();
    }
    // Nobody listens there.
    let judged = conform("http://127.0.0.1:1", &[], &["--case-timeout", "2"]).await;
    assert_eq!(
        (judged.code, &judged.report["passed"]),
        (Some(1), &json!(0))
    );
}
