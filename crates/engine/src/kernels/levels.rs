//! Every kernel gives the same bits at every level of instructions that this CPU has.

use super::LANES;
use super::attention::{self, AttentionScratch, Block, Queries, Scoring};
use super::attention_backward::{self, AttentionBackwardScratch, Group, Target};
use super::cached::{CacheFormat, Held};
use super::check::values;
use super::gemm::{Start, outer, project, project_back};
use super::isa::testing::same_at_every_level;
use super::matrix::{Mat, MatMut};
use super::panels::Panels;
use super::quantised::Activations;
use super::{gated, norm, softmax};
use crate::config::Activation;
use crate::weights::{Dtype, TensorView};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn products_have_the_same_bits_at_every_level() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 24, 25, 61, 200] {
            let (inputs, outputs) = (300, 16 * 13 + 5);
            let x = values(rows * inputs, 1);
            let dy = values(rows * outputs, 2);
            let w = values(outputs * inputs, 3);
            let tensor = TensorView::from_f32("w", dtype, vec![outputs, inputs], &w).unwrap();
            let packed = Panels::pack(&tensor.into(), dtype.into(), Activations::F32);
            same_at_every_level(&format!("{rows} rows of {dtype:?}"), || {
                let mut y = values(rows * (outputs + outputs), 4);
                let to = MatMut::new(&mut y, rows, 2 * outputs);
                let weights = [&packed, &packed];
                project(Mat::new(&x, rows, inputs), &weights, to, Start::Keep);
                let mut dx = values(rows * inputs, 5);
                let to = MatMut::new(&mut dx, rows, inputs);
                project_back(Mat::new(&dy, rows, outputs), &packed, to, Start::Keep);
                let mut g = values(outputs * inputs, 6);
                let to = MatMut::new(&mut g, outputs, inputs);
                outer(Mat::new(&dy, rows, outputs), Mat::new(&x, rows, inputs), to);
                [bits(&y), bits(&dx), bits(&g)]
            });
        }
    }
}

#[test]
fn attention_has_the_same_bits_at_every_level_both_ways() {
    for (format, t, d, heads, window, softcap) in [
        (CacheFormat::F32, 70, 24, 2, None, None),
        (CacheFormat::F32, 100, 64, 3, Some(33), None),
        (CacheFormat::F32, 40, 16, 1, None, Some(0.7)),
        (CacheFormat::Bf16, 100, 64, 3, Some(33), None),
        (CacheFormat::Q8_0, 100, 64, 3, Some(33), None),
    ] {
        let wide = heads * d;
        let (q, k, v) = (values(t * wide, 1), values(t * d, 2), values(t * d, 3));
        let d_o = values(t * wide, 4);
        let scoring = Scoring {
            scale: 0.2,
            window,
            softcap,
        };
        same_at_every_level(&format!("attention over {t} in {format:?}"), || {
            let (padded, whole) = (d.next_multiple_of(LANES), t.next_multiple_of(LANES));
            let mut keys = Held::zeros(format, whole, d);
            let mut rows = Held::zeros(format, whole, padded);
            for j in 0..t {
                keys.store_key(j, &k[j * d..][..d]);
                rows.store_value(j, &v[j * d..][..d]);
            }
            let (mut o, mut lse) = (vec![0.0; t * wide], vec![0.0; t * heads]);
            for (head, first) in (0..heads).flat_map(|head| [(head, 0), (head, t / 2)]) {
                let queries = Queries {
                    data: &q[first * wide + head * d..],
                    stride: wide,
                    rows: t / 2,
                    d,
                    position: first,
                    position_step: 1,
                    sinks: &[],
                };
                let block = Block {
                    keys: keys.part(0..whole),
                    values: rows.part(0..whole),
                    len: t,
                };
                let mut scratch = AttentionScratch::default();
                let blocks = std::iter::once(block);
                attention::forward(queries, blocks, scoring, &mut scratch, |i, row, l| {
                    o[(first + i) * wide + head * d..][..d].copy_from_slice(row);
                    lse[(first + i) * heads + head] = l;
                });
            }
            let group = Group {
                q: Mat::new(&q, t, wide),
                k: Mat::new(&k, t, d),
                v: Mat::new(&v, t, d),
                o: Mat::new(&o, t, wide),
                d_o: Mat::new(&d_o, t, wide),
                lse: Mat::new(&lse, t, heads),
                heads,
            };
            let mut gradients = Vec::new();
            let mut scratch = AttentionBackwardScratch::default();
            attention_backward::backward(&group, scoring, &mut scratch, |target, i, row| {
                let target = match target {
                    Target::Query(head) => head,
                    Target::Key => 100,
                    Target::Value => 101,
                };
                gradients.push((target, i, bits(row)));
            });
            (bits(&o), bits(&lse), gradients)
        });
    }
}

#[test]
fn what_works_row_by_row_has_the_same_bits_at_every_level() {
    for n in [1, 15, 16, 17, 64, 211] {
        let (x, w, dy) = (values(2 * n, 1), values(n, 2), values(n, 3));
        same_at_every_level(&format!("rows of {n}"), || {
            let mut results = Vec::new();
            let mut y = vec![0.0; n];
            norm::forward(&x[..n], &w, 1e-5, &mut y);
            results.push(bits(&y));
            norm::backward(&x[..n], &w, 1e-5, &dy, &mut y);
            results.push(bits(&y));
            norm::backward_weight(&x[..n], 1e-5, &dy, &mut y);
            results.push(bits(&y));
            for activation in [
                Activation::SwiGlu,
                Activation::GeGlu,
                Activation::ClampedSwiGlu,
            ] {
                gated::forward(activation, &x, &mut y);
                results.push(bits(&y));
                let mut gradient = x.clone();
                gated::backward(activation, &mut gradient, &dy);
                results.push(bits(&gradient));
            }
            let mut row = x.clone();
            let shift = softmax::max(&row);
            let sum = softmax::exp_in_place(&mut row, 0.3, shift);
            let numbers = [shift, sum, softmax::log_sum_exp(&x), softmax::dot(&x, &x)];
            results.extend([bits(&row), bits(&numbers)]);
            softmax::cap(&mut row, 0.3, 2.0);
            softmax::score_gradient(&mut row, 0.4, 0.5);
            softmax::probabilities(&mut row, 0.3, 0.2);
            softmax::backward(&x, &mut row, 0.1, 0.3);
            results.push(bits(&row));
            results
        });
    }
}
