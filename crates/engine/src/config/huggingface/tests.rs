use serde_json::json;

use super::*;
use crate::config::{Rope, RopeScaling};

fn llama() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 128, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": true,
        "bos_token_id": 1, "eos_token_id": [2, 3], "torch_dtype": "float32"
    })
}

fn with(changes: Value) -> Result<ModelConfig, Error> {
    let mut config = llama();
    let members = config.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        members.insert(key.clone(), value.clone());
    }
    ModelConfig::from_hf_json(&config.to_string())
}

#[test]
fn a_plain_llama_is_read() {
    let config = with(json!({})).unwrap();
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!(
        (config.head_dim, config.kv_width(), config.query_width()),
        (16, 32, 64)
    );
    assert_eq!(
        (config.bos, config.eos.as_slice()),
        (Some(1), [2, 3].as_slice())
    );
    assert!(config.tied_head && !config.qkv_bias && !config.qk_norm);
}

#[test]
fn families_differ_in_biases_norms_and_head_size() {
    let qwen2 = with(json!({
        "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": false
    }))
    .unwrap();
    assert!(qwen2.qkv_bias && !qwen2.attention_output_bias && !qwen2.qk_norm);
    let qwen3 = with(json!({ "model_type": "qwen3", "attention_bias": false })).unwrap();
    assert!(qwen3.qk_norm && !qwen3.qkv_bias);
    assert_eq!(qwen3.head_dim, 128);
    let biased = with(json!({ "attention_bias": true })).unwrap();
    assert!(biased.qkv_bias && biased.attention_output_bias);
}

#[test]
fn both_places_of_the_rotary_settings_are_read() {
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64
    });
    let mut nested = llama3.clone();
    nested["rope_theta"] = json!(500000.0);
    let old = with(json!({ "rope_theta": 500000.0, "rope_scaling": llama3 })).unwrap();
    let new = with(json!({ "rope_theta": null, "rope_parameters": nested })).unwrap();
    assert_eq!(old.rope, new.rope);
    assert_eq!(old.rope.theta, 500_000.0);
    assert!(matches!(
        old.rope.scaling,
        RopeScaling::Llama3 {
            original_context: 64,
            ..
        }
    ));
}

#[test]
fn what_the_engine_lacks_is_refused_by_name() {
    let cases = [
        (
            json!({ "model_type": "mamba" }),
            "unsupported model_type `mamba`",
        ),
        (
            json!({ "model_type": "qwen3_moe" }),
            "invalid num_experts: it is missing",
        ),
        (
            json!({ "hidden_act": "gelu" }),
            "unsupported hidden_act `gelu`",
        ),
        (json!({ "mlp_bias": true }), "unsupported mlp_bias `true`"),
        (
            json!({ "num_local_experts": 8 }),
            "unsupported num_local_experts `8`",
        ),
        (
            json!({ "sliding_window": 128 }),
            "unsupported sliding_window `128`",
        ),
        (
            json!({ "layer_types": ["full_attention", "sliding_attention"] }),
            "unsupported layer_types `sliding_attention`",
        ),
        (
            json!({ "rope_scaling": { "type": "yarn" } }),
            "invalid rope_scaling.factor: it is missing",
        ),
        (
            json!({ "rope_scaling": { "rope_type": "dynamic", "factor": 2.0 } }),
            "unsupported rope_type `dynamic`",
        ),
        (
            json!({ "partial_rotary_factor": 1.5 }),
            "unsupported partial_rotary_factor `1.5`",
        ),
        (
            json!({ "quantization_config": { "bits": 4 } }),
            "unsupported quantization_config",
        ),
        (
            json!({ "hidden_size": null }),
            "invalid hidden_size: it is missing",
        ),
        (
            json!({ "num_attention_heads": 3 }),
            "invalid num_attention_heads: 3 does not divide",
        ),
        (
            json!({ "num_attention_heads": 0 }),
            "invalid num_attention_heads: 0 does not",
        ),
    ];
    for (changes, expected) in cases {
        let message = with(changes.clone()).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{changes}: {message}");
    }
}

#[test]
fn a_written_configuration_reads_the_same() {
    let biased = ModelConfig {
        qkv_bias: true,
        attention_output_bias: true,
        bos: None,
        ..ModelConfig::tiny_llama()
    };
    for config in ModelConfig::tiny_models().into_iter().chain([biased]) {
        assert_eq!(
            ModelConfig::from_hf_json(&config.to_hf_json()).unwrap(),
            config
        );
    }
}

#[test]
fn text_that_is_not_json_is_refused() {
    let error = ModelConfig::from_hf_json("{\"hidden_size\": ").unwrap_err();
    assert_eq!(
        error.to_string(),
        "config.json is not valid JSON of the expected form"
    );
}

#[test]
fn real_files_of_newer_families_are_read() {
    // As on the Hub, without what changes nothing.
    let mistral = ModelConfig::from_hf_json(
        r#"{"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000}"#,
    )
    .unwrap();
    assert_eq!(mistral.layer_kind(31), LayerKind::Sliding);
    assert_eq!(mistral.features.window, Some(4096));

    let phi = ModelConfig::from_hf_json(
        r#"{"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "bos_token_id": 199999, "embd_pdrop": 0.0,
        "eos_token_id": 199999, "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "model_type": "phi3", "num_attention_heads": 3, "num_hidden_layers": 32,
        "num_key_value_heads": 1, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
        "rms_norm_eps": 1e-05, "rope_scaling": {"long_factor": [1, 2, 3, 4, 5, 6],
        "short_factor": [1.0, 1.0, 1.0, 1.0, 1.0, 1.1], "type": "longrope"}, "rope_theta": 10000.0,
        "sliding_window": 262144, "tie_word_embeddings": true, "vocab_size": 200064}"#,
    )
    .unwrap();
    assert_eq!((phi.rope.dimensions, phi.max_context), (Some(12), 4096));
    assert!((phi.rope.attention_factor() - (1.0f64 + 5.0 / 12.0).sqrt()).abs() < 1e-12);

    // The text part of Gemma 3 4B leaves out what is as usual.
    let gemma = ModelConfig::from_hf_json(
        r#"{"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "model_type": "gemma3",
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
        "vision_config": {"hidden_size": 1152}}"#,
    )
    .unwrap();
    assert_eq!(gemma.architecture, Architecture::Gemma3);
    assert_eq!((gemma.heads, gemma.kv_heads, gemma.head_dim), (8, 4, 256));
    assert_eq!((gemma.vocab, gemma.tied_head), (262_208, true));
    assert_eq!(gemma.layer_kind(5), LayerKind::Full);
    assert_eq!(gemma.layer_kind(33), LayerKind::Sliding);
    assert_eq!(gemma.rope.scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(gemma.features.local_rope, Some(Rope::plain(10_000.0)));

    // The text part of a Qwen3.5, shortened to four layers.
    let qwen = ModelConfig::from_hf_json(
        r#"{"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config":
        {"attention_bias": false, "attn_output_gate": true, "eos_token_id": 248044, "full_attention_interval": 4,
        "head_dim": 256, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3584,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 16, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
        "model_type": "qwen3_5_text", "num_attention_heads": 8, "num_hidden_layers": 4, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06, "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"}, "tie_word_embeddings": true,
        "vocab_size": 248320}, "vision_config": {"depth": 12}}"#,
    )
    .unwrap();
    assert_eq!(qwen.layer_kind(2), LayerKind::Delta);
    assert_eq!(qwen.layer_kind(3), LayerKind::Full);
    assert_eq!(qwen.rope.dimensions, Some(64));
    assert!(qwen.features.output_gate && qwen.features.norms_add_one);

    // The text part of Qwen3.5-35B-A3B, shortened to four layers.
    let qwen = ModelConfig::from_hf_json(
        r#"{"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "text_config":
        {"attention_bias": false, "attn_output_gate": true, "eos_token_id": 248044, "full_attention_interval": 4,
        "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
        "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 512, "mtp_num_hidden_layers": 1,
        "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 4,
        "num_key_value_heads": 2, "output_router_logits": false, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001,
        "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
        "rope_theta": 10000000, "rope_type": "default"}, "shared_expert_intermediate_size": 512,
        "vocab_size": 248320}, "tie_word_embeddings": false, "vision_config": {"depth": 27}}"#,
    )
    .unwrap();
    assert_eq!(qwen.architecture, Architecture::Qwen35Moe);
    let found = qwen.features.experts.unwrap();
    assert_eq!((found.count, found.per_token, found.ffn), (256, 8, 512));
    assert_eq!((found.shared, found.normalised), (Some(512), true));
    assert_eq!((qwen.layer_kind(2), qwen.ffn), (LayerKind::Delta, 512));

    // gpt-oss-20b, without its list of 24 kinds of layers.
    let oss = ModelConfig::from_hf_json(
        r#"{"architectures": ["GptOssForCausalLM"], "attention_bias": true, "eos_token_id": 200002,
        "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
        "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
        "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
        "num_local_experts": 32, "quantization_config": {"modules_to_not_convert": ["lm_head"],
        "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0,
        "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
        "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
        "vocab_size": 201088}"#,
    )
    .unwrap();
    assert_eq!(oss.layer_kind(0), LayerKind::Sliding);
    assert_eq!(oss.layer_kind(1), LayerKind::Full);
    assert!(oss.features.sinks && oss.qkv_bias && oss.attention_output_bias);
    assert!((oss.rope.attention_factor() - 1.3466).abs() < 1e-3);

    let experts = ModelConfig::from_hf_json(
        r#"{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
        "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
        "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
        "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936}"#,
    )
    .unwrap();
    let found = experts.features.experts.unwrap();
    assert_eq!((found.count, found.per_token, found.ffn), (128, 8, 768));
}

#[test]
fn what_a_newer_family_lacks_is_refused_by_name() {
    let cases = [
        (
            json!({ "model_type": "gemma2", "hidden_activation": "relu" }),
            "unsupported hidden_activation `relu`",
        ),
        (
            json!({ "model_type": "gemma3_text", "use_bidirectional_attention": true }),
            "unsupported use_bidirectional_attention",
        ),
        (
            json!({ "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 5,
                    "moe_intermediate_size": 8 }),
            "invalid num_experts_per_tok: 5 is not in 1..=4",
        ),
        (
            json!({ "model_type": "qwen3_moe", "num_experts": 1_000_000, "num_experts_per_tok": 5,
                    "moe_intermediate_size": 8 }),
            "invalid num_experts: 1000000 is not in",
        ),
        (
            json!({ "model_type": "gpt_oss", "swiglu_limit": 5.0 }),
            "unsupported swiglu_limit `5`",
        ),
        (
            json!({ "model_type": "gpt_oss", "quantization_config": { "quant_method": "fp8" } }),
            "unsupported quantization_config",
        ),
        (
            json!({ "quantization_config": { "quant_method": "mxfp4" } }),
            "unsupported quantization_config",
        ),
        (
            json!({ "model_type": "qwen3_5_moe_text", "num_experts": 4, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 8, "layer_types": ["full_attention", "full_attention"] }),
            "invalid shared_expert_intermediate_size: it is missing",
        ),
        (
            json!({ "model_type": "qwen3_5_moe_text", "num_experts": 4, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 8, "layer_types": ["full_attention", "full_attention"],
                    "shared_expert_intermediate_size": 0 }),
            "invalid shared_expert_intermediate_size: 0 is not in",
        ),
        (
            json!({ "model_type": "qwen3_moe", "mlp_only_layers": [1] }),
            "unsupported mlp_only_layers `1`",
        ),
        (
            json!({ "model_type": "qwen3_moe", "decoder_sparse_step": 2 }),
            "unsupported decoder_sparse_step `2`",
        ),
        (
            json!({ "model_type": "mistral", "layer_types": ["full_attention"] }),
            "invalid layer_types: 1 kinds for 2 layers",
        ),
        (
            json!({ "model_type": "mistral", "sliding_window": 0 }),
            "invalid sliding_window",
        ),
        (
            json!({ "model_type": "phi3", "rope_scaling": { "type": "longrope", "short_factor": [1.0] },
                    "original_max_position_embeddings": 64 }),
            "invalid rope_scaling",
        ),
        (
            json!({ "model_type": "phi3", "partial_rotary_factor": 0.01 }),
            "invalid partial_rotary_factor",
        ),
    ];
    for (changes, expected) in cases {
        let message = with(changes.clone()).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{changes}: {message}");
    }
}

#[test]
fn absurd_numbers_anywhere_are_read_or_refused_and_never_cost_much() {
    let absurd = [
        json!(0),
        json!(-1),
        json!(1),
        json!(3),
        json!(0.5),
        json!(1e12),
        json!(1e308),
        json!(4_294_967_296_u64),
        json!(u64::MAX),
        json!(16_777_216),
        json!("12"),
        json!(null),
        json!([]),
        json!({}),
        json!(true),
    ];
    let (mut read, mut refused) = (0, 0);
    for config in ModelConfig::tiny_models() {
        let good: Value = serde_json::from_str(&config.to_hf_json()).unwrap();
        let names: Vec<String> = good.as_object().unwrap().keys().cloned().collect();
        for name in names {
            for value in &absurd {
                let mut changed = good.clone();
                changed[&name] = value.clone();
                match ModelConfig::from_hf_json(&changed.to_string()) {
                    // What is made of a configuration before a file is compared with it.
                    Ok(config) => {
                        read += 1;
                        let tensors = crate::weights::tensor_shapes(&config);
                        assert!(tensors.len() < 1 << 19, "{name}: {value}");
                    }
                    Err(error) => {
                        refused += 1;
                        assert!(!error.to_string().is_empty(), "{name}: {value}");
                    }
                }
            }
        }
    }
    assert!(
        read > 100 && refused > 1000,
        "{read} read, {refused} refused"
    );
}

#[test]
fn sizes_that_no_model_has_are_refused_by_name() {
    for (changes, expected) in [
        (
            json!({ "num_attention_heads": 0 }),
            "invalid num_attention_heads: 0",
        ),
        (
            json!({ "num_attention_heads": 4, "num_key_value_heads": 3 }),
            "invalid num_key_value_heads: 3 does not divide",
        ),
        (
            json!({ "num_hidden_layers": 1_000_000_000_000_u64 }),
            "invalid num_hidden_layers: 1000000000000 is not in 1..=4096",
        ),
        (
            json!({ "rope_theta": -1.0 }),
            "invalid rope_theta: -1 is not",
        ),
        (json!({ "rope_theta": 0.0 }), "invalid rope_theta: 0 is not"),
        (
            json!({ "model_type": "qwen3_moe", "num_hidden_layers": 4096, "num_experts": 64,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 8 }),
            "invalid num_experts: 64 in each of 4096 layers",
        ),
    ] {
        let message = with(changes.clone()).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{changes}: {message}");
    }
}
