use safetensors::SafeTensors;

use super::*;

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (chunks, _) = bytes.as_chunks::<4>();
    chunks
        .iter()
        .map(|&chunk| f32::from_le_bytes(chunk))
        .collect()
}

/// Numbers that look like weights: a bell, with a few far out.
fn weights() -> Vec<f32> {
    let bytes = reference();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    floats(reference.tensor("values").unwrap().data())
}

fn reference() -> Vec<u8> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/reference/gguf/written.safetensors"
    );
    std::fs::read(path).unwrap()
}

fn mean_square_error(values: &[f32], format: Format) -> f64 {
    let blocks = quantise(values, format).unwrap();
    let read = floats(&format.dequantise_to_bytes(&blocks));
    let squares = values
        .iter()
        .zip(&read)
        .map(|(x, y)| f64::from(x - y).powi(2));
    squares.sum::<f64>() / values.len() as f64
}

#[test]
fn blocks_with_one_right_answer_are_those_of_the_gguf_package() {
    let bytes = reference();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    for (name, format) in [
        ("q8_0", Format::Q8_0),
        ("q5_0", Format::Q5_0),
        ("bf16", Format::Bf16),
        ("f16", Format::F16),
    ] {
        let ours = quantise(&weights(), format).unwrap();
        assert!(
            ours == reference.tensor(name).unwrap().data(),
            "{name} differs"
        );
    }
}

#[test]
fn more_bits_are_nearer() {
    let values = weights();
    let variance = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / values.len() as f64;
    // The noise of rounding, relative to the numbers: for each bit less, four times as much.
    for (format, most) in [
        (Format::Q8_0, 6e-5),
        (Format::Q6K, 6e-4),
        (Format::Q5_0, 4e-3),
        (Format::Q4K, 8e-3),
    ] {
        let noise = mean_square_error(&values, format) / variance;
        assert!(noise < most && noise > most / 10.0, "{format:?}: {noise:e}");
    }
}

#[test]
fn what_a_format_can_say_survives() {
    // Multiples of a scale that every part shares; each part has the whole range.
    let six_bits: Vec<f32> = (0..256)
        .map(|i| 0.5 * ((i * 17 % 64) as f32 - 32.0))
        .collect();
    let with_ends: Vec<f32> = (six_bits.iter().enumerate())
        .map(|(i, x)| if i % 16 == 0 { -16.0 } else { *x })
        .collect();
    let four_bits: Vec<f32> = (0..256).map(|i| (i % 16) as f32 - 8.0).collect();
    for (format, values, most) in [
        (Format::Q6K, &with_ends, 1e-5),
        (Format::Q4K, &four_bits, 1e-4),
    ] {
        let error = mean_square_error(values, format);
        assert!(error < most, "{format:?}: {error:e}");
    }
}

#[test]
fn numbers_without_a_scale_do_no_harm() {
    for format in [Format::Q8_0, Format::Q5_0, Format::Q4K, Format::Q6K] {
        assert_eq!(mean_square_error(&[0.0; 256], format), 0.0, "{format:?}");
        for value in [1.0, -1.0, 0.03, 1e4] {
            let error = mean_square_error(&[value; 256], format).sqrt();
            assert!(
                error < 0.02 * f64::from(value.abs()),
                "{format:?} of {value}: {error:e}"
            );
        }
        assert_eq!(quantise(&[0.0; 31], format), None, "no whole block");
    }
}

#[test]
fn numbers_that_a_format_cannot_hold_are_found() {
    for format in [Format::F16, Format::Q8_0, Format::Q4K] {
        assert_eq!(unfit(&[1.0, 65504.0], format), None, "{format:?}");
        let found = unfit(&[1.0, -1e5], format);
        assert_eq!(found, Some((1, f32::NEG_INFINITY)), "{format:?}");
    }
    assert_eq!(unfit(&[1e38], Format::Bf16), None);
    assert_eq!(unfit(&[f32::MAX], Format::F32), None);
    assert_eq!(unfit(&[f32::MAX], Format::Bf16), Some((0, f32::INFINITY)));
    let found = unfit(&[0.0, f32::NAN], Format::F32).unwrap();
    assert!(found.0 == 1 && found.1.is_nan());
}
