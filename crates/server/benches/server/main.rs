//! What the server adds to the engine: `cargo bench -p tinkrs-server`.
//!
//! Prints the time of an operation through HTTP and of the same operation on the engine, the memory of
//! 2,000 polls that wait, and how long a server takes to start: in this process, and as the program
//! `tinkrs serve`, if `cargo build --release -p tinkrs-cli` has put it beside this one. Compare on an
//! idle machine. With `-- --json`, all of it is one line of JSON, which `bench/run server` reads;
//! `--polls N` and `--operations N` set how many.
//!
//! With `-- --sharing MODEL`, the folder of a real model, it measures something else: samples of one owner
//! while another one's pass runs ([`sharing`]).

#![allow(clippy::print_stdout)]

mod connection;
mod sharing;

use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tinkrs_engine::weights::{Dtype, HuggingFaceFolder, RandomWeights};
use tinkrs_engine::{CpuBackend, Model, ModelConfig, Precision, Threads, TrainingRun};
use tinkrs_server::{BaseModel, LocalServer, Settings};
use tinkrs_types::{Datum, LoraConfig, LossFn};

use connection::Connection;

fn model() -> Arc<Model> {
    let weights = RandomWeights::new(ModelConfig::tiny_llama(), 1, Dtype::F32).unwrap();
    let threads = Threads::new(1).unwrap();
    Arc::new(Model::load(&weights, Precision::Stored, &threads).unwrap())
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    match text_option("--sharing") {
        Some(model) => runtime.block_on(sharing::run(model.as_ref())),
        None => runtime.block_on(run()),
    }
}

/// Starts a server with the built-in model, from its files in memory to the first answer.
async fn start_nano() -> Duration {
    let data = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let folder = data.path().join("model");
    tinkrs_nano::write_to(&folder).unwrap();
    let weights = HuggingFaceFolder::open(&folder).unwrap();
    let threads = Threads::all_cores().unwrap();
    let model = Model::load(&weights, Precision::Stored, &threads).unwrap();
    let tokenizer = tinkrs_chat::Tokenizer::from_path(&folder).unwrap();
    let base = BaseModel {
        tokenizer: Some(Arc::new(tokenizer)),
        ..BaseModel::new(tinkrs_nano::NAME, CpuBackend::new(model))
    };
    let settings = Settings::new(data.path().join("data"));
    let server = LocalServer::start(vec![base], settings).await.unwrap();
    let mut connection = Connection::open(server.address()).await;
    connection.get("/api/v1/healthz").await;
    let time = start.elapsed();
    server.stop().await.unwrap();
    time
}

/// Starts the program, which has the built-in model, from its call to the first answer.
async fn start_program() -> Option<Duration> {
    let here = std::env::current_exe().unwrap();
    let program = here.parent()?.with_file_name("tinkrs");
    if !program.exists() {
        return None;
    }
    let data = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let mut process = std::process::Command::new(&program)
        .args(["serve", "--addr", "127.0.0.1:0", "--data-dir"])
        .arg(data.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(process.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    let mut connection = Connection::open(address.parse().unwrap()).await;
    connection.get("/api/v1/healthz").await;
    let time = start.elapsed();
    process.kill().unwrap();
    process.wait().unwrap();
    Some(time)
}

async fn run() {
    let (nano, program) = (start_nano().await, start_program().await);
    let operations = option("--operations", 500) as i64;
    let polls = option("--polls", 2000);
    let data = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let models = vec![BaseModel::new("tiny", CpuBackend::new(model()))];
    let server = LocalServer::start(models, Settings::new(data.path())).await;
    let address = server.as_ref().unwrap().address();
    let mut connection = Connection::open(address).await;
    connection.get("/api/v1/healthz").await;
    let start = start.elapsed();

    let session = connection
        .post(
            "/create_session",
            &json!({"tags": [], "sdk_version": "0.36.0"}),
        )
        .await;
    let body = json!({
        "session_id": session["session_id"], "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 4, "seed": 1},
    });
    let created = connection.post("/create_model", &body).await;
    let model_id = connection.result(&created).await["model_id"].clone();

    // In turns, so that both meet the same machine.
    let mut run = TrainingRun::lora(model(), &LoraConfig::new(4)).unwrap();
    let batch = [Datum::supervised(vec![1, 5, 9], [5, 9, 2], [0.0, 1.0, 1.0]).unwrap()];
    let (mut through_http, mut direct) = (Vec::new(), Vec::new());
    for number in 1..=operations {
        let body = pass(&model_id, number);
        let start = Instant::now();
        let promise = connection.post("/forward_backward", &body).await;
        connection.result(&promise).await;
        through_http.push(start.elapsed());

        let start = Instant::now();
        run.forward_backward(&batch, &LossFn::CrossEntropy).unwrap();
        direct.push(start.elapsed());
    }
    let (through_http, direct) = (median(through_http), median(direct));

    let before = resident_mib();
    let early = connection
        .post("/forward_backward", &pass(&model_id, operations + 2))
        .await;
    let id = early["request_id"].as_str().unwrap().to_owned();
    let mut connections = Vec::new();
    for _ in 0..polls {
        let mut connection = Connection::open(address).await;
        let body = json!({"request_id": id});
        let request = connection.request("/retrieve_future", &body);
        connection.sender.ready().await.unwrap();
        let poll = connection.sender.send_request(request);
        connections.push(tokio::spawn(poll));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let polls_mib = resident_mib() - before;
    let added = through_http.saturating_sub(direct);
    if std::env::args().any(|argument| argument == "--json") {
        let line = json!({
            "start_ms": millis(start), "start_nano_ms": millis(nano),
            "start_program_ms": program.map(millis), "http_ms": millis(through_http),
            "engine_ms": millis(direct), "added_ms": millis(added),
            "polls": polls, "polls_mib": polls_mib,
        });
        println!("{line}");
        return;
    }
    println!("start, with a tiny model: {:.1} ms", millis(start));
    println!("start, with the built-in model: {:.1} ms", millis(nano));
    match program {
        Some(time) => println!("start of `tinkrs serve`: {:.1} ms", millis(time)),
        None => println!("start of `tinkrs serve`: not measured, there is no such program"),
    }
    println!(
        "forward_backward, median of {operations}: {:.3} ms through HTTP, {:.3} ms on the engine: \
         the server adds {:.3} ms",
        millis(through_http),
        millis(direct),
        millis(added),
    );
    println!("{polls} waiting polls: {polls_mib:.1} MiB, both ends in this process");
}

fn pass(model_id: &Value, number: i64) -> Value {
    json!({
        "forward_backward_input": {
            "data": [{
                "model_input": {"chunks": [{"tokens": [1, 5, 9]}]},
                "loss_fn_inputs": {
                    "target_tokens": {"data": [5, 9, 2], "dtype": "int64", "shape": [3]},
                    "weights": {"data": [0.0, 1.0, 1.0], "dtype": "float32", "shape": [3]},
                },
            }],
            "loss_fn": "cross_entropy",
        },
        "model_id": model_id, "seq_id": number,
    })
}

/// Returns the number behind an option of the command line.
fn option(name: &str, default: usize) -> usize {
    text_option(name).map_or(default, |value| value.parse().expect("a number"))
}

fn text_option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The memory of this process, in MiB.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
