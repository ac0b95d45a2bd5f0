//! The "K" formats: blocks of 256 numbers in parts that have scales of their own.
//!
//! For each part, the numbers are rounded with several scales near the obvious one. Given the rounded
//! numbers, the best scale (and minimum) is a weighted least-squares fit; the candidate with the least error
//! wins. Then the scales themselves are rounded, and the numbers once more with those.

use half::f16;

use super::signed_largest;

/// `x = (d · s) · q - (dmin · m)`: eight parts of 32, `q` of four bits, `s` and `m` of six.
pub(super) fn q4_k(x: &[f32], out: &mut [u8]) {
    let (parts, _) = x.as_chunks::<32>();
    let parts: Vec<(f32, f32)> = parts.iter().map(fit_with_minimum).collect();
    let largest = |of: fn(&(f32, f32)) -> f32| parts.iter().map(of).fold(0.0f32, f32::max);
    let (d, scales) = sixths(largest(|part| part.0), parts.iter().map(|part| part.0));
    let (dmin, minima) = sixths(largest(|part| part.1), parts.iter().map(|part| part.1));
    out.fill(0);
    out[..2].copy_from_slice(&d.to_le_bytes());
    out[2..4].copy_from_slice(&dmin.to_le_bytes());
    for sub in 0..8 {
        pack_scale(&mut out[4..16], sub, scales[sub], minima[sub]);
        let scale = d.to_f32() * f32::from(scales[sub]);
        let minimum = dmin.to_f32() * f32::from(minima[sub]);
        let shift = 4 * (sub % 2);
        for i in 0..32 {
            let q = level(x[sub * 32 + i] + minimum, scale, 0.0, 15.0) as u8;
            out[16 + sub / 2 * 32 + i] |= q << shift;
        }
    }
}

/// `x = (d · s) · (q - 32)`: sixteen parts of 16, `q` of six bits, `s` of eight with a sign.
pub(super) fn q6_k(x: &[f32], out: &mut [u8]) {
    let (parts, _) = x.as_chunks::<16>();
    let parts: Vec<f32> = parts.iter().map(fit).collect();
    let largest = signed_largest(&parts);
    out.fill(0);
    if largest == 0.0 {
        return;
    }
    // The largest becomes -128, which has no opposite.
    let inverse = -128.0 / largest;
    let d = f16::from_f32(1.0 / inverse);
    out[208..210].copy_from_slice(&d.to_le_bytes());
    for (part, scale) in parts.iter().enumerate() {
        let s = nearest((inverse * scale).clamp(-128.0, 127.0)) as i8;
        out[192 + part] = s.cast_unsigned();
        let scale = d.to_f32() * f32::from(s);
        for (i, x) in (part * 16..).zip(&x[part * 16..][..16]) {
            let q = (level(*x, scale, -32.0, 31.0) + 32.0) as u8;
            // Halves of 128 numbers: four runs of 32, whose low bits lie in 64 bytes and high in 32.
            let (half, run, place) = (i / 128, i % 128 / 32, i % 32);
            out[half * 64 + run % 2 * 32 + place] |= (q & 15) << (run / 2 * 4);
            out[128 + half * 32 + place] |= (q >> 4) << (2 * run);
        }
    }
}

/// Returns the integer within bounds whose multiple of a scale is nearest; zero where the scale is.
fn level(x: f32, scale: f32, least: f32, most: f32) -> f32 {
    if scale == 0.0 {
        0.0
    } else {
        nearest((x / scale).clamp(least, most))
    }
}

/// Rounds to the nearest integer, of two the even one. For numbers below 2^22: above it, the sum has no digits after the
/// point. `f32::round` is a call for each number where this is an instruction for several.
fn nearest(x: f32) -> f32 {
    const BEYOND: f32 = 12_582_912.0;
    (x + BEYOND) - BEYOND
}

/// Sums in several lanes, as processors do at once.
fn sum<const N: usize>(of: impl Fn(usize) -> f32) -> f32 {
    const LANES: usize = 8;
    let mut lanes = [0.0; LANES];
    for start in (0..N).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += of(start + lane);
        }
    }
    lanes.iter().sum()
}

/// Writes numbers as multiples, up to 63, of a sixty-third of the largest.
fn sixths(largest: f32, values: impl Iterator<Item = f32>) -> (f16, Vec<u8>) {
    let inverse = if largest > 0.0 { 63.0 / largest } else { 0.0 };
    let multiples = values.map(|value| nearest((inverse * value).clamp(0.0, 63.0)) as u8);
    (f16::from_f32(largest / 63.0), multiples.collect())
}

/// Packs the 6-bit scale and minimum of a part into 12 bytes; `packed_scale` of the formats is the way back.
fn pack_scale(packed: &mut [u8], sub: usize, scale: u8, minimum: u8) {
    if sub < 4 {
        packed[sub] |= scale;
        packed[sub + 4] |= minimum;
    } else {
        packed[sub + 4] = scale & 15 | minimum << 4;
        packed[sub - 4] |= scale >> 4 << 6;
        packed[sub] |= minimum >> 4 << 6;
    }
}

/// Finds `s ≥ 0` and `m ≥ 0` such that `s · q - m`, with `q` in 0..=15, is near the numbers. Large ones count
/// more.
fn fit_with_minimum(x: &[f32; 32]) -> (f32, f32) {
    let most = x.iter().fold(f32::MIN, |most, x| most.max(*x));
    let least = x.iter().fold(0.0f32, |least, x| least.min(*x));
    if most <= least {
        return (0.0, -least);
    }
    let root_mean_square = (sum::<32>(|i| x[i] * x[i]) / 32.0).sqrt();
    let weights = x.map(|x| root_mean_square + x.abs());
    let (w, wx) = (sum::<32>(|i| weights[i]), sum::<32>(|i| weights[i] * x[i]));
    let mut best = ((most - least) / 15.0, -least);
    let mut least_error = f32::INFINITY;
    for step in 0..=20 {
        // From the best minimum so far: a better one makes other candidates.
        let (scale, minimum) = best;
        let range = most + minimum;
        if scale <= 0.0 || range <= 0.0 {
            break;
        }
        let inverse = (14.0 + 0.1 * step as f32) / range;
        let q = x.map(|x| nearest(inverse * (x + minimum)).clamp(0.0, 15.0));
        let wq = sum::<32>(|i| weights[i] * q[i]);
        let wqq = sum::<32>(|i| weights[i] * q[i] * q[i]);
        let wxq = sum::<32>(|i| weights[i] * x[i] * q[i]);
        let determinant = w * wqq - wq * wq;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (w * wxq - wx * wq) / determinant;
        let mut minimum = (wq * wxq - wqq * wx) / determinant;
        if minimum < 0.0 {
            (scale, minimum) = (wxq / wqq, 0.0);
        }
        let error = sum::<32>(|i| {
            let difference = scale * q[i] - minimum - x[i];
            weights[i] * difference * difference
        });
        if scale > 0.0 && error < least_error {
            (best, least_error) = ((scale, minimum), error);
        }
    }
    best
}

/// Finds `s` such that `s · q`, with `q` in -32..=31, is near the numbers. Large ones count more.
fn fit(x: &[f32; 16]) -> f32 {
    let largest = signed_largest(x);
    if largest == 0.0 {
        return 0.0;
    }
    let (mut best, mut least_error) = (0.0, f32::INFINITY);
    for step in -9..=9 {
        let inverse = -(32.0 + 0.1 * step as f32) / largest;
        let q = x.map(|x| nearest(inverse * x).clamp(-32.0, 31.0));
        let wxq = sum::<16>(|i| x[i] * x[i] * x[i] * q[i]);
        let wqq = sum::<16>(|i| x[i] * x[i] * q[i] * q[i]);
        if wqq <= 0.0 {
            continue;
        }
        let scale = wxq / wqq;
        let error = sum::<16>(|i| {
            let difference = scale * q[i] - x[i];
            x[i] * x[i] * difference * difference
        });
        if error < least_error {
            (best, least_error) = (scale, error);
        }
    }
    best
}
