//! Real models against the log-probabilities that `transformers` gave.
//!
//! The weights are not part of the repository: `TINKRS_MODELS` names a folder that holds them, as
//! CI fetches them, and without it these tests have nothing to compare.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

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
    let Some(folder) = std::env::var_os("TINKRS_MODELS").map(PathBuf::from) else {
        println!("skipped: TINKRS_MODELS does not name a folder of models");
        return;
    };
    let text = std::fs::read_to_string(reference::path("real_models.json")).unwrap();
    let models: BTreeMap<String, Vec<Text>> = serde_json::from_str(&text).unwrap();
    let present: Vec<_> = models
        .into_iter()
        .filter(|(name, _)| folder.join(name).is_dir())
        .collect();
    assert!(
        !present.is_empty(),
        "no known model in {}",
        folder.display()
    );
    for (name, texts) in present {
        let model = load(&folder.join(&name));
        let sequences: Vec<Vec<u32>> = texts
            .iter()
            .map(|text| text.tokens[..text.tokens.len() - 1].to_vec())
            .collect();
        let ours = logits(&model, None, &sequences);
        for (number, (text, ours)) in texts.iter().zip(&ours).enumerate() {
            let ours = logprobs(ours, &text.tokens[1..]);
            let difference = largest_difference(&ours, &text.logprobs);
            println!("{name}, text {number}: logprobs differ by {difference:.1e}");
            assert!(
                difference <= TOLERANCE,
                "{name}, text {number}: {difference}"
            );
        }
    }
}
