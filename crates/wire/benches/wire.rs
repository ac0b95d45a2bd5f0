//! What a pass costs on the wire, next to a plain copy of the same bytes.
//!
//! `cargo bench -p tinkrs-wire` prints how many copies encoding the request and decoding its
//! output are worth. Both sides allocate what they make. They take turns, so that both meet
//! the same machine, and the fastest of all turns counts: other processes only add time. With
//! `-- --json` each comparison is one line of JSON, which `bench/run wire` reads; `--turns N` sets
//! how many turns.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use bytes::Bytes;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};
use tinkrs_types::training::{BatchedTensor, OutputRecord};
use tinkrs_types::{Datum, ForwardBackwardOutput, LossFn, ModelInput};
use tinkrs_wire::header;
use tinkrs_wire::op::forward_backward::{self, ForwardBackwardRequest};

const DATUMS: usize = 256;
const TOKENS: usize = 2_048;

fn main() {
    keep_freed_memory();
    let request = request();
    let body = request.clone().encode().expect("the data are valid");
    let encode = compare(
        &body,
        || request.clone(),
        |request| request.encode().expect("the data are valid"),
    );
    encode.print("encode the request", body.len(), 3.0);

    let body = Bytes::from(forward_backward::encode_result(output()));
    let decode = compare(
        &body,
        || body.clone(),
        |body| forward_backward::decode_result(header::PROTOBUF, body).expect("we wrote it"),
    );
    decode.print("decode the output", body.len(), 2.0);
}

/// Lets the allocator keep what is freed, as it does in a process that has run for a while.
///
/// glibc returns memory to the system above a limit, which it raises when a large block is
/// freed. Without that, one side or the other pays for fresh pages, depending on where the
/// heap happens to lie.
fn keep_freed_memory() {
    drop(black_box(vec![1_u8; 30 << 20]));
}

/// Tokens, targets and weights: what supervised learning sends.
fn request() -> ForwardBackwardRequest {
    let datum = |index: usize| {
        let tokens: Vec<u32> = (0..TOKENS).map(|t| ((index + t) % 50_000) as u32).collect();
        let targets: Vec<i64> = tokens.iter().map(|token| i64::from(*token) + 1).collect();
        let weights: Vec<f32> = (0..TOKENS).map(|t| (t % 2) as f32).collect();
        Datum::supervised(ModelInput::from_tokens(tokens), targets, weights).expect("equal lengths")
    };
    ForwardBackwardRequest {
        model_id: "session:train:0".into(),
        seq_id: 1,
        data: (0..DATUMS).map(datum).collect(),
        loss_fn: LossFn::CrossEntropy,
        forward_only: false,
    }
}

/// One log-probability for each token of the request.
fn output() -> ForwardBackwardOutput {
    let logprobs: Vec<f32> = (0..DATUMS * TOKENS).map(|t| -(t as f32) / 1e6).collect();
    let logprobs = BatchedTensor::from_datums(logprobs.chunks(TOKENS));
    let fields = BTreeMap::from([("logprobs".to_owned(), logprobs)]);
    ForwardBackwardOutput::new(
        "TorchLossReturn".to_owned(),
        vec![OutputRecord::new(DATUMS, fields).expect("one field of all datums")],
        BTreeMap::from([("loss:sum".to_owned(), 1.5)]),
    )
}

/// Returns how many turns each side has.
fn turns() -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--turns");
    let given = arguments.nth(1);
    given.map_or(201, |turns| turns.parse().expect("a number of turns"))
}

struct Fastest {
    work: Duration,
    copy: Duration,
}

impl Fastest {
    fn print(&self, what: &str, bytes: usize, target: f64) {
        let ratio = self.work.as_secs_f64() / self.copy.as_secs_f64();
        if std::env::args().any(|argument| argument == "--json") {
            let tokens = (DATUMS * TOKENS) as f64;
            let line = serde_json::json!({
                "what": what, "bytes": bytes, "copies": ratio,
                "ns_per_token": self.work.as_secs_f64() / tokens * 1e9,
                "copy_ns_per_token": self.copy.as_secs_f64() / tokens * 1e9,
            });
            println!("{line}");
            return;
        }
        println!(
            "{what}: {ratio:.2} copies of its {bytes} bytes (target: at most {target}); \
             {:.0} µs against {:.0} µs",
            self.work.as_secs_f64() * 1e6,
            self.copy.as_secs_f64() * 1e6,
        );
    }
}

/// Times `work` and a copy of `bytes` in turns. What `work` consumes is made off the clock, and
/// what it makes is dropped off the clock.
fn compare<I, O>(bytes: &[u8], input: impl Fn() -> I, work: impl Fn(I) -> O) -> Fastest {
    let (mut fastest, mut copy) = (Duration::MAX, Duration::MAX);
    for _ in 0..turns() {
        let given = input();
        let start = Instant::now();
        let made = black_box(work(black_box(given)));
        fastest = fastest.min(start.elapsed());
        drop(made);

        let start = Instant::now();
        let made = black_box(black_box(bytes).to_vec());
        copy = copy.min(start.elapsed());
        drop(made);
    }
    Fastest {
        work: fastest,
        copy,
    }
}
