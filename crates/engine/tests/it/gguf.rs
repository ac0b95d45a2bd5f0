//! GGUF files against the Hugging Face folders that they were made from.

use proptest::prelude::*;
use tinkrs_engine::config::{Rope, RopeScaling};
use tinkrs_engine::weights::{Dtype, GgufFile, HuggingFaceFolder, WeightSource, tensor_shapes};
use tinkrs_engine::{Model, ModelConfig, Precision, Threads};

use crate::reference::{self, largest_difference};

const MODELS: [&str; 10] = [
    "tiny-llama",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-phi3",
    "tiny-gemma2",
    "tiny-gemma3",
    "tiny-qwen3-moe",
    "tiny-gpt-oss",
    "tiny-qwen35",
    "tiny-qwen35-moe",
];

fn open(model: &str) -> (GgufFile, HuggingFaceFolder) {
    let gguf = GgufFile::open(reference::path("gguf").join(format!("{model}.gguf"))).unwrap();
    (
        gguf,
        HuggingFaceFolder::open(reference::path(model)).unwrap(),
    )
}

#[test]
fn metadata_give_the_same_configuration() {
    for model in MODELS {
        let (gguf, folder) = open(model);
        let mut expected = folder.config().clone();
        // The files of these have f32.
        if let RopeScaling::Yarn {
            attention_factor, ..
        } = &mut expected.rope.scaling
        {
            *attention_factor = 0.1 * 8f64.ln() + 1.0;
        }
        // Files of Gemma do not say: it is the head size, but for the largest models. And their numbers are f32.
        let scalar = &mut expected.features.query_scalar;
        *scalar = scalar.map(|_| 8.0);
        if let RopeScaling::Divided {
            attention_factor, ..
        } = &mut expected.rope.scaling
        {
            *attention_factor = (*attention_factor as f32).to_string().parse().unwrap();
        }
        assert_eq!(gguf.config(), &expected, "{model}");
    }
}

#[test]
fn the_scaling_of_llama_3_is_told_from_its_factors() {
    let gguf = GgufFile::open(reference::path("gguf/tiny-llama3.gguf")).unwrap();
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    };
    let rope = Rope {
        scaling,
        ..Rope::plain(500_000.0)
    };
    let expected = ModelConfig {
        rope,
        ..ModelConfig::tiny_llama3()
    };
    assert_eq!(gguf.config(), &expected);
}

#[test]
fn tensors_differ_by_no_more_than_their_rounding() {
    for model in MODELS {
        let (gguf, folder) = open(model);
        for (name, shape) in tensor_shapes(folder.config()) {
            let stored = gguf.tensor(&name).unwrap().expect_shape(&shape).unwrap();
            let original = folder.tensor(&name).unwrap().to_f32();
            let largest = original.iter().fold(0f32, |most, x| most.max(x.abs()));
            let rounding = match (stored.dtype(), shape.len()) {
                (Dtype::F16, _) => largest / 2048.0,
                // MXFP4: half of the largest step, which is a third of the block's largest number.
                _ if model.contains("gpt-oss") && name.contains("experts") => largest / 3.0,
                // These norms have one more in the file, and rates are computed.
                (Dtype::F32, 1) if model.contains("gemma") || model.contains("qwen35") => 2.5e-7,
                (Dtype::F32, 1) => 0.0,
                // Q8_0: half of one 127th of the block's largest number, plus its f16 scale.
                _ => largest / 127.0 * 0.56,
            };
            let difference = largest_difference(&stored.to_f32(), &original);
            assert!(
                difference <= rounding,
                "{model}: {name} differs by {difference}, more than {rounding}"
            );
        }
    }
}

#[test]
fn experts_in_mxfp4_are_the_same_in_folders_and_gguf_files() {
    let gguf = GgufFile::open(reference::path("gguf/tiny-gpt-oss.gguf")).unwrap();
    let folder = HuggingFaceFolder::open(reference::path("tiny-gpt-oss-mxfp4")).unwrap();
    let mut experts = 0;
    for (name, _) in tensor_shapes(folder.config()) {
        if !name.contains(".experts.") {
            continue;
        }
        experts += 1;
        let [ours, theirs] = [&folder as &dyn WeightSource, &gguf];
        assert_eq!(
            ours.tensor(&name).unwrap().to_f32(),
            theirs.tensor(&name).unwrap().to_f32(),
            "{name}"
        );
        assert_eq!(ours.format(&name).unwrap(), theirs.format(&name).unwrap());
    }
    assert_eq!(experts, 2 * 4 * 3 * 2);
    // Held in what is exactly as good.
    let threads = Threads::new(1).unwrap();
    let from_folder = Model::load(&folder, Precision::Stored, &threads).unwrap();
    assert!(
        from_folder.size_bytes()
            < Model::load(&folder, Precision::F32, &threads)
                .unwrap()
                .size_bytes()
    );
}

#[test]
fn a_file_cut_short_or_missing_is_refused() {
    let path = reference::path("gguf/tiny-llama.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.gguf");
    for length in [0, 3, 100, 4000, bytes.len() - 1] {
        std::fs::write(&cut, &bytes[..length]).unwrap();
        let message = GgufFile::open(&cut).unwrap_err().to_string();
        assert!(message.contains("cut.gguf"), "{length}: {message}");
    }
    assert!(GgufFile::open(folder.path().join("absent.gguf")).is_err());
}

#[test]
fn tensors_that_share_bytes_are_refused_by_name() {
    let mut bytes = std::fs::read(reference::path("gguf/tiny-llama.gguf")).unwrap();
    let places = |name: &str| {
        let name = [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat();
        let at = bytes
            .windows(name.len())
            .position(|window| window == name)
            .unwrap();
        // Two sizes and the format come before the offset.
        at + name.len() + 4 + 16 + 4
    };
    let (up, gate) = (
        places("blk.0.ffn_up.weight"),
        places("blk.0.ffn_gate.weight"),
    );
    bytes.copy_within(up..up + 8, gate);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lying.gguf");
    std::fs::write(&path, bytes).unwrap();
    let message = GgufFile::open(&path).unwrap_err().to_string();
    assert!(
        message.contains("lying.gguf") && message.contains("overlap"),
        "{message}"
    );
    assert!(message.contains("blk.0.ffn_up.weight"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The same of a family with more metadata, each of whose tensors is read.
    #[test]
    fn a_file_of_qwen35_with_changed_bytes_is_read_or_refused(
        changes in proptest::collection::vec((0usize..9000, any::<u8>()), 1..4)
    ) {
        let mut bytes = std::fs::read(reference::path("gguf/tiny-qwen35-moe.gguf")).unwrap();
        for (index, byte) in changes {
            bytes[index] = byte;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("changed.gguf");
        std::fs::write(&path, bytes).unwrap();
        if let Ok(gguf) = GgufFile::open(&path) {
            for (name, shape) in tensor_shapes(gguf.config()) {
                let tensor = gguf.tensor(&name).unwrap();
                prop_assert_eq!(tensor.shape(), &shape[..]);
                let stored = gguf.stored(&name).unwrap();
                prop_assert_eq!(stored.shape(), &shape[..]);
            }
        }
    }

    /// The header, with all names and sizes, fits the first few thousand bytes.
    #[test]
    fn a_file_with_changed_bytes_is_read_or_refused(
        changes in proptest::collection::vec((0usize..5000, any::<u8>()), 1..4)
    ) {
        let mut bytes = std::fs::read(reference::path("gguf/tiny-llama.gguf")).unwrap();
        for (index, byte) in changes {
            bytes[index] = byte;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("changed.gguf");
        std::fs::write(&path, bytes).unwrap();
        if let Ok(gguf) = GgufFile::open(&path) {
            for (name, shape) in tensor_shapes(gguf.config()) {
                let tensor = gguf.tensor(&name).unwrap();
                prop_assert_eq!(tensor.shape(), &shape[..]);
            }
        }
    }
}
