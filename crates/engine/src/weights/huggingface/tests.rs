use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::weights::RandomWeights;

fn saved(config: ModelConfig) -> (TempDir, RandomWeights) {
    let folder = tempfile::tempdir().unwrap();
    let weights = RandomWeights::new(config, 11, Dtype::Bf16).unwrap();
    save_folder(&weights, folder.path()).unwrap();
    (folder, weights)
}

fn refusal(folder: &TempDir) -> String {
    HuggingFaceFolder::open(folder.path())
        .unwrap_err()
        .to_string()
}

/// Splits the tensors over two files, as large models are stored.
fn shard(folder: &TempDir, weights: &RandomWeights) {
    let names = tensor_shapes(weights.config())
        .into_iter()
        .map(|(name, _)| name);
    let (first, second): (Vec<_>, Vec<_>) = names.partition(|name| name.contains("layers.0"));
    let mut map = serde_json::Map::new();
    for (file, names) in [("one.safetensors", first), ("two.safetensors", second)] {
        let tensors: Vec<_> = names
            .iter()
            .map(|name| weights.tensor(name).unwrap())
            .collect();
        fs::write(
            folder.path().join(file),
            safetensors::encode(&tensors).unwrap(),
        )
        .unwrap();
        map.extend(names.into_iter().map(|name| (name, json!(file))));
    }
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    write_index(folder, map.into());
}

fn write_index(folder: &TempDir, map: Value) {
    let index = json!({ "metadata": { "total_size": 0 }, "weight_map": map });
    let path = folder.path().join("model.safetensors.index.json");
    fs::write(path, index.to_string()).unwrap();
}

#[test]
fn a_saved_model_opens_with_the_same_tensors() {
    for config in ModelConfig::tiny_models() {
        let (folder, weights) = saved(config.clone());
        let opened = HuggingFaceFolder::open(folder.path()).unwrap();
        assert_eq!(opened.config(), &config);
        assert_eq!(opened.precision(), Dtype::Bf16);
        for (name, _) in tensor_shapes(&config) {
            let (left, right) = (
                opened.tensor(&name).unwrap(),
                weights.tensor(&name).unwrap(),
            );
            assert_eq!(left.bytes(), right.bytes(), "{name}");
        }
    }
}

#[test]
fn the_text_part_of_a_model_that_sees_images_is_found() {
    for prefix in ["language_model.model.", "model.language_model."] {
        let (folder, weights) = saved(ModelConfig::tiny_gemma3());
        let shapes = tensor_shapes(weights.config());
        let tensors = shapes.iter().map(|(name, _)| {
            let stored = name.replacen("model.", prefix, 1);
            weights.tensor(name).unwrap().renamed(&stored)
        });
        let image = TensorView::from_f32("vision_tower.x", Dtype::F32, vec![1], &[1.0]);
        let tensors: Vec<_> = tensors.chain(image).collect();
        let path = folder.path().join("model.safetensors");
        fs::write(path, safetensors::encode(&tensors).unwrap()).unwrap();
        let opened = HuggingFaceFolder::open(folder.path()).unwrap();
        for (name, _) in &shapes {
            let (found, expected) = (opened.tensor(name).unwrap(), weights.tensor(name));
            assert_eq!(found.name(), name);
            assert_eq!(found.bytes(), expected.unwrap().bytes(), "{name}");
        }
    }
}

#[test]
fn shards_read_like_one_file() {
    let (folder, weights) = saved(ModelConfig::tiny_llama3());
    shard(&folder, &weights);
    let opened = HuggingFaceFolder::open(folder.path()).unwrap();
    for (name, _) in tensor_shapes(weights.config()) {
        let (left, right) = (
            opened.tensor(&name).unwrap(),
            weights.tensor(&name).unwrap(),
        );
        assert_eq!(left.bytes(), right.bytes(), "{name}");
    }
}

#[test]
fn a_model_is_written_in_shards_one_tensor_at_a_time() {
    let config = ModelConfig::tiny_qwen3();
    let weights = RandomWeights::new(config.clone(), 11, Dtype::Bf16).unwrap();
    let outlines: Vec<_> = tensor_shapes(&config)
        .into_iter()
        .map(|(name, shape)| Outline {
            name,
            dtype: Dtype::Bf16,
            shape,
        })
        .collect();
    for (most_bytes, files) in [(usize::MAX, 1), (20_000, 4)] {
        let folder = tempfile::tempdir().unwrap();
        let mut written = 0;
        save_shards(&weights, &outlines, folder.path(), most_bytes, |_, _| {
            written += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(written, outlines.len());
        let entries = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(entries, files, "with the index");
        fs::write(folder.path().join("config.json"), config.to_hf_json()).unwrap();
        let opened = HuggingFaceFolder::open(folder.path()).unwrap();
        for (name, _) in tensor_shapes(&config) {
            let expected = weights.tensor(&name).unwrap();
            assert_eq!(opened.tensor(&name).unwrap().bytes(), expected.bytes());
        }
    }
    let wrong: Vec<_> = outlines
        .iter()
        .map(|outline| Outline {
            dtype: Dtype::F32,
            ..outline.clone()
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let refused = save_shards(&weights, &wrong, folder.path(), usize::MAX, |_, _| Ok(()));
    assert!(refused.is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let stop = |_: &str, _| Err(io::ErrorKind::Interrupted.into());
    assert!(save_shards(&weights, &outlines, folder.path(), usize::MAX, stop).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "stopped");
}

#[test]
fn an_index_may_only_name_existing_files_of_its_folder_and_their_tensors() {
    let (folder, weights) = saved(ModelConfig::tiny_llama());
    shard(&folder, &weights);
    write_index(&folder, json!({ "a": "three.safetensors" }));
    assert!(
        refusal(&folder).contains("three.safetensors"),
        "{}",
        refusal(&folder)
    );
    write_index(&folder, json!({ "a": "../one.safetensors" }));
    assert!(
        refusal(&folder).contains("not the name of a file"),
        "{}",
        refusal(&folder)
    );
    write_index(&folder, json!({ "a": "one.safetensors" }));
    assert!(
        refusal(&folder).starts_with("tensor `a` is missing"),
        "{}",
        refusal(&folder)
    );
    write_index(&folder, json!({}));
    assert!(refusal(&folder).contains("`model.embed_tokens.weight` is missing from"));
}

#[test]
fn a_wrong_shape_names_the_tensor_and_both_shapes() {
    let (folder, _weights) = saved(ModelConfig::tiny_llama());
    let config = ModelConfig {
        ffn: 64,
        ..ModelConfig::tiny_llama()
    };
    fs::write(folder.path().join("config.json"), config.to_hf_json()).unwrap();
    assert_eq!(
        refusal(&folder),
        "model.layers.0.mlp.gate_proj.weight: expected shape [64, 32], got [48, 32]"
    );
}

#[test]
fn an_untied_head_must_be_there() {
    let (folder, _weights) = saved(ModelConfig::tiny_llama());
    let config = ModelConfig {
        tied_head: false,
        ..ModelConfig::tiny_llama()
    };
    fs::write(folder.path().join("config.json"), config.to_hf_json()).unwrap();
    assert!(refusal(&folder).starts_with("tensor `lm_head.weight` is missing from"));
}

#[test]
fn missing_and_truncated_files_are_named() {
    let (folder, _weights) = saved(ModelConfig::tiny_llama());
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(refusal(&folder).contains("model.safetensors is malformed"));
    fs::remove_file(&path).unwrap();
    assert!(
        refusal(&folder).starts_with("could not open "),
        "{}",
        refusal(&folder)
    );
    fs::remove_file(folder.path().join("config.json")).unwrap();
    assert!(
        refusal(&folder).starts_with("could not read "),
        "{}",
        refusal(&folder)
    );
}

#[test]
fn end_tokens_come_from_the_generation_config() {
    let (folder, _weights) = saved(ModelConfig::tiny_llama());
    let path = folder.path().join("generation_config.json");
    fs::write(&path, r#"{"eos_token_id": [5, 6], "temperature": 0.6}"#).unwrap();
    assert_eq!(
        HuggingFaceFolder::open(folder.path()).unwrap().config().eos,
        [5, 6]
    );
    fs::write(&path, r#"{"temperature": 0.6}"#).unwrap();
    assert_eq!(
        HuggingFaceFolder::open(folder.path()).unwrap().config().eos,
        [2]
    );
    fs::write(&path, "[").unwrap();
    assert!(refusal(&folder).contains("generation_config.json is not valid JSON"));
}

#[test]
fn experts_that_share_a_tensor_are_those_of_their_own_tensors() {
    // As published folders have them: in one tensor a layer, with the model for text inside another one.
    let (folder, weights) = saved(ModelConfig::tiny_qwen35_moe());
    let experts = weights.config().features.experts.unwrap();
    let mut tensors = Vec::new();
    for (name, shape) in tensor_shapes(weights.config()) {
        let outer = match name.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => name.clone(),
        };
        let Some((layer, rest)) = name.split_once(".experts.") else {
            tensors.push(weights.tensor(&name).unwrap().renamed(&outer));
            continue;
        };
        let joined = |parts: &[&str]| -> Vec<f32> {
            let experts = 0..experts.count;
            experts
                .flat_map(|expert| {
                    let names = parts
                        .iter()
                        .map(move |part| format!("{layer}.experts.{expert}.{part}.weight"));
                    names.flat_map(|name| weights.tensor(&name).unwrap().to_f32())
                })
                .collect()
        };
        let (part, sources, factor): (_, &[&str], _) = match rest {
            "0.up_proj.weight" => ("gate_up_proj", &["gate_proj", "up_proj"], 2),
            "0.down_proj.weight" => ("down_proj", &["down_proj"], 1),
            _ => continue,
        };
        let shape = vec![experts.count, factor * shape[0], shape[1]];
        let layer = layer.replacen("model.", "model.language_model.", 1);
        let name = format!("{layer}.experts.{part}");
        tensors.push(TensorView::from_f32(name, Dtype::Bf16, shape, &joined(sources)).unwrap());
    }
    let model = folder.path().join("model.safetensors");
    fs::write(&model, safetensors::encode(&tensors).unwrap()).unwrap();

    let stacked = HuggingFaceFolder::open(folder.path()).unwrap();
    for (name, _) in tensor_shapes(weights.config()) {
        let (ours, theirs) = (
            stacked.tensor(&name).unwrap(),
            weights.tensor(&name).unwrap(),
        );
        assert_eq!(ours.shape(), theirs.shape(), "{name}");
        assert_eq!(ours.bytes(), theirs.bytes(), "{name}");
        stacked.release(&name);
        assert_eq!(
            stacked.stored(&name).unwrap().bytes(),
            theirs.bytes(),
            "{name}"
        );
    }

    // One expert too few, and no experts at all.
    let last = tensors
        .iter()
        .position(|tensor| tensor.shape().len() == 3 && tensor.shape()[1] == 48);
    let last = last.unwrap();
    let (name, dtype, shape, bytes) = tensors.remove(last).into_parts();
    let short = bytes.len() / 5 * 4;
    let few = TensorView::new(&name, dtype, vec![4, shape[1], shape[2]], &bytes[..short]).unwrap();
    tensors.push(few);
    fs::write(&model, safetensors::encode(&tensors).unwrap()).unwrap();
    let message = refusal(&folder);
    assert!(
        message.contains("experts.gate_up_proj") && message.contains("[4, 48, 32]"),
        "{message}"
    );
    tensors.pop();
    fs::write(&model, safetensors::encode(&tensors).unwrap()).unwrap();
    let message = refusal(&folder);
    assert!(
        message.contains("experts.0.gate_proj.weight` is missing"),
        "{message}"
    );
}

#[test]
fn a_tensor_of_integers_is_refused_when_the_folder_is_opened() {
    let (folder, _) = saved(ModelConfig::tiny_llama());
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let name = br#""model.layers.1.mlp.up_proj.weight":{"dtype":"BF16""#;
    let at = bytes
        .windows(name.len())
        .position(|window| window == name)
        .unwrap();
    let end = at + name.len();
    bytes[end - 5..end].copy_from_slice(b"I16\" ");
    fs::write(&path, bytes).unwrap();
    let message = refusal(&folder);
    assert!(
        message.contains("model.layers.1.mlp.up_proj.weight") && message.contains("I16"),
        "{message}"
    );
}

#[test]
fn a_tensor_under_two_names_is_refused() {
    let (folder, weights) = saved(ModelConfig::tiny_llama());
    let mut tensors: Vec<_> = tensor_shapes(weights.config())
        .iter()
        .map(|(name, _)| weights.tensor(name).unwrap())
        .collect();
    let twice = weights.tensor("model.norm.weight").unwrap();
    tensors.push(twice.renamed("model.language_model.norm.weight"));
    let model = folder.path().join("model.safetensors");
    fs::write(model, safetensors::encode(&tensors).unwrap()).unwrap();
    let message = refusal(&folder);
    assert!(
        message.contains("`model.norm.weight` under two names"),
        "{message}"
    );
}

#[test]
fn headers_with_changed_bytes_are_read_or_refused() {
    let (folder, _) = saved(ModelConfig::tiny_llama());
    let path = folder.path().join("model.safetensors");
    let good = fs::read(&path).unwrap();
    let header = usize::try_from(u64::from_le_bytes(good[..8].try_into().unwrap())).unwrap();
    let mut refused = 0;
    for seed in 0..400u64 {
        let mut bytes = good.clone();
        let mut random = crate::rng::SplitMix64::new(seed);
        for _ in 0..1 + seed % 3 {
            let at = (random.unit() * (8 + header) as f32) as usize;
            // Digits stay digits often enough to lie rather than to be no JSON.
            bytes[at] = match bytes[at] {
                b'0'..=b'9' => b'0' + (random.unit() * 10.0) as u8 % 10,
                _ => (random.unit() * 255.0) as u8,
            };
        }
        fs::write(&path, &bytes).unwrap();
        match HuggingFaceFolder::open(folder.path()) {
            Err(_) => refused += 1,
            Ok(opened) => {
                for (name, shape) in tensor_shapes(opened.config()) {
                    assert_eq!(opened.tensor(&name).unwrap().shape(), shape, "seed {seed}");
                }
            }
        }
    }
    assert!(refused > 200, "{refused} of 400");
}
