//! Training steps, pipelined: nothing is awaited before everything is submitted.

use crate::measure::{Start, print};
use crate::{BASE_MODEL, service, tokens};
use anyhow::{Result, ensure};
use tinkrs::{AdamParams, Datum};

pub(crate) async fn run(steps: usize, datums: usize, length: usize) -> Result<()> {
    let client = service().create_lora_training_client(BASE_MODEL).await?;
    let ids = tokens(length + 1);
    let targets: Vec<i64> = ids[1..].iter().map(|id| i64::from(*id)).collect();
    let datum = Datum::supervised(ids[..length].to_vec(), targets, vec![1.0; length])?;
    // The data are the user's, and passed on without a copy: they are there before.
    let batches = vec![vec![datum; datums]; steps];

    let start = Start::now();
    let mut pending = Vec::with_capacity(steps);
    for batch in batches {
        let pass = client.forward_backward(batch).submit();
        let update = client.optim_step(AdamParams::new(1e-4)).submit();
        pending.push((pass, update));
    }
    for (pass, update) in pending {
        ensure!(pass.await?.datums() == datums);
        update.await?;
    }
    let measured = start.stop();
    let n = (steps * datums * length) as f64;
    let more = [
        ("mtok_per_s", n / measured.wall.as_secs_f64() / 1e6),
        ("cpu_ns_per_token", measured.cpu.as_secs_f64() / n * 1e9),
    ];
    print("tinkrs", "train", steps, &measured, &more)
}
