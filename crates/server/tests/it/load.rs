//! Many clients at once: nothing is lost, nothing happens twice, and memory stays where it was.
//!
//! Rounds of 400 samples, 50 training runs and 100 questions by the OpenAI and Anthropic APIs, each on a
//! connection of its own, beside listings without end. There are two of them; `TINKRS_LOAD_SECONDS` asks for as many more as fit in that
//! time, and CI asks for a minute.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::Method;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

use crate::caller::{pass, step};
use crate::socket::Socket;
use crate::talking::{CHAT, COMPLETIONS, events, joined, start, talking};
use crate::way::Way;

const ROUNDS: usize = 2;
const RUNS: usize = 50;
const STEPS: i64 = 3;
const SAMPLES: usize = 400;
/// Samples differ in this many ways.
const KINDS: usize = 8;
const SAMPLED_TOKENS: usize = 12;
/// Questions by the other APIs.
const QUESTIONS: usize = 100;
/// Connections that requests are repeated on, as by clients whose first one broke.
const OTHERS: usize = 16;
/// How many MiB the process may grow after the first round, with both ends of every connection and the
/// model in it.
const GROWTH_MIB: u64 = 128;

/// How many bytes this process has in memory.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}

/// Two connections of a client: the one it uses, and the one it uses when it thinks that broke.
struct Client<'a> {
    socket: &'a Socket,
    other: &'a Socket,
}

impl<'a> Client<'a> {
    fn new(socket: &'a Socket, others: &'a [Socket], number: usize) -> Self {
        let other = &others[number % others.len()];
        Self { socket, other }
    }

    async fn session(&self) -> Value {
        let body = json!({"tags": [], "sdk_version": "0.36.0"});
        self.socket.ok("/create_session", &body).await["session_id"].clone()
    }

    /// Sends a request twice at the same moment, as a client does whose connection broke.
    async fn submit_twice(&self, path: &str, body: &Value) -> Value {
        let (first, second) = tokio::join!(self.socket.ok(path, body), self.other.ok(path, body));
        assert_eq!(first["request_id"], second["request_id"], "{path}");
        first
    }

    /// Trains a run of its own, and returns its losses.
    async fn train(&self) -> Vec<f64> {
        let session = self.session().await;
        let create = json!({
            "session_id": session, "model_seq_id": 0, "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1},
        });
        let created = self.submit_twice("/create_model", &create).await;
        let created = self.socket.result(&created).await;
        let model = created["model_id"].as_str().unwrap();
        let mut passes = Vec::new();
        let mut steps = Vec::new();
        for number in 0..STEPS {
            let seq_id = 2 * number + 1;
            let body = pass(model, seq_id);
            passes.push(self.submit_twice("/forward_backward", &body).await);
            let body = step(model, seq_id + 1);
            steps.push(self.submit_twice("/optim_step", &body).await);
        }
        let mut losses = Vec::new();
        for promise in &passes {
            let result = self.socket.result(promise).await;
            losses.push(result["metrics"]["loss:sum"].as_f64().unwrap());
        }
        for (number, promise) in (1..).zip(&steps) {
            let result = self.socket.result(promise).await;
            let expected = json!(f64::from(number));
            assert_eq!(
                result["metrics"]["optimizer_step"], expected,
                "each step is one"
            );
        }
        let finish = json!({"reason": {"type": "success"}, "detail": null});
        let path = format!("/sessions/{}/finish", session.as_str().unwrap());
        self.socket.ok(&path, &finish).await;
        losses
    }

    /// Samples, and returns the tokens.
    async fn sample(&self, sampler: &Value, number: usize) -> Value {
        let body = json!({
            "sampling_session_id": sampler, "seq_id": number, "num_samples": 1,
            "prompt": {"chunks": [{"tokens": [1 + number % KINDS, 5, 9]}]},
            "sampling_params": {"max_tokens": SAMPLED_TOKENS, "seed": number % KINDS, "stop": []},
        });
        let promise = self.submit_twice("/asample", &body).await;
        self.socket.result(&promise).await["sequences"][0]["tokens"].clone()
    }
}

/// What an endpoint of another API answered: its text, and the tokens of prompt and answer that it counted.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    text: String,
    prompt: u64,
    answer: u64,
}

impl Said {
    fn new(text: impl Into<String>, usage: &Value, [prompt, answer]: [&str; 2]) -> Self {
        let count = |member: &str| usage[member].as_u64().unwrap();
        let cached = usage["cache_read_input_tokens"].as_u64().unwrap_or(0);
        Self {
            text: text.into(),
            prompt: count(prompt) + cached,
            answer: count(answer),
        }
    }
}

/// Reads a stream to its end, however often the server is busy before it begins.
async fn stream(socket: &Socket, path: &str, body: &Value) -> Vec<Value> {
    loop {
        let answer = socket.call(Method::POST, path, body).await;
        if answer.status != 429 {
            return events(&answer);
        }
        tokio::task::yield_now().await;
    }
}

/// Asks one of the endpoints of the other APIs, in a way that depends on the number.
async fn ask(socket: &Socket, number: usize) -> Said {
    const OPENAI: [&str; 2] = ["prompt_tokens", "completion_tokens"];
    const LATER: [&str; 2] = ["input_tokens", "output_tokens"];
    let number = number % KINDS;
    let said = json!([{"role": "user", "content": format!("Say {number}")}]);
    let with_usage = json!({"include_usage": true});
    match number % 5 {
        0 => {
            let body = json!({"model": "tiny", "prompt": [1 + number, 5], "max_tokens": 9, "seed": number});
            let answer = socket.ok(COMPLETIONS, &body).await;
            let text = answer["choices"][0]["text"].as_str().unwrap();
            Said::new(text, &answer["usage"], OPENAI)
        }
        1 => {
            let body = json!({"model": "tiny", "prompt": "Once", "max_tokens": 9, "seed": number, "stream": true,
                "stream_options": with_usage});
            let events = stream(socket, COMPLETIONS, &body).await;
            let text = joined(&events, 0, |choice| &choice["text"]);
            Said::new(text, &events.last().unwrap()["usage"], OPENAI)
        }
        2 => {
            let body = json!({"model": "tiny", "messages": said, "max_tokens": 9, "seed": number, "stream": true,
                "stream_options": with_usage});
            let events = stream(socket, CHAT, &body).await;
            let text = joined(&events, 0, |choice| &choice["delta"]["content"]);
            Said::new(text, &events.last().unwrap()["usage"], OPENAI)
        }
        3 => {
            let body =
                json!({"model": "tiny", "input": said, "max_output_tokens": 9, "temperature": 0});
            let answer = socket.ok("/v1/responses", &body).await;
            let text = answer["output"][0]["content"][0]["text"].as_str();
            Said::new(text.unwrap(), &answer["usage"], LATER)
        }
        _ => {
            let body =
                json!({"model": "tiny", "messages": said, "max_tokens": 9, "temperature": 0});
            let answer = socket.ok("/v1/messages", &body).await;
            let counted = json!({"model": "tiny", "messages": said});
            let counted = socket.ok("/v1/messages/count_tokens", &counted).await;
            assert!(counted["input_tokens"].as_u64() > Some(0), "{counted}");
            let text = answer["content"][0]["text"].as_str();
            Said::new(text.unwrap(), &answer["usage"], LATER)
        }
    }
}

/// Lists everything again and again until it is told to stop, and returns how often.
async fn list(socket: &Socket, stop: &tokio::sync::watch::Receiver<bool>) -> usize {
    let mut listed = 0;
    while !*stop.borrow() {
        for path in [
            "/training_runs?limit=200",
            "/checkpoints",
            "/sessions?limit=500",
            "/v1/models",
            "/v1/models/tiny",
            "/healthz",
        ] {
            let answer = socket.call(Method::GET, path, &Value::Null).await;
            assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
            listed += 1;
        }
        let found = socket.ok("/sessions/search", &json!({"limit": 200})).await;
        assert!(found["sessions"].as_array().unwrap().len() <= 200);
        tokio::task::yield_now().await;
    }
    listed
}

/// Adds up what was used.
async fn used(socket: &Socket, kind: &str) -> u64 {
    let hour = Timestamp::from_second(Timestamp::now().as_second() / 3600 * 3600).unwrap();
    let (start, end) = (hour - 24.hours(), hour + 2.hours());
    let path = format!("/billing/usage/events?starting_on={start}&ending_before={end}");
    let usage = socket.call(Method::GET, &path, &Value::Null).await.json();
    let events = usage["data"].as_array().unwrap().iter();
    let events = events.filter(|event| event["event_info"]["type"] == kind);
    events
        .map(|event| event["event_info"]["token_count"].as_u64().unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_samples_questions_and_listings_at_once_lose_and_repeat_nothing() {
    let seconds = std::env::var("TINKRS_LOAD_SECONDS").ok();
    let seconds = seconds.map_or(0, |text| {
        text.parse().expect("TINKRS_LOAD_SECONDS: a number")
    });
    let server = start(talking()).await;
    let open = async |count: usize| {
        let sockets = (0..count).map(|_| Socket::open(server.address()));
        join_all(sockets).await
    };
    let others = open(OTHERS).await;
    let listing = Socket::open(server.address()).await;
    let first = Socket::open(server.address()).await;
    let alone = Client::new(&first, &others, 0);

    // What everything has to be like when it is alone.
    let expected_losses = alone.train().await;
    let own = alone.session().await;
    let sampler = async |number: usize| {
        let body = json!({
            "session_id": own, "sampling_session_seq_id": number, "base_model": "tiny",
        });
        let created = first.ok("/create_sampling_session", &body).await;
        created["sampling_session_id"].clone()
    };
    let own_sampler = sampler(0).await;
    let mut expected_tokens = Vec::new();
    for number in 0..KINDS {
        expected_tokens.push(alone.sample(&own_sampler, number).await);
    }

    let mut expected_answers = Vec::new();
    for number in 0..KINDS {
        expected_answers.push(ask(&first, number).await);
    }

    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    let mut before = None;
    loop {
        rounds += 1;
        let sampler = sampler(rounds).await;
        let (of_runs, of_samples) = (open(RUNS).await, open(SAMPLES).await);
        let of_questions = open(QUESTIONS).await;
        let runs = of_runs.iter().enumerate();
        let runs =
            runs.map(async |(number, socket)| Client::new(socket, &others, number).train().await);
        let samples = of_samples.iter().enumerate();
        let samples = samples.map(async |(number, socket)| {
            let client = Client::new(socket, &others, number);
            client.sample(&sampler, number).await
        });
        let questions = of_questions.iter().enumerate();
        let questions = questions.map(async |(number, socket)| ask(socket, number).await);
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let work = async {
            let done = tokio::join!(join_all(runs), join_all(samples), join_all(questions));
            stop.send_replace(true);
            done
        };
        let ((losses, tokens, answers), listed) = tokio::join!(work, list(&listing, &stopped));
        assert_eq!(losses, vec![expected_losses.clone(); RUNS]);
        for (number, tokens) in tokens.iter().enumerate() {
            assert_eq!(*tokens, expected_tokens[number % KINDS], "sample {number}");
        }
        for (number, answer) in answers.iter().enumerate() {
            assert_eq!(
                *answer,
                expected_answers[number % KINDS],
                "question {number}"
            );
        }
        assert!(listed > 0);
        // The first round fills what is meant to be filled: caches, pools, the heap.
        let now = resident_bytes();
        let first = *before.get_or_insert(now);
        if let (Some(first), Some(now)) = (first, now) {
            let grown = now.saturating_sub(first) >> 20;
            assert!(grown < GROWTH_MIB, "{grown} MiB more after {rounds} rounds");
        }
        if rounds >= ROUNDS && Instant::now() >= deadline {
            break;
        }
    }

    // Each was counted once, as it happened once.
    let runs = (rounds * RUNS + 1) as u64;
    let samples = (rounds * SAMPLES + KINDS) as u64;
    assert_eq!(
        used(&listing, "training").await,
        runs * STEPS.cast_unsigned() * 3
    );
    let asked = |count: fn(&Said) -> u64| {
        let once = (0..QUESTIONS).map(|number| count(&expected_answers[number % KINDS]));
        let alone: u64 = expected_answers.iter().map(count).sum();
        rounds as u64 * once.sum::<u64>() + alone
    };
    assert_eq!(
        used(&listing, "sampling_sample").await,
        samples * SAMPLED_TOKENS as u64 + asked(|said| said.answer)
    );
    assert_eq!(
        used(&listing, "sampling_prefill").await,
        samples * 3 + asked(|said| said.prompt)
    );
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
