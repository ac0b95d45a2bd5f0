//! Exports against the engine: what is written is read again, and computes the same.

use std::collections::BTreeMap;
use std::path::Path;

use tempfile::TempDir;
use tinkrs_engine::config::{Rope, RopeScaling};
use tinkrs_engine::peft::{self, LoraPair, PeftAdapter};
use tinkrs_engine::weights::{
    Dtype, GgufFile, HuggingFaceFolder, RandomWeights, WeightSource, save_folder, tensor_shapes,
};
use tinkrs_engine::{Adapter, KvCache, Model, ModelConfig, Precision, SequenceInput, Threads};
use tinkrs_export::{Base, Export, Progress, Quantisation, What};
use tinkrs_gguf::Header;

/// Every shape, with Llama 3's scaling as real models have it.
fn shapes() -> Vec<ModelConfig> {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    };
    let scaled = ModelConfig {
        rope: Rope {
            scaling,
            ..Rope::plain(500_000.0)
        },
        tied_head: false,
        ..ModelConfig::tiny_llama()
    };
    vec![
        ModelConfig::tiny_llama(),
        scaled,
        ModelConfig::tiny_qwen2(),
        ModelConfig::tiny_qwen3(),
    ]
}

fn saved(config: &ModelConfig, dtype: Dtype) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let weights = RandomWeights::new(config.clone(), 5, dtype).unwrap();
    save_folder(&weights, folder.path()).unwrap();
    folder
}

/// An adapter on every linear layer, and on the head if wanted.
fn adapter(config: &ModelConfig, with_head: bool) -> PeftAdapter {
    let rank = 3;
    let mut state = 1u32;
    let mut number = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f64::from(state >> 8) / f64::from(1 << 24) - 0.5) as f32
    };
    let mut layers = BTreeMap::new();
    for (name, shape) in tensor_shapes(config) {
        let name = match name.strip_suffix(".weight") {
            Some("model.embed_tokens") if config.tied_head => "lm_head",
            Some("model.embed_tokens") | None => continue,
            Some(name) => name,
        };
        let [outputs, inputs] = shape[..] else {
            continue;
        };
        if name == "lm_head" && !with_head {
            continue;
        }
        let a = (0..rank * inputs).map(|_| number()).collect();
        let b = (0..rank * outputs).map(|_| 0.1 * number()).collect();
        layers.insert(name.to_owned(), LoraPair { a, b });
    }
    PeftAdapter {
        base_model: "a/b".to_owned(),
        rank,
        alpha: 6.0,
        layers,
    }
}

fn export(base: &Base, adapter: Option<&PeftAdapter>, what: What) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let export = Export::plan(base, adapter, "me/model", what).unwrap();
    export.write(folder.path(), &Progress::default()).unwrap();
    let written: u64 = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    let planned = export.size();
    assert!(
        written.abs_diff(planned) < 50_000,
        "{planned}, then {written}"
    );
    folder
}

fn log_probabilities(
    source: &dyn WeightSource,
    adapter: Option<&PeftAdapter>,
    tokens: &[u32],
) -> Vec<f64> {
    let threads = Threads::new(1).unwrap();
    let model = std::sync::Arc::new(Model::load(source, Precision::F32, &threads).unwrap());
    let adapter = adapter.map(|adapter| Adapter::from_peft(&model, adapter).unwrap());
    let mut cache = KvCache::new(&model);
    let input = SequenceInput {
        adapter: adapter.as_ref(),
        wanted: 0..tokens.len(),
        ..SequenceInput::new(&mut cache, tokens)
    };
    let hidden = model.step(&mut [input]).unwrap();
    let logits = model.logits(&hidden, 0..tokens.len());
    let rows = logits.chunks_exact(source.config().vocab);
    rows.zip(&tokens[1..])
        .map(|(row, next)| {
            let most = row.iter().fold(f32::MIN, |most, x| most.max(*x));
            let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
            f64::from(row[*next as usize] - most) - sum.ln()
        })
        .collect()
}

fn greatest_difference(left: &[f64], right: &[f64]) -> f64 {
    assert_eq!(left.len(), right.len());
    let differences = left
        .iter()
        .zip(right)
        .map(|(left, right)| (left - right).abs());
    differences.fold(0.0, f64::max)
}

fn assert_same_tensors(left: &dyn WeightSource, right: &dyn WeightSource) {
    for (name, _) in tensor_shapes(left.config()) {
        let (a, b) = (left.tensor(&name).unwrap(), right.tensor(&name).unwrap());
        assert_eq!(a.to_f32(), b.to_f32(), "{name}");
    }
}

const TOKENS: [u32; 12] = [1, 5, 90, 33, 7, 7, 12, 64, 2, 41, 80, 3];

#[test]
fn a_merged_model_computes_what_the_adapter_does() {
    for config in shapes() {
        for with_head in [false, true] {
            let folder = saved(&config, Dtype::F32);
            let base = Base::open(folder.path()).unwrap();
            let adapter = adapter(&config, with_head);
            let expected = log_probabilities(base.weights(), Some(&adapter), &TOKENS);
            let plain = log_probabilities(base.weights(), None, &TOKENS);
            assert!(
                greatest_difference(&expected, &plain) > 0.01,
                "it does something"
            );
            let merged = export(&base, Some(&adapter), What::Merged(None));
            let merged = HuggingFaceFolder::open(merged.path()).unwrap();
            assert_eq!(merged.config().tied_head, config.tied_head && !with_head);
            let found = log_probabilities(&merged, None, &TOKENS);
            let difference = greatest_difference(&expected, &found);
            assert!(
                difference < 2e-5,
                "{:?}: {difference:e}",
                config.architecture
            );

            let file = export(&base, Some(&adapter), What::Gguf(None));
            let file = GgufFile::open(file.path().join("model.gguf")).unwrap();
            assert_eq!(file.config(), merged.config());
            assert_same_tensors(&merged, &file);
        }
    }
}

#[test]
fn the_embedding_stays_when_the_head_is_trained() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&config, Dtype::Bf16);
    let base = Base::open(folder.path()).unwrap();
    let adapter = adapter(&config, true);
    let merged = export(&base, Some(&adapter), What::Merged(None));
    let merged = HuggingFaceFolder::open(merged.path()).unwrap();
    let name = "model.embed_tokens.weight";
    let bytes =
        |source: &dyn WeightSource, name: &str| source.tensor(name).unwrap().bytes().to_vec();
    assert_eq!(bytes(&merged, name), bytes(base.weights(), name));
    assert_ne!(bytes(&merged, "lm_head.weight"), bytes(&merged, name));
    assert_eq!(merged.precision(), Dtype::Bf16, "as stored");
    let text = std::fs::read_to_string(merged.path().join("config.json")).unwrap();
    assert!(text.contains("\"torch_dtype\": \"bfloat16\""), "{text}");
    let untouched = export(&base, None, What::Merged(Some(Dtype::F16)));
    let untouched = HuggingFaceFolder::open(untouched.path()).unwrap();
    assert!(untouched.config().tied_head);
    assert_eq!(untouched.precision(), Dtype::F16);
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_with_both_shapes() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&config, Dtype::F32);
    let base = Base::open(folder.path()).unwrap();
    let wide = ModelConfig { ffn: 64, ..config };
    let adapter = adapter(&wide, false);
    let export = Export::plan(&base, Some(&adapter), "m", What::Merged(None)).unwrap();
    let to = tempfile::tempdir().unwrap();
    let error = export
        .write(to.path(), &Progress::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("mlp.") && error.contains("[32, 48]") && error.contains("[32, 64]"),
        "{error}"
    );
    let none = Export::plan(&base, None, "m", What::Peft).err().unwrap();
    assert!(none.to_string().contains("no adapter"), "{none}");
}

#[test]
fn numbers_that_the_format_cannot_hold_are_refused_by_name() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&config, Dtype::F32);
    let base = Base::open(folder.path()).unwrap();
    let mut adapter = adapter(&config, false);
    adapter.alpha = 1e7;
    for what in [
        What::Merged(Some(Dtype::F16)),
        What::Gguf(Some(Quantisation::F16)),
        What::Gguf(Some(Quantisation::Q8_0)),
    ] {
        let to = tempfile::tempdir().unwrap();
        let export = Export::plan(&base, Some(&adapter), "m", what).unwrap();
        let error = export
            .write(to.path(), &Progress::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(".weight") && error.contains("inf"),
            "{what:?}: {error}"
        );
    }
}

#[test]
fn an_export_ends_where_the_caller_wants_it_to() {
    let folder = saved(&ModelConfig::tiny_llama(), Dtype::F32);
    let base = Base::open(folder.path()).unwrap();
    let adapter = adapter(base.weights().config(), false);
    for what in [
        What::Merged(None),
        What::Gguf(None),
        What::GgufAdapter(None),
    ] {
        let told = std::cell::Cell::new(0);
        let on_tensor = |_: &str, _| {
            told.set(told.get() + 1);
            match told.get() {
                3 => Err(std::io::ErrorKind::Interrupted.into()),
                _ => Ok(()),
            }
        };
        let progress = Progress {
            on_tensor: Some(&on_tensor),
        };
        let to = tempfile::tempdir().unwrap();
        let export = Export::plan(&base, Some(&adapter), "m", what).unwrap();
        assert!(export.write(to.path(), &progress).is_err(), "{what:?}");
        assert_eq!(told.get(), 3, "{what:?}");
    }
}

#[test]
fn an_adapter_for_peft_names_its_base_and_is_read_again() {
    let config = ModelConfig::tiny_qwen3();
    let folder = saved(&config, Dtype::F32);
    let base = Base::open(folder.path()).unwrap();
    let adapter = adapter(&config, true);
    let written = export(&base, Some(&adapter), What::Peft);
    let read = peft::load(written.path(), &config).unwrap();
    assert_eq!(read.base_model, "me/model");
    assert_eq!(read.layers, adapter.layers);
}

/// Returns the numbers of an f32 tensor, with its sizes.
fn tensor(file: &[u8], name: &str) -> (Vec<usize>, Vec<f32>) {
    let header = Header::parse(file).unwrap();
    let info = &header.tensors[name];
    let bytes = info.bytes((1, 4), header.data_start, file).unwrap();
    let values = bytes.as_chunks::<4>().0.iter();
    (
        info.shape.clone(),
        values.map(|&x| f32::from_le_bytes(x)).collect(),
    )
}

#[test]
fn a_gguf_adapter_is_the_difference_of_two_gguf_models() {
    for config in shapes() {
        let folder = saved(&config, Dtype::F32);
        let base = Base::open(folder.path()).unwrap();
        let adapter = adapter(&config, !config.tied_head);
        let read = |what, adapter| {
            let folder = export(&base, adapter, what);
            let entry = std::fs::read_dir(folder.path()).unwrap().next().unwrap();
            std::fs::read(entry.unwrap().path()).unwrap()
        };
        let lora = read(What::GgufAdapter(None), Some(&adapter));
        let (plain, merged) = (
            read(What::Gguf(None), None),
            read(What::Gguf(None), Some(&adapter)),
        );
        let header = Header::parse(&lora).unwrap();
        assert_eq!(header.text("general.type"), Some("adapter"));
        assert_eq!(header.text("adapter.type"), Some("lora"));
        assert_eq!(header.tensors.len(), 2 * adapter.layers.len());
        for name in header
            .tensors
            .keys()
            .filter_map(|name| name.strip_suffix(".lora_a"))
        {
            let (a_shape, a) = tensor(&lora, &format!("{name}.lora_a"));
            let (b_shape, b) = tensor(&lora, &format!("{name}.lora_b"));
            let (rank, inputs, outputs) = (a_shape[0], a_shape[1], b_shape[0]);
            let (before, after) = (tensor(&plain, name).1, tensor(&merged, name).1);
            for (place, (before, after)) in before.iter().zip(&after).enumerate() {
                let (o, i) = (place / inputs, place % inputs);
                assert!(o < outputs);
                let product: f32 = (0..rank).map(|r| b[o * rank + r] * a[r * inputs + i]).sum();
                let expected = before + adapter.alpha / rank as f32 * product;
                assert!(
                    (expected - after).abs() < 1e-5,
                    "{name}: {expected} {after}"
                );
            }
        }
    }
}

#[test]
fn what_a_gguf_adapter_cannot_say_is_refused() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&config, Dtype::F32);
    let base = Base::open(folder.path()).unwrap();
    let adapter = adapter(&config, true);
    let refused = |how| {
        let what = What::GgufAdapter(how);
        Export::plan(&base, Some(&adapter), "m", what)
            .err()
            .unwrap()
            .to_string()
    };
    assert!(refused(None).contains("export the merged model as `gguf`"));
}

fn nano() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    tinkrs_nano::write_to(folder.path()).unwrap();
    folder
}

/// Tokens of text that a model knows.
fn known_text(folder: &Path, text: &str) -> Vec<u32> {
    tinkrs_chat::Tokenizer::from_path(folder)
        .unwrap()
        .encode(text)
        .unwrap()
}

const CHAT: &str = "<|im_start|>user\nWhat color is the sky?<|im_end|>\n<|im_start|>assistant\nThe sky is blue.<|im_end|>\n\
                    <|im_start|>user\nWhat does a cow say?<|im_end|>\n<|im_start|>assistant\nA cow says moo.<|im_end|>\n";

#[test]
fn fewer_bits_change_what_the_model_says_by_little() {
    let folder = nano();
    let base = Base::open(folder.path()).unwrap();
    let tokens = known_text(folder.path(), CHAT);
    let expected = log_probabilities(base.weights(), None, &tokens);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    for (how, most) in [
        (Quantisation::F32, 0.0),
        (Quantisation::F16, 0.01),
        (Quantisation::Bf16, 0.01),
        (Quantisation::Q8_0, 0.02),
        (Quantisation::Q4KM, 0.2),
    ] {
        let file = export(&base, None, What::Gguf(Some(how)));
        let file = GgufFile::open(file.path().join("model.gguf")).unwrap();
        let found = log_probabilities(&file, None, &tokens);
        let difference = (mean(&expected) - mean(&found)).abs();
        assert!(difference <= most, "{how:?}: {difference}");
    }
}

#[test]
fn a_gguf_file_alone_is_a_base_with_tokenizer_and_template() {
    let folder = nano();
    let base = Base::open(folder.path()).unwrap();
    let written = export(&base, None, What::Ollama(None));
    let modelfile = std::fs::read_to_string(written.path().join("Modelfile")).unwrap();
    assert!(
        modelfile.starts_with("FROM ./model.gguf\nTEMPLATE \"\"\"{{ range .Messages }}"),
        "{modelfile}"
    );
    assert!(
        modelfile.contains("PARAMETER stop \"<|im_end|>\"\n"),
        "{modelfile}"
    );

    let alone = Base::open(written.path().join("model.gguf")).unwrap();
    let back = export(&alone, None, What::Merged(None));
    let read = HuggingFaceFolder::open(back.path()).unwrap();
    assert_same_tensors(base.weights(), &read);
    assert_eq!(
        known_text(back.path(), CHAT),
        known_text(folder.path(), CHAT)
    );
    let template = tinkrs_chat::format::ChatTemplate::source_of;
    assert_eq!(
        template(back.path()).unwrap(),
        template(folder.path()).unwrap()
    );
    tinkrs_chat::Renderer::from_path(back.path()).unwrap();
}

#[test]
fn families_that_gguf_files_are_not_written_for_are_refused_by_name() {
    for config in [
        ModelConfig::tiny_gemma3(),
        ModelConfig::tiny_phi3(),
        ModelConfig::tiny_mistral(),
        ModelConfig::tiny_qwen3_moe(),
    ] {
        let folder = saved(&config, Dtype::F32);
        let base = Base::open(folder.path()).unwrap();
        let refused = Export::plan(&base, None, "base", What::Gguf(None))
            .err()
            .unwrap();
        assert!(
            refused.to_string().contains(config.architecture.name()),
            "{refused}"
        );
        assert!(Export::plan(&base, None, "base", What::Merged(None)).is_ok());
    }
}
