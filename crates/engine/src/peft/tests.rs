use tempfile::TempDir;

use super::*;
use crate::weights::Dtype;

fn adapter(config: &ModelConfig, keep: impl Fn(&str) -> bool) -> PeftAdapter {
    let rank = 3;
    let value = |seed: usize, index: usize| ((seed * 31 + index * 7) % 19) as f32 / 8.0 - 1.0;
    let layers = linears(config)
        .into_iter()
        .filter(|(name, _)| keep(name))
        .enumerate()
        .map(|(seed, (name, (outputs, inputs)))| {
            let a = (0..rank * inputs).map(|i| value(seed, i)).collect();
            let b = (0..outputs * rank).map(|i| value(seed + 1, i)).collect();
            (name, LoraPair { a, b })
        })
        .collect();
    PeftAdapter {
        base_model: "tiny".to_owned(),
        rank,
        alpha: 32.0,
        layers,
    }
}

fn saved(adapter: &PeftAdapter, config: &ModelConfig) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), adapter, config).unwrap();
    folder
}

fn settings(folder: &TempDir) -> serde_json::Value {
    let text = fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn change(folder: &TempDir, option: &str, value: serde_json::Value) {
    let mut written = settings(folder);
    written[option] = value;
    fs::write(
        folder.path().join("adapter_config.json"),
        written.to_string(),
    )
    .unwrap();
}

#[test]
fn an_adapter_survives_a_round_trip() {
    for config in ModelConfig::tiny_models() {
        for keep in [
            |_: &str| true,
            |name: &str| name.contains("self_attn"),
            |name: &str| name == "lm_head",
            |name: &str| name.contains("layers.1."),
        ] {
            let adapter = adapter(&config, keep);
            let folder = saved(&adapter, &config);
            assert_eq!(load(folder.path(), &config).unwrap(), adapter);
        }
    }
}

#[test]
fn target_modules_are_short_unless_that_would_name_other_layers() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&adapter(&config, |name| name.contains("mlp")), &config);
    let expected = serde_json::json!(["down_proj", "gate_proj", "up_proj"]);
    assert_eq!(settings(&folder)["target_modules"], expected);
    assert_eq!(settings(&folder)["lora_alpha"].to_string(), "32");

    let one_layer = adapter(&config, |name| name == "model.layers.1.mlp.up_proj");
    let folder = saved(&one_layer, &config);
    let expected = serde_json::json!(["model.layers.1.mlp.up_proj"]);
    assert_eq!(settings(&folder)["target_modules"], expected);
}

#[test]
fn what_changes_the_arithmetic_is_refused_by_name() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&adapter(&config, |_| true), &config);
    let original = fs::read(folder.path().join("adapter_config.json")).unwrap();
    let cases = [
        (
            "use_dora",
            serde_json::json!(true),
            "unsupported use_dora `true`",
        ),
        (
            "bias",
            serde_json::json!("lora_only"),
            "unsupported bias `lora_only`",
        ),
        (
            "rank_pattern",
            serde_json::json!({"q_proj": 8}),
            "unsupported rank_pattern",
        ),
        (
            "modules_to_save",
            serde_json::json!(["lm_head"]),
            "unsupported modules_to_save",
        ),
        (
            "peft_type",
            serde_json::json!("IA3"),
            "unsupported peft_type `IA3`",
        ),
        (
            "target_modules",
            serde_json::json!(["q_proj", "conv"]),
            "unsupported target_modules `conv`",
        ),
        (
            "init_lora_weights",
            serde_json::json!("pissa_niter_16"),
            "unsupported init_lora_weights `\"pissa_niter_16\"`",
        ),
        (
            "arrow_config",
            serde_json::json!({"top_k": 3}),
            "unsupported arrow_config",
        ),
        (
            "an_option_of_next_year",
            serde_json::json!(true),
            "unsupported an_option_of_next_year `true`",
        ),
        ("r", serde_json::json!(0), "invalid r: "),
        (
            "r",
            serde_json::json!(1.5),
            "invalid r: found 1.5, expected a positive integer",
        ),
        ("lora_alpha", serde_json::json!(null), "invalid lora_alpha"),
        (
            "lora_alpha",
            serde_json::json!("16"),
            "invalid lora_alpha: found \"16\", expected a number",
        ),
        ("lora_alpha", serde_json::json!(1e39), "invalid lora_alpha"),
        (
            "target_modules",
            serde_json::json!([1]),
            "invalid target_modules: found [1], expected a text or a list of texts",
        ),
        (
            "layers_to_transform",
            serde_json::json!([-1]),
            "invalid layers_to_transform: found [-1]",
        ),
        (
            "use_rslora",
            serde_json::json!("yes"),
            "invalid use_rslora: found \"yes\"",
        ),
    ];
    for (option, value, expected) in cases {
        change(&folder, option, value);
        let message = load(folder.path(), &config).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{option}: {message}");
        fs::write(folder.path().join("adapter_config.json"), &original).unwrap();
    }
    load(folder.path(), &config).unwrap();
}

#[test]
fn what_does_not_change_the_arithmetic_is_taken() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&adapter(&config, |name| name.contains("up_proj")), &config);
    for (option, value) in [
        ("lora_dropout", serde_json::json!(0.1)),
        ("init_lora_weights", serde_json::json!("gaussian")),
        ("an_option_of_next_year", serde_json::json!(null)),
        // The tensors tell what is left of the target modules.
        ("exclude_modules", serde_json::json!(["down_proj"])),
        (
            "target_modules",
            serde_json::json!(["up_proj", "down_proj"]),
        ),
    ] {
        change(&folder, option, value);
        let loaded = load(folder.path(), &config);
        assert_eq!(loaded.unwrap().layers.len(), 2, "{option}");
    }
}

#[test]
fn rank_stabilised_scaling_is_folded_into_alpha() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&adapter(&config, |_| true), &config);
    change(&folder, "use_rslora", serde_json::json!(true));
    let loaded = load(folder.path(), &config).unwrap();
    assert_eq!(loaded.alpha, 32.0 * 3f32.sqrt());
}

#[test]
fn a_scale_that_is_infinite_once_it_is_adjusted_is_refused() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&adapter(&config, |_| true), &config);
    change(&folder, "lora_alpha", serde_json::json!(3e38));
    load(folder.path(), &config).unwrap();
    change(&folder, "use_rslora", serde_json::json!(true));
    let message = load(folder.path(), &config).unwrap_err().to_string();
    assert!(message.starts_with("invalid lora_alpha"), "{message}");
}

#[test]
fn tensors_of_layers_that_were_not_adapted_are_refused() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&adapter(&config, |name| name.contains("mlp")), &config);
    for (option, value) in [
        ("target_modules", serde_json::json!(["up_proj"])),
        ("layers_to_transform", serde_json::json!([1])),
    ] {
        let original = fs::read(folder.path().join("adapter_config.json")).unwrap();
        change(&folder, option, value);
        let message = load(folder.path(), &config).unwrap_err().to_string();
        let expected = "unsupported adapted layer `model.layers.0.mlp.";
        assert!(message.starts_with(expected), "{option}: {message}");
        fs::write(folder.path().join("adapter_config.json"), original).unwrap();
    }
    // Nothing is listed, or nothing is restricted.
    for (option, value) in [
        ("layers_to_transform", serde_json::json!([])),
        ("target_modules", serde_json::json!("all-linear")),
    ] {
        change(&folder, option, value);
        assert_eq!(load(folder.path(), &config).unwrap().layers.len(), 6);
    }
}

#[test]
fn a_message_is_not_filled_by_what_it_quotes() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&adapter(&config, |_| true), &config);
    change(&folder, "new", serde_json::json!("x".repeat(100_000)));
    let message = load(folder.path(), &config).unwrap_err().to_string();
    assert!(message.len() < 300, "{} bytes", message.len());
}

#[test]
fn a_rank_that_contradicts_the_tensors_names_both_shapes() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&adapter(&config, |name| name.contains("up_proj")), &config);
    change(&folder, "r", serde_json::json!(4));
    let message = load(folder.path(), &config).unwrap_err().to_string();
    let expected = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight: \
                    expected shape [4, 32], got [3, 32]";
    assert_eq!(message, expected);
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let small = ModelConfig::tiny_llama();
    let deep = ModelConfig {
        layers: 3,
        ..small.clone()
    };
    let folder = saved(&adapter(&deep, |_| true), &deep);
    let message = load(folder.path(), &small).unwrap_err().to_string();
    assert!(
        message.starts_with("unsupported adapted layer `model.layers.2."),
        "{message}"
    );

    let folder = saved(&adapter(&small, |_| true), &small);
    let message = load(folder.path(), &deep).unwrap_err().to_string();
    assert!(message.contains("model.layers.2."), "{message}");
    assert!(message.contains("is missing from"), "{message}");

    let wide = ModelConfig { ffn: 64, ..small };
    let message = load(folder.path(), &wide).unwrap_err().to_string();
    assert!(message.contains("expected shape [3, 64]"), "{message}");
}

#[test]
fn tensors_must_be_known_complete_and_finite() {
    let config = ModelConfig::tiny_llama();
    let pair = |extra: &str, value: f32| {
        let tensor = |name: &str, shape: Vec<usize>| {
            let values = vec![value; shape.iter().product()];
            TensorView::from_f32(format!("{PREFIX}{name}"), Dtype::F32, shape, &values).unwrap()
        };
        vec![
            tensor("lm_head.lora_A.weight", vec![3, 32]),
            tensor(extra, vec![96, 3]),
        ]
    };
    let cases = [
        ("lm_head.lora_B.weight", 1.0, None),
        ("lm_head.lora_B.weight", f32::NAN, Some("load adapter: ")),
        (
            "lm_head.weight",
            1.0,
            Some("tensor `base_model.model.lm_head.lora_B"),
        ),
        (
            "lm_head.lora_magnitude_vector",
            1.0,
            Some("unsupported adapter tensor"),
        ),
    ];
    let folder = saved(&adapter(&config, |name| name == "lm_head"), &config);
    for (extra, value, expected) in cases {
        let bytes = safetensors::encode(&pair(extra, value)).unwrap();
        fs::write(folder.path().join("adapter_model.safetensors"), bytes).unwrap();
        let message = load(folder.path(), &config).err().map(|e| e.to_string());
        match expected {
            None => assert_eq!(message, None),
            Some(start) => {
                let message = message.unwrap();
                assert!(message.starts_with(start), "{extra}: {message}");
            }
        }
    }
}

fn tensor_names(folder: &TempDir) -> Vec<String> {
    let path = folder.path().join("adapter_model.safetensors");
    let mut names = SafetensorsFile::open(&path).unwrap().names();
    names.sort();
    names
}

fn saved_for_tinker(adapter: &PeftAdapter, config: &ModelConfig) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    save_as(folder.path(), adapter, config, HeadName::Tinker).unwrap();
    folder
}

#[test]
fn the_head_has_the_name_that_its_reader_expects_and_is_read_under_either() {
    for config in ModelConfig::tiny_models() {
        let adapter = adapter(&config, |name| {
            name == "lm_head" || name.contains("self_attn")
        });
        let folder = saved_for_tinker(&adapter, &config);
        let names = tensor_names(&folder);
        let tinker = ["A", "B"]
            .map(|part| format!("base_model.model.model.unembed_tokens.lora_{part}.weight"));
        assert!(tinker.iter().all(|name| names.contains(name)), "{names:?}");
        assert!(!names.iter().any(|name| name.contains("lm_head")));
        // So that `peft` says what it misses.
        let targets = settings(&folder)["target_modules"].to_string();
        assert!(targets.contains("lm_head"), "{targets}");
        let attention: &[&str] = match config.features.fused_projections {
            true => &["qkv_proj", "o_proj"],
            false => &["q_proj", "k_proj", "v_proj", "o_proj"],
        };
        // The hosted service may write other targets beside the same tensors.
        for targets in [
            settings(&folder)["target_modules"].clone(),
            serde_json::json!("all-linear"),
            serde_json::json!(attention),
            serde_json::json!([attention, &["unembed_tokens"]].concat()),
        ] {
            change(&folder, "target_modules", targets.clone());
            assert_eq!(load(folder.path(), &config).unwrap(), adapter, "{targets}");
        }

        assert!(name_head(folder.path(), HeadName::Peft).unwrap());
        assert!(!name_head(folder.path(), HeadName::Peft).unwrap(), "it has");
        let peft = saved(&adapter, &config);
        assert_eq!(tensor_names(&folder), tensor_names(&peft));
        change(
            &folder,
            "target_modules",
            settings(&peft)["target_modules"].clone(),
        );
        assert_eq!(load(folder.path(), &config).unwrap(), adapter);
        assert!(name_head(folder.path(), HeadName::Tinker).unwrap());
        assert_eq!(tensor_names(&folder), names);
    }
}

#[test]
fn a_head_with_both_names_is_refused() {
    let config = ModelConfig::tiny_llama();
    let folder = saved(&adapter(&config, |name| name == "lm_head"), &config);
    let tensor = |name: &str, shape: Vec<usize>| {
        let values = vec![1.0; shape.iter().product()];
        TensorView::from_f32(format!("{PREFIX}{name}"), Dtype::F32, shape, &values).unwrap()
    };
    let both = [
        tensor("lm_head.lora_A.weight", vec![3, 32]),
        tensor("lm_head.lora_B.weight", vec![96, 3]),
        tensor("model.unembed_tokens.lora_A.weight", vec![3, 32]),
    ];
    let bytes = safetensors::encode(&both).unwrap();
    fs::write(folder.path().join("adapter_model.safetensors"), bytes).unwrap();
    let error = load(folder.path(), &config).unwrap_err().to_string();
    assert!(error.contains("one adapter of the head"), "{error}");
    let error = name_head(folder.path(), HeadName::Peft).unwrap_err();
    assert!(error.to_string().contains("two tensors"), "{error}");
}
