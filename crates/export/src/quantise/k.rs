//! The "K" formats: blocks of 256 numbers in parts that have scales of their own.
//!
//! For each part, the numbers are rounded with several scales near the obvious one. Given the rounded
//! numbers, the best scale (and minimum) is a weighted least-squares fit; the candidate with the least error
//! wins. Then the scales themselves are rounded, and the numbers once more with those.

use half::f16;

use super::signed_largest;

/// `x = (d · s) · q - (dmin · m)`: eight parts of 32, `q` of four bits, `s` and `m` of six.
pub(super) fn q4_k(x: &[f32], out: &mut [u8]) {
    let parts: Vec<(f32, f32)> = x.chunks_exact(32).map(fit_with_minimum).collect();
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
            let q = level((x[sub * 32 + i] + minimum) / scale, 0, 15) as u8;
            out[16 + sub / 2 * 32 + i] |= q << shift;
        }
    }
}

/// `x = (d · s) · (q - 32)`: sixteen parts of 16, `q` of six bits, `s` of eight with a sign.
pub(super) fn q6_k(x: &[f32], out: &mut [u8]) {
    let parts: Vec<f32> = x.chunks_exact(16).map(fit).collect();
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
        let s = level(inverse * scale, -128, 127) as i8;
        out[192 + part] = s.cast_unsigned();
        let scale = d.to_f32() * f32::from(s);
        for (i, x) in (part * 16..).zip(&x[part * 16..][..16]) {
            let q = (level(x / scale, -32, 31) + 32) as u8;
            // Halves of 128 numbers: four runs of 32, whose low bits lie in 64 bytes and high in 32.
            let (half, run, place) = (i / 128, i % 128 / 32, i % 32);
            out[half * 64 + run % 2 * 32 + place] |= (q & 15) << (run / 2 * 4);
            out[128 + half * 32 + place] |= (q >> 4) << (2 * run);
        }
    }
}

/// Rounds to the nearest integer within bounds. Dividing by a scale of zero gives zero.
fn level(x: f32, least: i32, most: i32) -> i32 {
    if x.is_finite() {
        (x.round() as i32).clamp(least, most)
    } else {
        least.max(0)
    }
}

/// Writes numbers as multiples, up to 63, of a sixty-third of the largest.
fn sixths(largest: f32, values: impl Iterator<Item = f32>) -> (f16, Vec<u8>) {
    let inverse = if largest > 0.0 { 63.0 / largest } else { 0.0 };
    let multiples = values.map(|value| level(inverse * value, 0, 63) as u8);
    (f16::from_f32(largest / 63.0), multiples.collect())
}

/// Packs the 6-bit scale and minimum of a part into 12 bytes; the engine's `packed_scale` is the way back.
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
fn fit_with_minimum(x: &[f32]) -> (f32, f32) {
    let least = x.iter().fold(0.0f32, |least, x| least.min(*x));
    let most = x.iter().fold(f32::MIN, |most, x| most.max(*x));
    if most <= least {
        return (0.0, -least);
    }
    let mean_square = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    let weight = |x: f32| mean_square.sqrt() + x.abs();
    let error = |scale: f32, minimum: f32, levels: &[f32]| -> f32 {
        let errors = x.iter().zip(levels).map(|(&x, q)| {
            let difference = scale * q - minimum - x;
            weight(x) * difference * difference
        });
        errors.sum()
    };
    let mut best = ((most - least) / 15.0, -least);
    let mut least_error = f32::INFINITY;
    let mut levels = [0.0f32; 32];
    for step in 0..=20 {
        let inverse = (14.0 + 0.1 * step as f32) / (most - least);
        let (mut w, mut wx, mut wq, mut wqq, mut wxq) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (q, &x) in levels.iter_mut().zip(x) {
            *q = (inverse * (x - least)).round().clamp(0.0, 15.0);
            let weight = weight(x);
            w += weight;
            wx += weight * x;
            wq += weight * *q;
            wqq += weight * *q * *q;
            wxq += weight * x * *q;
        }
        let determinant = w * wqq - wq * wq;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (w * wxq - wx * wq) / determinant;
        let mut minimum = (wq * wxq - wqq * wx) / determinant;
        if minimum < 0.0 {
            (scale, minimum) = (wxq / wqq, 0.0);
        }
        let error = error(scale, minimum, &levels);
        if scale > 0.0 && error < least_error {
            (best, least_error) = ((scale, minimum), error);
        }
    }
    best
}

/// Finds `s` such that `s · q`, with `q` in -32..=31, is near the numbers. Large ones count more.
fn fit(x: &[f32]) -> f32 {
    let largest = signed_largest(x);
    if largest == 0.0 {
        return 0.0;
    }
    let (mut best, mut least_error) = (0.0, f32::INFINITY);
    for step in -9..=9 {
        let inverse = -(32.0 + 0.1 * step as f32) / largest;
        let q = |x: f32| (inverse * x).round().clamp(-32.0, 31.0);
        let (wxq, wqq) = x.iter().fold((0.0, 0.0), |(wxq, wqq), &x| {
            let (weight, q) = (x * x, q(x));
            (wxq + weight * x * q, wqq + weight * q * q)
        });
        if wqq <= 0.0 {
            continue;
        }
        let scale = wxq / wqq;
        let errors = x.iter().map(|&x| {
            let difference = scale * q(x) - x;
            x * x * difference * difference
        });
        let error = errors.sum::<f32>();
        if error < least_error {
            (best, least_error) = (scale, error);
        }
    }
    best
}
