//! What the machine can do: fused multiply-adds and copying.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

/// The bounds that results are compared with.
pub(crate) struct Machine {
    pub(crate) threads: usize,
    /// Floating-point operations a second of one core.
    pub(crate) core_flops: f64,
    /// Bytes read and written a second while all threads copy.
    pub(crate) copy_bytes: f64,
}

impl Machine {
    pub(crate) fn measure(threads: usize) -> Self {
        let core_flops = (0..40).map(|_| flops()).fold(0.0, f64::max);
        let copy_bytes = copy(threads);
        Self {
            threads,
            core_flops,
            copy_bytes,
        }
    }

    /// Operations a second of all threads.
    pub(crate) fn flops(&self) -> f64 {
        self.core_flops * self.threads as f64
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "machine: {} threads, {:.0} GFLOP/s a core by fused multiply-adds, {:.1} GB/s copying",
            self.threads,
            self.core_flops / 1e9,
            self.copy_bytes / 1e9
        )
    }
}

const ROUNDS: usize = 400_000;

/// Times independent chains of fused multiply-adds in registers, the widest that there are.
#[cfg(target_arch = "x86_64")]
fn flops() -> f64 {
    use std::arch::x86_64::{
        _mm256_fmadd_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm512_fmadd_ps, _mm512_set1_ps,
        _mm512_storeu_ps,
    };

    macro_rules! chains {
        ($name:ident, $features:literal, $lanes:literal, $set:ident, $multiply_add:ident, $store:ident) => {
            #[target_feature(enable = $features)]
            fn $name(rounds: usize) -> [f32; $lanes] {
                let (a, b) = ($set(0.999_999), $set(1e-7));
                let mut sums = [$set(1.0); CHAINS];
                for _ in 0..rounds {
                    for sum in &mut sums {
                        *sum = $multiply_add(*sum, a, b);
                    }
                }
                let mut out = [0.0; $lanes];
                for sum in sums {
                    let mut lanes = [0.0f32; $lanes];
                    #[expect(unsafe_code, reason = "stores all lanes into an array of as many")]
                    // SAFETY: `lanes` holds as many numbers as the register.
                    unsafe {
                        $store(lanes.as_mut_ptr(), sum);
                    }
                    (out.iter_mut().zip(lanes)).for_each(|(out, lane)| *out += lane);
                }
                out
            }
        };
    }
    const CHAINS: usize = 12;
    chains!(
        in_avx2,
        "avx2,fma",
        8,
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        _mm256_storeu_ps
    );
    chains!(
        in_avx512,
        "avx512f",
        16,
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        _mm512_storeu_ps
    );

    let start = Instant::now();
    let lanes = if is_x86_feature_detected!("avx512f") {
        #[expect(unsafe_code, reason = "calls a function for detected CPU features")]
        // SAFETY: AVX-512 was detected.
        black_box(unsafe { in_avx512(black_box(ROUNDS)) }).len()
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        #[expect(unsafe_code, reason = "calls a function for detected CPU features")]
        // SAFETY: AVX2 and FMA were detected.
        black_box(unsafe { in_avx2(black_box(ROUNDS)) }).len()
    } else {
        return portable_flops();
    };
    (ROUNDS * CHAINS * lanes * 2) as f64 / start.elapsed().as_secs_f64()
}

#[cfg(not(target_arch = "x86_64"))]
fn flops() -> f64 {
    portable_flops()
}

fn portable_flops() -> f64 {
    const LANES: usize = 64;
    let start = Instant::now();
    let mut sums = [black_box(1.0f32); LANES];
    for _ in 0..black_box(ROUNDS) {
        sums.iter_mut()
            .for_each(|sum| *sum = sum.mul_add(0.999_999, 1e-7));
    }
    black_box(sums);
    (ROUNDS * LANES * 2) as f64 / start.elapsed().as_secs_f64()
}

/// Copies buffers far larger than the caches, each thread its own; the best of several rounds.
fn copy(threads: usize) -> f64 {
    const LEN: usize = 1 << 23;
    const ROUNDS: usize = 12;
    // Filled, so that their pages exist before the clock starts.
    let mut buffers: Vec<(Vec<u64>, Vec<u64>)> = (1..=threads as u64)
        .map(|i| (vec![i; LEN], vec![i; LEN]))
        .collect();
    let mut best = 0.0f64;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (from, to) in &mut buffers {
                scope.spawn(|| to.copy_from_slice(black_box(from)));
            }
        });
        best = best.max((threads * LEN * 8 * 2) as f64 / start.elapsed().as_secs_f64());
        black_box(&buffers);
    }
    best
}

/// The process's largest resident memory, where the system tells.
pub(crate) fn peak_memory_gb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes: f64 = line
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(f64::NAN);
    kilobytes / 1e6
}

/// Processor seconds that the process has used, where the system tells (in steps of 10 ms).
pub(crate) fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold spaces; user and system time are fields 14 and 15.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
    let ticks: f64 = fields
        .iter()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    ticks / 100.0
}
