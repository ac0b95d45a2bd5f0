//! The clocks and the memory of one round.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Runs a round, which returns its tokens, and says what it took.
pub(crate) fn measure(round: &mut impl FnMut() -> Result<usize>) -> Result<Value> {
    let (wall, cpu) = (Instant::now(), cpu_time());
    let tokens = round()?;
    let (wall, cpu) = (wall.elapsed(), cpu_time() - cpu);
    Ok(json!({
        "tokens": tokens,
        "wall_s": wall.as_secs_f64(),
        "cpu_s": cpu.as_secs_f64(),
        "tokens_per_s": tokens as f64 / wall.as_secs_f64(),
        "rss_mib": memory_mib("VmHWM:")?,
    }))
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
