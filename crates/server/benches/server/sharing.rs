//! Samples of one owner while another one's pass runs on the same base model.
//!
//! `cargo bench -p tinkrs-server -- --sharing MODEL` prints how long a sample of four tokens takes on an idle
//! server and beside a long pass, what a slice of the pass takes, and how much the pass loses. One client
//! samples again and again without a pause; passes with and without it take turns.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tinkrs_engine::weights::HuggingFaceFolder;
use tinkrs_engine::{CpuBackend, Model, Precision, Threads};
use tinkrs_server::{BaseModel, LocalServer, Settings};

use crate::connection::Connection;
use crate::{median, millis, option};

/// Tokens of a datum; eight of them are a slice.
const LENGTH: usize = 128;
/// Tokens of a slice, as in `worker/execute.rs`.
const SLICE: usize = 1024;
const IDLE_SAMPLES: usize = 100;

/// Measures with the model of a folder.
pub(crate) async fn run(folder: &Path) {
    let slices = option("--slices", 24);
    let rounds = option("--rounds", 3);
    let data = tempfile::tempdir().unwrap();
    let weights = HuggingFaceFolder::open(folder).unwrap();
    let threads = Threads::all_cores().unwrap();
    let model = Model::load(&weights, Precision::Stored, &threads).unwrap();
    let base = BaseModel::new("model", CpuBackend::new(model));
    let server = LocalServer::start(vec![base], Settings::new(data.path())).await;
    let server = server.unwrap();
    let address = server.address();

    let mut trainer = Connection::with_key(address, "tml-trainer").await;
    let session = json!({"tags": [], "sdk_version": "0.36.0"});
    let session = trainer.post("/create_session", &session).await;
    let create = json!({
        "session_id": session["session_id"], "model_seq_id": 0, "base_model": "model",
        "lora_config": {"rank": 8, "seed": 1},
    });
    let created = trainer.post("/create_model", &create).await;
    let model_id = trainer.result(&created).await["model_id"].clone();
    let mut number = 0;
    let mut train = async |slices: usize| {
        number += 1;
        let body = pass(&model_id, number, slices * SLICE / LENGTH);
        let start = Instant::now();
        let promise = trainer.post("/forward_backward", &body).await;
        trainer.result(&promise).await;
        start.elapsed()
    };
    // Whatever is only done the first time.
    train(1).await;
    sample_until(address, |count| count == IDLE_SAMPLES).await;

    let idle = sample_until(address, |count| count == IDLE_SAMPLES).await;
    let (mut alone, mut beside, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        alone.push(train(slices).await);
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        let sampling = tokio::spawn(sample_until(address, move |_| flag.load(Ordering::SeqCst)));
        beside.push(train(slices).await);
        ended.store(true, Ordering::SeqCst);
        let mut times = sampling.await.unwrap();
        // The last one ended beside nothing.
        times.pop();
        busy.extend(times);
    }
    server.stop().await.unwrap();

    let (alone, beside) = (median(alone), median(beside));
    let slice = alone / u32::try_from(slices).unwrap();
    let (idle_p50, idle_p95) = (percentile(&idle, 50), percentile(&idle, 95));
    let (busy_p50, busy_p95) = (percentile(&busy, 50), percentile(&busy, 95));
    let limit = 10 * idle_p50 + slice;
    let loss = 100.0 * (1.0 - alone.as_secs_f64() / beside.as_secs_f64());
    if std::env::args().any(|argument| argument == "--json") {
        let line = json!({
            "idle_p50_ms": millis(idle_p50), "idle_p95_ms": millis(idle_p95),
            "busy_p50_ms": millis(busy_p50), "busy_p95_ms": millis(busy_p95),
            "slice_ms": millis(slice), "limit_ms": millis(limit), "samples": busy.len(),
            "pass_alone_s": alone.as_secs_f64(), "pass_beside_s": beside.as_secs_f64(),
            "pass_loss_percent": loss,
        });
        println!("{line}");
        return;
    }
    println!(
        "four-token sample on an idle server: {:.1} ms (p50), {:.1} ms (p95)",
        millis(idle_p50),
        millis(idle_p95)
    );
    println!(
        "the same beside a pass, {} of them: {:.1} ms (p50), {:.1} ms (p95); 10 x idle + a slice of {:.1} ms \
         would be {:.1} ms",
        busy.len(),
        millis(busy_p50),
        millis(busy_p95),
        millis(slice),
        millis(limit),
    );
    println!(
        "pass of {slices} slices: {:.2} s alone, {:.2} s beside the samples: it loses {loss:.1} % of its speed",
        alone.as_secs_f64(),
        beside.as_secs_f64(),
    );
}

/// Samples one after the other, and returns how long each took.
async fn sample_until(
    address: SocketAddr,
    is_enough: impl Fn(usize) -> bool + Send,
) -> Vec<Duration> {
    let mut connection = Connection::with_key(address, "tml-sampler").await;
    let mut times = Vec::new();
    while !is_enough(times.len()) {
        let body = json!({
            "base_model": "model", "num_samples": 1,
            "prompt": {"chunks": [{"tokens": [1, 400 + times.len() % 1000, 300, 310]}]},
            "sampling_params": {"max_tokens": 4, "seed": times.len(), "stop": []},
        });
        let start = Instant::now();
        let promise = connection.post("/asample", &body).await;
        connection.result(&promise).await;
        times.push(start.elapsed());
    }
    times
}

fn pass(model_id: &Value, number: i64, datums: usize) -> Value {
    let tokens: Vec<usize> = (0..LENGTH).map(|position| 300 + 7 * position).collect();
    let datum = json!({
        "model_input": {"chunks": [{"tokens": tokens}]},
        "loss_fn_inputs": {"target_tokens": {"data": tokens, "dtype": "int64", "shape": [LENGTH]}},
    });
    json!({
        "forward_backward_input": {"data": vec![datum; datums], "loss_fn": "cross_entropy"},
        "model_id": model_id, "seq_id": number,
    })
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(index).copied().unwrap_or_default()
}
