//! The optimizer against `torch.optim.AdamW` on the same gradients.

use std::collections::BTreeMap;

use serde::Deserialize;
use tinkrs_engine::optim::{AdamW, Trained};
use tinkrs_engine::types::AdamParams;

use crate::reference;

#[derive(Deserialize)]
struct Case {
    before: Vec<Vec<f32>>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    settings: Settings,
    gradients: Vec<Vec<f32>>,
    norm: f64,
    after: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct Settings {
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    grad_clip_norm: f64,
}

#[test]
fn three_steps_equal_those_of_torch() {
    let text = std::fs::read_to_string(reference::path("adamw.json")).unwrap();
    let cases: BTreeMap<String, Case> = serde_json::from_str(&text).unwrap();
    for (name, case) in cases {
        let mut parameters = case.before;
        let mut optimizer = AdamW::default();
        for (number, step) in case.steps.iter().enumerate() {
            let Settings {
                learning_rate,
                beta1,
                beta2,
                eps,
                weight_decay,
                grad_clip_norm,
            } = step.settings;
            let settings = AdamParams {
                learning_rate,
                beta1,
                beta2,
                eps,
                weight_decay,
                grad_clip_norm,
            };
            let mut trained: Vec<_> = parameters
                .iter_mut()
                .zip(&step.gradients)
                .zip(["a", "b"])
                .map(|((values, gradient), name)| Trained {
                    name,
                    values,
                    gradient,
                })
                .collect();
            let norms = optimizer.step(&settings, &mut trained).unwrap();

            assert!(
                (norms.gradient - step.norm).abs() <= 1e-6 * step.norm,
                "{name}, step {number}: norm {} against {}",
                norms.gradient,
                step.norm
            );
            for (ours, torch) in parameters.iter().zip(&step.after) {
                let difference = reference::largest_difference(ours, torch);
                assert!(difference <= 2e-7, "{name}, step {number}: {difference}");
            }
        }
    }
}
