//! The tiny models against `transformers` and `peft`.

use tinkrs_engine::weights::{HuggingFaceFolder, WeightSource};
use tinkrs_engine::{ModelConfig, peft};

use crate::reference::{self, TINY_MODELS};

#[test]
fn folders_written_by_transformers_have_the_shapes_of_the_presets() {
    for (name, preset) in TINY_MODELS.into_iter().zip(ModelConfig::tiny_models()) {
        let folder = HuggingFaceFolder::open(reference::path(name)).unwrap();
        assert_eq!(folder.config(), &preset, "{name}");
    }
}

#[test]
fn adapters_written_by_peft_load() {
    for (name, config) in TINY_MODELS.into_iter().zip(ModelConfig::tiny_models()) {
        let adapter = peft::load(&reference::path(name).join("adapter"), &config).unwrap();
        assert_eq!((adapter.rank, adapter.alpha), (4, 32.0), "{name}");
        let with_head = ["tiny-llama3", "tiny-qwen3", "tiny-phi3", "tiny-gemma2"].contains(&name);
        let linears = match config.features.experts {
            _ if config.features.fused_projections => 4,
            None => 7,
            // The shared expert has its score, too.
            Some(experts) => 4 + 3 * experts.count + 4 * usize::from(experts.shared.is_some()),
        };
        // A layer with a state has five linear layers instead of attention's four.
        let states = usize::from(config.features.delta.is_some());
        let expected = config.layers * linears + states + usize::from(with_head);
        assert_eq!(adapter.layers.len(), expected, "{name}");
        assert_eq!(adapter.layers.contains_key("lm_head"), with_head, "{name}");
    }
}
