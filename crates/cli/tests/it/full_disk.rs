//! A server whose disk is full: clear errors, nothing lost, and it works on when there is room again.
//!
//! No disk is filled for this. A limit on the size of files, which `prlimit` can change while the server
//! runs, makes the system refuse to write in the same way, wherever the tests run.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tinkrs::external::HttpClient;

/// Enough for the journal, too little for the weights of a model.
const SMALL: &str = "1000000";

struct Server {
    process: Child,
    url: String,
    http: HttpClient,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start(data: &Path) -> Self {
        // What is ignored stays ignored behind `exec`; by itself, the signal ends a process that
        // writes more than it may.
        let mut process = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
            .args([
                env!("CARGO_BIN_EXE_tinkrs"),
                "serve",
                "--addr",
                "127.0.0.1:0",
                "--data-dir",
            ])
            .arg(data)
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ");
        Self {
            url: url.unwrap_or_else(|| panic!("{line}")).to_owned(),
            process,
            http: HttpClient::new(Duration::from_secs(60)),
        }
    }

    /// Sets how large files may become; what is there already stays.
    fn limit(&self, bytes: &str) {
        let process = self.process.id().to_string();
        let limit = format!("--fsize={bytes}:unlimited");
        let limited = Command::new("prlimit")
            .args(["--pid", &process, &limit])
            .status();
        assert!(limited.unwrap().success());
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = self.http.post(&format!("{}/api/v1{path}", self.url));
        let request = request.header("x-api-key", "tml-test").json(body);
        let answer = request.send().await.unwrap();
        let status = answer.status();
        (status, answer.json().await.unwrap())
    }

    async fn ok(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, &body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    async fn result(&self, promise: &Value) -> Value {
        loop {
            let body = json!({"request_id": promise["request_id"]});
            let (status, answer) = self.post("/retrieve_future", &body).await;
            if status != 408 {
                assert_eq!(status, 200, "{answer}");
                return answer;
            }
        }
    }
}

fn pass(model: &Value, seq_id: u32) -> Value {
    json!({
        "forward_backward_input": {
            "data": [{
                "model_input": {"chunks": [{"tokens": [1, 5, 9]}]},
                "loss_fn_inputs": {
                    "target_tokens": {"data": [5, 9, 2], "dtype": "int64", "shape": [3]},
                    "weights": {"data": [1.0, 1.0, 1.0], "dtype": "float32", "shape": [3]},
                },
            }],
            "loss_fn": "cross_entropy",
        },
        "model_id": model,
        "seq_id": seq_id,
    })
}

fn save(model: &Value, seq_id: u32, name: &str) -> Value {
    json!({"model_id": model, "seq_id": seq_id, "path": name})
}

fn names_a_path(text: &Value, folder: &Path) -> bool {
    let text = text.as_str().unwrap_or_default();
    text.contains(folder.to_str().unwrap()) && text.contains("could not write")
}

#[tokio::test]
async fn a_full_disk_is_an_error_that_names_the_path_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let server = Server::start(data);
    let session = json!({"tags": [], "sdk_version": "0.36.0"});
    let session = server.ok("/create_session", session).await["session_id"].clone();
    let create = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tinkrs/nano",
        "lora_config": {"rank": 32, "seed": 1},
    });
    let created = server.ok("/create_model", create).await;
    let model = server.result(&created).await["model_id"].clone();
    let first = server.ok("/forward_backward", pass(&model, 1)).await;
    let loss = server.result(&first).await["metrics"]["loss:sum"].clone();
    assert!(loss.is_f64(), "{loss}");
    let saved = server.ok("/save_weights", save(&model, 2, "before")).await;
    let before = server.result(&saved).await["path"].clone();

    // No room for weights: saving them, and the snapshot that loading takes, fail in their results.
    server.limit(SMALL);
    let saving = server.ok("/save_weights", save(&model, 3, "during")).await;
    let failed = server.result(&saving).await;
    assert_eq!(failed["category"], "server", "{failed}");
    assert!(names_a_path(&failed["error"], data), "{failed}");
    let load = json!({"model_id": model, "seq_id": 4, "path": before, "optimizer": true});
    let loading = server.ok("/load_weights", load.clone()).await;
    let failed = server.result(&loading).await;
    assert!(names_a_path(&failed["error"], data), "{failed}");

    // No room at all: what cannot be kept is not taken.
    server.limit("0");
    let (status, refused) = server.post("/forward_backward", &pass(&model, 5)).await;
    assert_eq!(status, 503, "{refused}");
    assert!(
        names_a_path(&refused["detail"], &data.join("tinkrs.db")),
        "{refused}"
    );
    let session = json!({"tags": [], "sdk_version": "0.36.0"});
    let (status, refused) = server.post("/create_session", &session).await;
    assert_eq!(status, 503, "{refused}");
    assert!(
        names_a_path(&refused["detail"], &data.join("tinkrs.db")),
        "{refused}"
    );
    // What was taken before is still there.
    assert_eq!(server.result(&first).await["metrics"]["loss:sum"], loss);

    // Room again. The same requests are taken, and the run is where it was.
    server.limit("unlimited");
    let again = server.ok("/forward_backward", pass(&model, 5)).await;
    assert_eq!(server.result(&again).await["metrics"]["loss:sum"], loss);
    let saved = server.ok("/save_weights", save(&model, 6, "during")).await;
    let path = server.result(&saved).await["path"].clone();
    assert!(path.is_string(), "{path}");
    let left = std::fs::read_dir(data.join("partial")).unwrap().count();
    assert_eq!(left, 0, "half-written files");

    // And it is all there for the next server, though this one has no time to say goodbye.
    drop(server);
    let server = Server::start(data);
    assert_eq!(server.result(&first).await["metrics"]["loss:sum"], loss);
    assert_eq!(server.result(&saved).await["path"], path);
    let next = server.ok("/forward_backward", pass(&model, 7)).await;
    assert_eq!(server.result(&next).await["metrics"]["loss:sum"], loss);
    let load = json!({"model_id": model, "seq_id": 8, "path": path, "optimizer": true});
    let loaded = server.ok("/load_weights", load).await;
    assert_eq!(server.result(&loaded).await["path"], path);
}
