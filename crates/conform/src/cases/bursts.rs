//! Much at once, as real loops send it.
//!
//! A server may say that it is busy, and is asked again: that is what clients do. Connections that break are failures.

use crate::case::{Case, Stop, Verdict, case, ensure, measured, mismatch};
use crate::numbers::TEXT;
use crate::run::Run;
use crate::trial::{Trial, text};
use crate::wire::Sent;
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tinkrs_types::{Datum, LossFn};
use tinkrs_wire::endpoint;

pub(super) const CASES: &[Case] = &[
    case!("bursts/samples", "512 samples are requested at once, and all of them complete.", "client-behavior 8, pitfalls", samples).after(&["sampling/sequences"]).heavy().time(3),
    case!("bursts/writes", "64 passes of 500 KB are sent at once, first chunk last: each has its promise.", "client-behavior 6, 8", writes).after(&["passes/outputs"]).heavy().time(2),
    case!("bursts/large-batch", "208 passes of 3.3 MB are sent, first chunk last: each has its promise, and heartbeats are answered within 10 s meanwhile.", "client-behavior 7, 8, 14", large_batch).after(&["passes/outputs"]).heavy().time(4),
];

async fn samples(trial: &Trial) -> Verdict {
    const COUNT: usize = 512;
    let sampler = trial.base_sampler().await?;
    let busy = trial.wire().busy.load(Ordering::Relaxed);
    let started = Instant::now();
    let one = || async {
        let params = json!({"max_tokens": 4, "stop": []});
        let sent = sampler.request(&trial.prompt(), params, json!({}));
        let promise = trial.wire().accepted(&sent).await?.object()?;
        let output = sampler.output(&promise).await?;
        ensure(
            output.sequences.len() == 1,
            "one sequence",
            output.sequences.len(),
        )?;
        text(&promise, "request_id")
    };
    let mut all: FuturesUnordered<_> = (0..COUNT).map(|_| one()).collect();
    let mut ids = HashSet::new();
    while let Some(id) = all.next().await {
        ids.insert(id?);
    }
    ensure(
        ids.len() == COUNT,
        format_args!("{COUNT} different promises"),
        ids.len(),
    )?;
    let busy = trial.wire().busy.load(Ordering::Relaxed) - busy;
    let seconds = started.elapsed().as_secs_f64();
    measured(format_args!(
        "{seconds:.1} s; told to come back {busy} times"
    ))
}

/// A pass of about this many bytes, whose datums have a length that models have.
fn large(run: &Run<'_>, seq_id: i32, bytes: usize) -> Sent {
    // A position is a token, a target and a weight: 4, 8 and 4 bytes.
    const LENGTH: usize = 200;
    let text: Vec<u32> = TEXT.iter().cycle().take(LENGTH).copied().collect();
    let targets: Vec<i64> = text.iter().map(|token| i64::from(*token)).collect();
    let datum = Datum::supervised(text, targets, vec![1.0; LENGTH]).expect("lengths are equal");
    run.pass_at(
        seq_id,
        vec![datum; bytes / (16 * LENGTH)],
        LossFn::CrossEntropy,
        false,
    )
}

/// Sends passes 2 to n, some at a time, and never the first: none of them can start, so this is about taking them.
async fn send_chunks(run: &Run<'_>, count: i32, bytes: usize) -> Result<(), Stop> {
    // What a client has under way at a time: fwdbwd_dispatch_bytes_semaphore_size.
    let together = (50_000_000 / bytes).clamp(1, 64);
    let send = |seq_id: i32| async move {
        let sent = large(run, seq_id, bytes);
        text(&run.promise(&sent).await?, "request_id")
    };
    let mut sent = stream::iter(2..count + 2)
        .map(send)
        .buffer_unordered(together);
    let mut ids = HashSet::new();
    while let Some(id) = sent.next().await {
        ids.insert(id?);
    }
    ensure(
        ids.len() == count as usize,
        format_args!("{count} different promises"),
        ids.len(),
    )
}

async fn writes(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let started = Instant::now();
    send_chunks(&run, 64, 500_000).await?;
    measured(format_args!("{:.1} s", started.elapsed().as_secs_f64()))
}

async fn large_batch(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let session = trial.session().await?;
    let started = Instant::now();
    let mut times = Vec::new();
    let beats = async {
        loop {
            let beat = Instant::now();
            let body: Value = json!({"session_id": session, "type": "session_heartbeat"});
            let sent = Sent::to(&endpoint::SESSION_HEARTBEAT).json(&body);
            if let Err(stop) = trial
                .wire()
                .send(&sent)
                .await
                .and_then(crate::wire::Reply::object)
            {
                return stop;
            }
            times.push(beat.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        sent = send_chunks(&run, 208, 3_300_000) => sent?,
        stop = beats => return Err(stop),
    }
    times.sort_unstable();
    let Some(longest) = times.last().copied() else {
        return Err(mismatch("heartbeats to be answered meanwhile", "none was"));
    };
    ensure(
        longest < Duration::from_secs(10),
        "heartbeats within 10 s",
        format_args!("{longest:.1?}"),
    )?;
    let p95 = times[(times.len() - 1) * 95 / 100].as_secs_f64() * 1000.0;
    let longest = longest.as_secs_f64() * 1000.0;
    let seconds = started.elapsed().as_secs_f64();
    measured(format_args!(
        "{seconds:.1} s; heartbeats: 95 % within {p95:.0} ms, the longest {longest:.0} ms"
    ))
}
