//! The clocks and the memory of one round.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What a round did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) tokens: usize,
    /// Bytes that had to be read from memory or from a file, where that is the limit.
    pub(crate) bytes: Option<f64>,
    /// Additions and multiplications, where they are the limit.
    pub(crate) operations: Option<f64>,
}

/// Runs a round, and says what it took.
pub(crate) fn measure(round: &mut impl FnMut() -> Result<Done>) -> Result<Value> {
    let (wall, cpu) = (Instant::now(), cpu_time());
    let done = round()?;
    let (wall, cpu) = (wall.elapsed().as_secs_f64(), cpu_time() - cpu);
    let mut line = json!({
        "tokens": done.tokens,
        "wall_s": wall,
        "cpu_s": cpu.as_secs_f64(),
        "tokens_per_s": done.tokens as f64 / wall,
        "rss_mib": memory_mib("VmHWM:")?,
    });
    if let Some(bytes) = done.bytes {
        line["gb_per_s"] = json!(bytes / wall / 1e9);
    }
    if let Some(operations) = done.operations {
        line["gflop_per_s"] = json!(operations / wall / 1e9);
    }
    Ok(line)
}

/// Returns the processor time of all threads of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Returns the memory of this process: `VmRSS:` now, `VmHWM:` the most it ever had.
pub(crate) fn memory_mib(name: &str) -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .with_context(|| format!("no {name} in /proc/self/status"))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}
