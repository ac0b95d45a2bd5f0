//! Training states that earlier versions saved.

use std::path::Path;
use std::sync::Arc;

use tinkrs_engine::types::{AdamParams, Datum, LossFn};
use tinkrs_engine::weights::{Dtype, RandomWeights};
use tinkrs_engine::{Model, ModelConfig, Precision, Threads, TrainState, TrainingRun};

/// An adapter of rank 3 on every linear layer and the head, after four steps, with gradients.
const SAVED: &str = "tests/reference/saved-state/tiny-llama-rank-3.safetensors";

#[test]
fn a_state_saved_before_tensors_had_a_table_loads_and_is_written_byte_for_byte() {
    let source = RandomWeights::new(ModelConfig::tiny_llama(), 3, Dtype::F32).unwrap();
    let threads = Threads::new(2).unwrap();
    let model = Arc::new(Model::load(&source, Precision::Stored, &threads).unwrap());
    let saved = Path::new(env!("CARGO_MANIFEST_DIR")).join(SAVED);
    let state = TrainState::read(&saved).unwrap();
    let mut run = TrainingRun::from_state(model, &state).unwrap();
    assert_eq!(run.steps(), 4);
    assert_eq!(run.to_peft("tiny").unwrap().layers.len(), 2 * 7 + 1);

    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("state.safetensors");
    run.state().write(&written).unwrap();
    assert!(
        std::fs::read(&written).unwrap() == std::fs::read(&saved).unwrap(),
        "the file changed"
    );

    let datum = Datum::from_prompt_completion(&[1, 5], &[9, 2]).unwrap();
    run.forward_backward(&[datum], &LossFn::CrossEntropy)
        .unwrap();
    run.optim_step(AdamParams::new(1e-3)).unwrap();
    assert_eq!(run.steps(), 5);
}
