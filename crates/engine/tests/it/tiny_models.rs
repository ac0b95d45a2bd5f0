//! The tiny models against `transformers` and `peft`.

use tinkrs_engine::ModelConfig;
use tinkrs_engine::weights::{HuggingFaceFolder, WeightSource};

use crate::reference::{self, TINY_MODELS};

#[test]
fn folders_written_by_transformers_have_the_shapes_of_the_presets() {
    for (name, preset) in TINY_MODELS.into_iter().zip(ModelConfig::tiny_models()) {
        let folder = HuggingFaceFolder::open(reference::path(name)).unwrap();
        assert_eq!(folder.config(), &preset, "{name}");
    }
}
