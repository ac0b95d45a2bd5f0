//! What the machine can do at best: bytes read from memory or from a file, and multiply-adds, on all threads.

#![expect(
    unsafe_code,
    reason = "calls functions compiled for instructions that were detected"
)]

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

/// Much more than any cache holds.
const BUFFER_BYTES: usize = 1 << 30;
/// Passes over the buffer in a round, and turns of the multiply-adds: the best one counts.
const PASSES: usize = 4;
/// Numbers in the registers of the loop of multiply-adds: enough for their latency, and no more than there are
/// registers.
const CHAINS: usize = 8;
const WIDEST: usize = 16;
const TURNS: usize = 1 << 24;

/// A buffer that all threads read.
pub(crate) struct Reading {
    buffer: Vec<u64>,
    threads: usize,
}

impl Reading {
    pub(crate) fn new(threads: usize) -> Self {
        // Not zero: the system has one page of zeros for all that were never written.
        let buffer = (0..BUFFER_BYTES as u64 / 8).map(|i| i | 1).collect();
        Self { buffer, threads }
    }

    /// Reads it some times, and returns the bytes of the best pass in a second.
    pub(crate) fn round(&self) -> Value {
        let part = self.buffer.len().div_ceil(self.threads);
        let best = best_of(|| {
            std::thread::scope(|scope| {
                for part in self.buffer.chunks(part) {
                    scope
                        .spawn(|| black_box(part.iter().fold(0u64, |sum, x| sum.wrapping_add(*x))));
                }
            });
        });
        json!({"gb_per_s": BUFFER_BYTES as f64 / best.as_secs_f64() / 1e9})
    }
}

/// Reads a file from end to end with one thread, and returns the bytes in a second.
pub(crate) fn read_file(path: &Path) -> Result<Value> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    let (start, mut total) = (Instant::now(), 0);
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        total += count;
    }
    Ok(json!({"gb_per_s": total as f64 / start.elapsed().as_secs_f64() / 1e9}))
}

/// Multiplies and adds in registers alone with all threads, and returns the operations of the best turn in a second.
pub(crate) fn multiply_adds(threads: usize) -> Value {
    let mut operations = 0;
    let best = best_of(|| {
        operations = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(chains)).collect();
            workers.into_iter().flat_map(|worker| worker.join()).sum()
        });
    });
    json!({"gflop_per_s": operations as f64 / best.as_secs_f64() / 1e9})
}

fn best_of(mut work: impl FnMut()) -> Duration {
    let times = (0..PASSES).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

/// Returns the operations done: two for each multiply-add.
fn chains() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature was detected.
            return unsafe { chains_avx512() };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the features were detected.
            return unsafe { chains_avx2() };
        }
    }
    chains_portable()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn chains_avx512() -> usize {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_set1_ps};
    let factor = black_box(_mm512_set1_ps(0.999_9));
    let mut sums = [_mm512_set1_ps(1.0); CHAINS];
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, factor);
        }
    }
    black_box(sums);
    2 * TURNS * CHAINS * 16
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn chains_avx2() -> usize {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps};
    // Two for each cycle, each four or five cycles long.
    let factor = black_box(_mm256_set1_ps(0.999_9));
    let mut sums = [_mm256_set1_ps(1.0); CHAINS + 4];
    for _ in 0..TURNS {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, factor);
        }
    }
    black_box(sums);
    2 * TURNS * (CHAINS + 4) * 8
}

fn chains_portable() -> usize {
    let factor = black_box(0.999_9_f32);
    let mut sums = [[1.0f32; WIDEST]; CHAINS];
    let turns = TURNS / 16;
    for _ in 0..turns {
        for sum in sums.iter_mut().flatten() {
            *sum = sum.mul_add(factor, factor);
        }
    }
    black_box(sums);
    2 * turns * CHAINS * WIDEST
}
