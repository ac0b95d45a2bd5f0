//! Real models against the log-probabilities that `transformers` gave.
//!
//! The weights are not part of the repository: `TINKRS_MODELS` names a folder that holds them, as
//! CI fetches them, and without it these tests have nothing to compare.

use std::collections::BTreeMap;

use serde::Deserialize;
use tinkrs_engine::Model;

use crate::forward::{load, logits, logprobs};
use crate::reference::{self, largest_difference};

const TOLERANCE: f32 = 1e-3;

#[derive(Deserialize)]
struct Text {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
}

#[test]
fn logprobs_of_real_texts_equal_those_of_transformers() {
    let Some(folder) = tinkrs_testkit::skip::models("log-probabilities of real models") else {
        return;
    };
    let present: Vec<_> = references()
        .into_keys()
        .filter(|name| folder.join(name).is_dir())
        .collect();
    assert!(
        !present.is_empty(),
        "no known model in {}",
        folder.display()
    );
    for name in present {
        let difference = largest_logprob_difference(&load(&folder.join(&name)), &name);
        println!("{name}: logprobs differ by {difference:.1e}");
        assert!(difference <= TOLERANCE, "{name}: {difference}");
    }
}

fn references() -> BTreeMap<String, Vec<Text>> {
    let text = std::fs::read_to_string(reference::path("real_models.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Compares the log-probabilities of all texts of a model, computed in one batch.
pub(crate) fn largest_logprob_difference(model: &Model, name: &str) -> f32 {
    let texts = &references()[name];
    let sequences: Vec<Vec<u32>> = texts
        .iter()
        .map(|text| text.tokens[..text.tokens.len() - 1].to_vec())
        .collect();
    let ours = logits(model, None, &sequences);
    let differences = texts
        .iter()
        .zip(&ours)
        .map(|(text, ours)| largest_difference(&logprobs(ours, &text.tokens[1..]), &text.logprobs));
    differences.fold(0.0, f32::max)
}
