//! Every format against its dequantised values, and the vector unit against portable code, bit for bit.

use super::int8::Int8Rows;
use super::*;
use crate::kernels::check::{in_pool, values};
use crate::kernels::gemm::{Start, project, project_back};
use crate::kernels::isa::testing::{at, levels};
use crate::kernels::matrix::{Mat, MatMut};
use crate::kernels::panels::Panels;
use crate::rng::SplitMix64;
use crate::weights::{Format, StoredTensor};

const FORMATS: [Format; 8] = [
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
];

/// Blocks of random bytes, as a file may hold them, with scales that are finite.
fn random_blocks(format: Format, outputs: usize, inputs: usize) -> Vec<u8> {
    let (elements, size) = format.block();
    let mut rng = SplitMix64::new(u64::from(format.id()));
    let mut bytes: Vec<u8> = (0..outputs * inputs / elements * size)
        .map(|_| (rng.unit() * 256.0) as u8)
        .collect();
    for block in bytes.chunks_exact_mut(size) {
        let mut set = |at: usize| {
            let scale = half::f16::from_f32(0.02 * rng.symmetric());
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        };
        match format {
            Format::Q6K => set(208),
            Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => {
                set(0);
                set(2);
            }
            _ => set(0),
        }
    }
    bytes
}

fn packed(format: Format, bytes: &[u8], shape: [usize; 2], activations: Activations) -> Panels {
    let tensor = StoredTensor::new("w", format, shape.to_vec(), bytes).unwrap();
    Panels::pack(&tensor, format, activations)
}

/// The same matrix, dequantised and packed as f32.
fn widened(format: Format, bytes: &[u8], shape: [usize; 2]) -> (Panels, Vec<f32>) {
    let mut values = vec![0.0; shape[0] * shape[1]];
    format.dequantise(bytes, &mut values);
    let panels = Panels::from_f32(|o, k| values[o * shape[1] + k], shape[0], shape[1]);
    (panels, values)
}

fn multiply(x: &[f32], rows: usize, weights: &[&Panels]) -> Vec<f32> {
    let (inputs, width) = (
        weights[0].inputs(),
        weights.iter().map(|w| w.outputs()).sum(),
    );
    let mut y = vec![0.25; rows * width];
    let y_mat = MatMut::new(&mut y, rows, width);
    project(Mat::new(x, rows, inputs), weights, y_mat, Start::Keep);
    y
}

#[test]
fn with_f32_activations_a_quantised_matrix_is_its_dequantised_one_bit_for_bit() {
    let shape = [37, 512];
    for format in FORMATS {
        let bytes = random_blocks(format, shape[0], shape[1]);
        let quantised = packed(format, &bytes, shape, Activations::F32);
        let (plain, expected) = widened(format, &bytes, shape);
        let mut row = vec![0.0; shape[1]];
        for output in 0..shape[0] {
            quantised.row(output, &mut row);
            let expected = &expected[output * shape[1]..][..shape[1]];
            let same = row.iter().zip(expected);
            assert!(
                same.clone().all(|(a, b)| a.to_bits() == b.to_bits()),
                "{format:?}: row {output}"
            );
        }
        let x = values(50 * shape[1], 3);
        for rows in [1, 2, 5, 24, 50] {
            assert_eq!(
                multiply(&x, rows, &[&quantised]),
                multiply(&x, rows, &[&plain]),
                "{format:?}: {rows} rows"
            );
        }
        let dy = values(7 * shape[0], 4);
        let back = |weight: &Panels| {
            let mut dx = vec![0.0; 7 * shape[1]];
            let to = MatMut::new(&mut dx, 7, shape[1]);
            project_back(Mat::new(&dy, 7, shape[0]), weight, to, Start::Zero);
            dx
        };
        assert_eq!(back(&quantised), back(&plain), "{format:?}: gradient");
    }
}

#[test]
fn with_int8_activations_a_row_has_the_same_bits_in_any_batch_and_with_any_number_of_threads() {
    let (inputs, rows) = (1024, 61);
    let x = values(rows * inputs, 5);
    // Matrices of several kinds side by side, as attention has them.
    let other = Panels::from_f32(|o, k| ((o * 7 + k) % 13) as f32 / 13.0, 21, inputs);
    for format in FORMATS {
        let bytes = random_blocks(format, 40, inputs);
        let quantised = packed(format, &bytes, [40, inputs], Activations::Int8);
        let weights = [&quantised, &other, &quantised];
        let width = 101;
        let whole = in_pool(1, || multiply(&x, rows, &weights));
        assert_eq!(whole, in_pool(3, || multiply(&x, rows, &weights)));
        for (from, count) in [(0, 1), (7, 2), (11, 3), (20, 4), (30, 9), (3, 50)] {
            let part = in_pool(2, || multiply(&x[from * inputs..], count, &weights));
            assert_eq!(
                whole[from * width..(from + count) * width],
                part,
                "{format:?}: {count} rows at {from}"
            );
        }
    }
}

#[test]
fn int8_activations_differ_by_their_rounding() {
    let (inputs, outputs) = (512, 24);
    let x = values(3 * inputs, 6);
    for format in FORMATS {
        let bytes = random_blocks(format, outputs, inputs);
        let rounded = packed(format, &bytes, [outputs, inputs], Activations::Int8);
        let (exact, weights) = widened(format, &bytes, [outputs, inputs]);
        let (got, expected) = (multiply(&x, 3, &[&rounded]), multiply(&x, 3, &[&exact]));
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let row = &weights[at % outputs * inputs..][..inputs];
            let norm = row.iter().map(|w| w * w).sum::<f32>().sqrt();
            // Each input is off by a 254th of its block's largest at most: five standard deviations.
            let tolerance = 5.0 * norm / 254.0 / 3f32.sqrt();
            assert!(
                (got - expected).abs() < tolerance,
                "{format:?} at {at}: {got} instead of {expected}"
            );
        }
    }
}

#[test]
fn vector_kernels_equal_portable_ones_bit_for_bit() {
    for level in levels() {
        at(level, equal_portable_kernels);
    }
}

fn equal_portable_kernels() {
    let (inputs, outputs) = (512, 16);
    let x = values(4 * inputs, 7);
    let rows = Int8Rows::round(Mat::new(&x, 4, inputs));
    let blocks = inputs / BLOCK_INPUTS;
    for format in FORMATS {
        let bytes = random_blocks(format, outputs, inputs);
        let tensor = StoredTensor::new("w", format, vec![outputs, inputs], &bytes[..]).unwrap();
        let layout = Layout::of(format).unwrap();
        let mut matrix = QuantisedPanels::zeros(layout, outputs, inputs, Activations::Int8);
        for output in 0..outputs {
            layout.write_row(format, tensor.row(output), output, matrix.panels_mut());
        }
        let panel = matrix.panel(0).to_vec();

        let (mut fast, mut slow) = ([0.5; LANES], [0.5; LANES]);
        matrix.dot(0, &x[..inputs], &mut fast);
        portable::dot(layout, &panel, &x[..inputs], &mut slow);
        assert_eq!(fast, slow, "{format:?}: dot");

        let row = rows.row(2, 0, blocks);
        let (mut fast, mut slow) = ([0.5; LANES], [0.5; LANES]);
        matrix.dot_int8(0, row, &mut fast);
        portable::dot_int8(layout, &panel, row, &mut slow);
        assert_eq!(fast, slow, "{format:?}: dot_int8");

        let mut unpacked = Unpacked::default();
        let tiles = matrix.unpack(0, 1, blocks - 1, &mut unpacked);
        let mut codes = vec![0; (blocks - 1) * BLOCK_INPUTS * LANES];
        let mut scales = vec![[[0.0; LANES]; 3]; blocks - 1];
        let parts = codes.chunks_mut(BLOCK_INPUTS * LANES).zip(&mut scales);
        for (block, (codes, scales)) in parts.enumerate() {
            portable::unpack(&layout.block(&panel, block + 1), codes, scales);
        }
        assert_eq!(tiles.blocks.scales, scales, "{format:?}: scales");
        let portable_blocks = Blocks {
            codes: &codes,
            stride: BLOCK_INPUTS * LANES,
            scales: &scales,
        };
        for count in 1..=4 {
            let strip: Vec<_> = (0..count).map(|row| rows.row(row, 1, blocks - 1)).collect();
            let (mut quick, mut sure) = (vec![[0.5; LANES]; count], vec![[0.5; LANES]; count]);
            tiles.tile(&strip, &mut quick);
            portable::tile(layout, portable_blocks, &strip, &mut sure);
            assert_eq!(quick, sure, "{format:?}: tile of {count}");
        }

        let (mut fast, mut slow) = (vec![0.0; 16 * LANES], vec![0.0; 16 * LANES]);
        matrix.widen(0, 48, &mut fast);
        portable::widen(&layout.block(&panel, 1), 16, &mut slow);
        assert_eq!(fast, slow, "{format:?}: widen");
    }
}

#[test]
fn extreme_codes_do_not_overflow() {
    let inputs = 256;
    let x: Vec<f32> = (0..inputs).map(|i| [127.0, -127.0][i % 2]).collect();
    for format in FORMATS {
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let mut bytes = vec![byte; format.block().1 * inputs / format.block().0];
            for block in bytes.chunks_exact_mut(format.block().1) {
                let one = half::f16::ONE.to_le_bytes();
                block[..2].copy_from_slice(&one);
                block[2..4].copy_from_slice(&one);
                if format == Format::Q6K {
                    block[208..210].copy_from_slice(&one);
                }
            }
            let int8 = packed(format, &bytes, [1, inputs], Activations::Int8);
            let (_, weights) = widened(format, &bytes, [1, inputs]);
            let exact: f64 = (x.iter().zip(&weights))
                .map(|(&x, &w)| f64::from(x) * f64::from(w))
                .sum();
            for rows in [1, 2] {
                let got = multiply(&x.repeat(rows), rows, &[&int8])[0];
                let error = (f64::from(got) - 0.25 - exact).abs();
                assert!(
                    error <= 1.0 + exact.abs() * 1e-5,
                    "{format:?} of {byte:#x}: {got}, {exact}"
                );
            }
        }
    }
}

#[test]
fn what_is_not_finite_does_not_vanish_in_eight_bits() {
    let bytes = random_blocks(Format::Q8_0, 16, 64);
    let matrix = packed(Format::Q8_0, &bytes, [16, 64], Activations::Int8);
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = vec![0.5; 64];
        x[40] = wrong;
        let y = multiply(&x, 1, &[&matrix]);
        assert!(y.iter().all(|y| !y.is_finite()), "{wrong}: {y:?}");
    }
    let tiny = multiply(&[1e-42; 64], 1, &[&matrix]);
    assert!(tiny.iter().all(|y| (y - 0.25).abs() < 1e-6), "{tiny:?}");
}
