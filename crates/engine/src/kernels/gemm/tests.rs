//! The products against plain sums, and bit equality across tiles and threads.

use super::*;
use crate::kernels::check::{in_pool, values};
use crate::kernels::quantised::Activations;
use crate::weights::{Dtype, TensorView};

fn panels(values: &[f32], outputs: usize, inputs: usize, dtype: Dtype) -> (Panels, Vec<f32>) {
    let tensor = TensorView::from_f32("w", dtype, vec![outputs, inputs], values).unwrap();
    let widened = tensor.to_f32();
    let packed = Panels::pack(&tensor.into(), dtype.into(), Activations::F32);
    (packed, widened)
}

fn close(got: &[f32], expected: impl Fn(usize, usize) -> f64, cols: usize, what: &str) {
    for (i, &got) in got.iter().enumerate() {
        let expected = expected(i / cols, i % cols);
        assert!(
            (f64::from(got) - expected).abs() < 2e-4,
            "{what} at {i}: {got} instead of {expected}"
        );
    }
}

#[test]
fn all_three_products_agree_with_plain_sums_for_odd_shapes() {
    for (rows, inputs, outputs) in [
        (1, 19, 70),
        (7, 300, 33),
        (25, 16, 16),
        (61, 530, 48),
        (400, 40, 50),
    ] {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let case = format!("{rows}x{inputs}x{outputs} {dtype:?}");
            let x = values(rows * inputs, 1);
            let dy = values(rows * outputs, 2);
            let (packed, w) = panels(&values(outputs * inputs, 3), outputs, inputs, dtype);
            let f = |x: &[f32], i: usize| f64::from(x[i]);

            let mut y = vec![0.5; rows * outputs];
            project(
                Mat::new(&x, rows, inputs),
                &[&packed],
                MatMut::new(&mut y, rows, outputs),
                Start::Keep,
            );
            let expected = |m: usize, o: usize| {
                0.5 + (0..inputs)
                    .map(|i| f(&x, m * inputs + i) * f(&w, o * inputs + i))
                    .sum::<f64>()
            };
            close(&y, expected, outputs, &format!("project {case}"));

            let mut dx = vec![f32::NAN; rows * inputs];
            project_back(
                Mat::new(&dy, rows, outputs),
                &packed,
                MatMut::new(&mut dx, rows, inputs),
                Start::Zero,
            );
            let expected = |m: usize, i: usize| {
                (0..outputs)
                    .map(|o| f(&dy, m * outputs + o) * f(&w, o * inputs + i))
                    .sum::<f64>()
            };
            close(&dx, expected, inputs, &format!("project_back {case}"));

            let mut g = vec![1.0; outputs * inputs];
            outer(
                Mat::new(&dy, rows, outputs),
                Mat::new(&x, rows, inputs),
                MatMut::new(&mut g, outputs, inputs),
            );
            let expected = |o: usize, i: usize| {
                1.0 + (0..rows)
                    .map(|m| f(&dy, m * outputs + o) * f(&x, m * inputs + i))
                    .sum::<f64>()
            };
            close(&g, expected, inputs, &format!("outer {case}"));
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_batch_and_with_any_number_of_threads() {
    let (rows, inputs, outputs) = (500, 700, 160);
    let x = values(rows * inputs, 4);
    let (packed, _) = panels(&values(outputs * inputs, 5), outputs, inputs, Dtype::Bf16);
    let (other, _) = panels(&values(48 * inputs, 6), 48, inputs, Dtype::Bf16);
    let run = |from: usize, rows: usize| {
        let mut y = vec![0.0; rows * (outputs + 48)];
        let x = Mat::new(&x[from * inputs..], rows, inputs);
        project(
            x,
            &[&packed, &other],
            MatMut::new(&mut y, rows, outputs + 48),
            Start::Zero,
        );
        y
    };
    let whole = in_pool(1, || run(0, rows));
    for threads in [2, 3] {
        assert_eq!(
            whole,
            in_pool(threads, || run(0, rows)),
            "{threads} threads"
        );
    }
    let width = outputs + 48;
    for (from, count) in [(0, 1), (17, 2), (33, 3), (40, 13), (100, 24), (123, 200)] {
        assert_eq!(
            whole[from * width..(from + count) * width],
            in_pool(2, || run(from, count)),
            "{count} rows at {from}"
        );
    }
}

#[test]
fn a_gradient_continues_where_the_previous_call_stopped() {
    let (rows, left, right) = (301, 18, 90);
    let (p, q) = (values(rows * left, 7), values(rows * right, 8));
    let run = |parts: &[(usize, usize)]| {
        let mut g = vec![0.0; left * right];
        for &(from, to) in parts {
            let p = Mat::new(&p[from * left..], to - from, left);
            outer(
                p,
                Mat::new(&q[from * right..], to - from, right),
                MatMut::new(&mut g, left, right),
            );
        }
        g
    };
    let once = in_pool(1, || run(&[(0, rows)]));
    assert_eq!(once, in_pool(2, || run(&[(0, 100), (100, rows)])));
    assert_eq!(once, in_pool(3, || run(&[(0, 7), (7, 263), (263, rows)])));
}

#[test]
fn sums_over_a_vocabulary_keep_their_digits() {
    let (rows, inputs, outputs) = (7, 19, 50_000);
    let positive = |count, seed| -> Vec<f32> {
        let values = values(count, seed).into_iter();
        values.map(f32::abs).collect()
    };
    let dy = positive(rows * outputs, 9);
    let (packed, w) = panels(&positive(outputs * inputs, 10), outputs, inputs, Dtype::F32);
    for start in [Start::Zero, Start::Keep] {
        let mut dx = vec![1.0; rows * inputs];
        project_back(
            Mat::new(&dy, rows, outputs),
            &packed,
            MatMut::new(&mut dx, rows, inputs),
            start,
        );
        for (at, &got) in dx.iter().enumerate() {
            let (m, i) = (at / inputs, at % inputs);
            let products =
                (0..outputs).map(|o| f64::from(dy[m * outputs + o]) * f64::from(w[o * inputs + i]));
            let held = if start == Start::Keep { 1.0 } else { 0.0 };
            let expected = held + products.sum::<f64>();
            let error = (f64::from(got) - expected).abs() / expected;
            assert!(error < 1e-6, "{got} instead of {expected}, off by {error}");
        }
    }
}
