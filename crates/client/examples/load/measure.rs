//! Clocks and memory of this process.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::io::BufRead;
use std::time::{Duration, Instant};

/// The moment at which the measured work starts.
pub(crate) struct Start {
    wall: Instant,
    cpu: Duration,
}

/// What the measured work took.
pub(crate) struct Measured {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

impl Start {
    pub(crate) fn now() -> Self {
        Self {
            wall: Instant::now(),
            cpu: cpu_time(),
        }
    }

    pub(crate) fn stop(self) -> Measured {
        Measured {
            wall: self.wall.elapsed(),
            cpu: cpu_time() - self.cpu,
        }
    }
}

/// Returns the processor time of all threads of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Returns the most memory that this process ever had.
fn peak_rss_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("no VmHWM in /proc/self/status")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

/// Takes a round to warm up and says that it is ready, then takes one for each line of the input and
/// prints what it took. A round returns how many tokens it sampled.
#[expect(clippy::print_stdout, reason = "the measurement prints its rounds")]
pub(crate) async fn rounds(
    mode: &str,
    n: usize,
    mut round: impl AsyncFnMut() -> Result<usize>,
) -> Result<()> {
    round().await?;
    println!("{}", json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        line?;
        let start = Start::now();
        let tokens = round().await?;
        let measured = start.stop();
        let rate = tokens as f64 / measured.wall.as_secs_f64();
        print("tinkrs", mode, n, &measured, &[("tokens_per_s", rate)])?;
    }
    Ok(())
}

/// Prints the line of JSON: what all modes have, and what this mode has besides.
#[expect(clippy::print_stdout, reason = "the line is what the program is for")]
pub(crate) fn print(
    client: &str,
    mode: &str,
    n: usize,
    measured: &Measured,
    more: &[(&str, f64)],
) -> Result<()> {
    let round = |value: f64| (value * 1_000.0).round() / 1_000.0;
    let mut line = json!({
        "client": client, "mode": mode, "n": n,
        "wall_s": round(measured.wall.as_secs_f64()),
        "cpu_s": round(measured.cpu.as_secs_f64()),
        "rss_mib": round(peak_rss_mib()?),
    });
    for (name, value) in more {
        line[name] = Value::from(round(*value));
    }
    println!("{line}");
    Ok(())
}

/// Returns how many operations a second there were, and what one of them cost.
pub(crate) fn rates(n: usize, measured: &Measured) -> [(&'static str, f64); 2] {
    let n = n as f64;
    [
        ("per_s", n / measured.wall.as_secs_f64()),
        ("cpu_us_per_op", measured.cpu.as_secs_f64() / n * 1e6),
    ]
}
