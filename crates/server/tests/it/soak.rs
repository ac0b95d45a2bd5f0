//! A long run stays small: memory, disk, open files and the time of a step stay where they were.
//!
//! Two loops of reinforcement learning on a real model, with weights for sampling at every step, beside runs
//! that are created, trained once and left alone, and results that nobody fetches. Everything that is kept for a
//! while is kept for a few seconds, so that it comes and goes many times. In the database the rows of what comes and
//! goes are counted, table by table. What stays on purpose is the history: each session and run that ever was can be
//! listed, so of those there must be exactly as many as were made.
//!
//! `TINKRS_SOAK_SECONDS` says for how long: five minutes in CI, an hour by hand. Without it, a few steps show
//! that the loops work, and nothing is measured: other tests share the process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use serde_json::json;
use tinkrs_server::Settings;

use crate::caller::{TestServer, base, pass, step, tiny_llama};
use crate::way::Way;

/// How many parts the time is divided into. The first is for filling what is meant to be filled.
const PARTS: usize = 5;
/// How much larger the last part may be than the second.
const GROWTH: f64 = 1.5;

/// The tables whose rows come and go with requests, so that there are never many.
const COMING_AND_GOING: [&str; 7] = [
    "bodies",
    "checkpoints",
    "losses",
    "removals",
    "requests",
    "results",
    "samplers",
];
/// The tables that grow on purpose: with the number of sessions and runs, of hours, of things that a person did; to a
/// limit of their own (`spans`, and `points` for each run); or not at all (`starts`).
const HISTORY: [&str; 9] = [
    "audit", "points", "progress", "runs", "series", "sessions", "spans", "starts", "usage",
];

/// What is measured at one moment.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    memory_mib: f64,
    /// Weights, snapshots, bodies and results.
    files_mib: f64,
    open_files: f64,
    /// In the order of [`COMING_AND_GOING`].
    rows: [f64; COMING_AND_GOING.len()],
}

fn rows(database: &Connection, table: &str) -> u32 {
    let sql = format!("SELECT count(*) FROM {table}");
    database.query_row(&sql, [], |row| row.get(0)).unwrap()
}

/// Opens the database beside the server. A table that is not known here is a question: may it grow?
fn open_database(data: &Path) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let database = Connection::open_with_flags(data.join("tinkrs.db"), flags).unwrap();
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    let mut query = database.prepare(sql).unwrap();
    let names = query.query_map([], |row| row.get(0)).unwrap();
    let names: Vec<String> = names.map(Result::unwrap).collect();
    let mut known = [&COMING_AND_GOING[..], &HISTORY].concat();
    known.sort_unstable();
    assert_eq!(names, known);
    drop(query);
    database
}

fn sizes(data: &Path, connection: &Connection) -> Sizes {
    let database = std::fs::metadata(data.join("tinkrs.db")).map_or(0, |about| about.len());
    let log = std::fs::metadata(data.join("tinkrs.db-wal")).map_or(0, |about| about.len());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory = memory.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    let files = std::fs::read_dir("/proc/self/fd");
    Sizes {
        memory_mib: memory.unwrap_or(0.0) / 1024.0,
        files_mib: bytes_in(data).saturating_sub(database + log) as f64 / f64::from(1 << 20),
        open_files: files.map_or(0.0, |files| files.count() as f64),
        rows: COMING_AND_GOING.map(|table| f64::from(rows(connection, table))),
    }
}

/// Counts the bytes below a folder. What goes meanwhile is not counted.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_in(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

async fn new_model(server: &impl Way) -> (String, String) {
    let body = json!({"tags": [], "sdk_version": "0.36.0"});
    let session = server.ok("/create_session", &body).await["session_id"].clone();
    let create = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 8, "seed": 1},
    });
    let created = server.ok("/create_model", &create).await;
    let model = server.result(&created).await["model_id"].clone();
    let text = |value: serde_json::Value| value.as_str().expect("an id").to_owned();
    (text(session), text(model))
}

/// Trains and samples in turns, and returns when each step began and how long it took.
async fn reinforce(server: &impl Way, is_over: impl Fn(usize) -> bool) -> Vec<(Instant, f64)> {
    let (_, model) = new_model(server).await;
    let mut times = Vec::new();
    while !is_over(times.len()) {
        let start = Instant::now();
        let seq_id = 3 * times.len() as i64;
        let save = json!({
            "model_id": model, "seq_id": seq_id + 1, "sampling_session_seq_id": times.len(),
        });
        let saved = server.ok("/save_weights_for_sampler", &save).await;
        let sampler = server.result(&saved).await["sampling_session_id"].clone();
        let sample = json!({
            "sampling_session_id": sampler, "seq_id": 0, "num_samples": 4,
            "prompt": {"chunks": [{"tokens": [1, 5, 9]}]},
            "sampling_params": {"max_tokens": 8, "seed": 1, "stop": []},
        });
        let sampled = server.ok("/asample", &sample).await;
        server.result(&sampled).await;
        let passed = server
            .ok("/forward_backward", &pass(&model, seq_id + 2))
            .await;
        let stepped = server.ok("/optim_step", &step(&model, seq_id + 3)).await;
        server.result(&passed).await;
        server.result(&stepped).await;
        times.push((start, start.elapsed().as_secs_f64()));
    }
    times
}

/// Creates runs that are left alone after a pass that nobody fetches the result of, ten at a time.
async fn leave_alone(server: &impl Way, runs: &AtomicUsize, is_over: impl Fn(usize) -> bool) {
    let mut sessions = std::collections::VecDeque::new();
    for number in 0.. {
        if is_over(number) {
            return;
        }
        let (session, model) = new_model(server).await;
        runs.fetch_add(1, Ordering::Relaxed);
        server.ok("/forward_backward", &pass(&model, 1)).await;
        sessions.push_back(session);
        if sessions.len() > 10 {
            let finish = json!({"reason": {"type": "success"}, "detail": null});
            let session = sessions.pop_front().expect("more than ten");
            server
                .ok(&format!("/sessions/{session}/finish"), &finish)
                .await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stdout, reason = "shows what was measured")]
async fn memory_disk_files_and_the_time_of_a_step_stay_where_they_were() {
    let seconds = std::env::var("TINKRS_SOAK_SECONDS").ok();
    let seconds: Option<u64> =
        seconds.map(|text| text.parse().expect("TINKRS_SOAK_SECONDS: a number"));
    let data = Arc::new(tempfile::tempdir().unwrap());
    let soon = |settings: &mut Settings| {
        let soon = Duration::from_secs(5);
        settings.keep_fetched = soon;
        settings.keep_unfetched = soon;
        settings.keep_idle_runs = soon;
        settings.keep_unnamed = soon;
    };
    let server = TestServer::of(base(tiny_llama()), Arc::clone(&data), soon).await;
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds.unwrap_or(0));
    let is_over = move |steps: usize| steps >= 5 && Instant::now() >= end;
    let runs = AtomicUsize::new(0);
    let database = open_database(data.path());
    let measure = async {
        let mut measured = Vec::new();
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let sizes = sizes(data.path(), &database);
            measured.push((Instant::now(), sizes));
        }
        measured
    };
    let (one, other, idle) = (server.local(), server.local(), server.local());
    let (one, other, (), measured) = tokio::join!(
        reinforce(&one, is_over),
        reinforce(&other, is_over),
        leave_alone(&idle, &runs, is_over),
        measure
    );
    assert!(one.len() >= 5 && other.len() >= 5);
    // The two that learn, and those that were left alone: no row more for any step.
    let made = 2 + runs.load(Ordering::Relaxed);
    let kept = ["sessions", "runs"].map(|table| rows(&database, table) as usize);
    assert_eq!(kept, [made, made], "sessions and runs");
    if seconds.is_none() {
        return;
    }
    let length = (end - start).as_secs_f64() / PARTS as f64;
    let part_of = |time: Instant| ((time - start).as_secs_f64() / length) as usize;
    let of = |part: usize, read: &dyn Fn(&Sizes) -> f64| {
        let there = measured.iter().filter(|(time, _)| part_of(*time) == part);
        median(there.map(|(_, sizes)| read(sizes)).collect())
    };
    let time_of = |part: usize| {
        let steps = one.iter().chain(&other);
        let steps = steps.filter(|(time, _)| part_of(*time) == part);
        median(steps.map(|(_, seconds)| seconds * 1000.0).collect())
    };
    // What may be added to the second part before it is multiplied: small numbers vary more.
    type Measure<'a> = (String, f64, Box<dyn Fn(usize) -> f64 + 'a>);
    let mut measures: Vec<Measure<'_>> = vec![
        (
            "MiB of memory".to_owned(),
            16.0,
            Box::new(|part| of(part, &|s| s.memory_mib)),
        ),
        (
            "MiB in files".to_owned(),
            4.0,
            Box::new(|part| of(part, &|s| s.files_mib)),
        ),
        (
            "open files".to_owned(),
            4.0,
            Box::new(|part| of(part, &|s| s.open_files)),
        ),
        ("milliseconds a step".to_owned(), 0.0, Box::new(time_of)),
    ];
    for (at, table) in COMING_AND_GOING.iter().enumerate() {
        let rows = move |part| of(part, &|s| s.rows[at]);
        measures.push((format!("rows of {table}"), 50.0, Box::new(rows)));
    }
    let mut grown = Vec::new();
    for (name, slack, measure) in measures {
        let parts: Vec<f64> = (0..PARTS).map(&measure).collect();
        println!("{name}: {parts:.2?}");
        if parts[PARTS - 1] > (parts[1] + slack) * GROWTH {
            grown.push(format!("{name}: {parts:.2?}"));
        }
    }
    println!("{} steps", one.len() + other.len());
    assert!(grown.is_empty(), "{grown:#?}");
}
