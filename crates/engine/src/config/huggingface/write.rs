//! Writing `config.json`.

use serde_json::{Map, Value, json};

use crate::ModelConfig;
use crate::config::{LayerKind, Rope, RopeScaling};

/// Writes the older form, which both versions of `transformers` read.
pub(crate) fn write(config: &ModelConfig) -> String {
    let family = config.architecture.family();
    let features = &config.features;
    let activation = match family.is_gemma {
        true => "hidden_activation",
        false => "hidden_act",
    };
    let mut written = json!({
        "architectures": [family.class],
        "model_type": family.model_type,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_context,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": scaling(&config.rope, config.max_context),
        activation: if family.is_gemma { "gelu_pytorch_tanh" } else { "silu" },
        "tie_word_embeddings": config.tied_head,
        // Qwen2 has its biases without saying so.
        "attention_bias": config.qkv_bias && !family.fixed_biases,
        "bos_token_id": config.bos,
        "eos_token_id": config.eos,
    });
    let members = written.as_object_mut().expect("an object was written");
    if let Some(turning) = config.rope.dimensions {
        let part = turning as f64 / config.head_dim as f64;
        members.insert("partial_rotary_factor".to_owned(), json!(part));
    }
    add_features(members, config);
    if let Some(experts) = features.experts {
        members.extend(object(json!({
            "num_experts": experts.count,
            "num_experts_per_tok": experts.per_token,
            "moe_intermediate_size": experts.ffn,
            "norm_topk_prob": experts.normalised,
            // gpt-oss has another name for it.
            "num_local_experts": experts.count,
        })));
        if let Some(width) = experts.shared {
            members.insert("shared_expert_intermediate_size".to_owned(), json!(width));
        }
    }
    format!("{written:#}\n")
}

fn add_features(members: &mut Map<String, Value>, config: &ModelConfig) {
    let features = &config.features;
    if let Some(window) = features.window {
        members.insert("sliding_window".to_owned(), json!(window));
    }
    if !features.layer_kinds.is_empty() {
        let name = |layer| match config.layer_kind(layer) {
            LayerKind::Full => "full_attention",
            LayerKind::Sliding => "sliding_attention",
            LayerKind::Delta => "linear_attention",
        };
        let kinds: Vec<&str> = (0..config.layers).map(name).collect();
        members.insert("layer_types".to_owned(), json!(kinds));
    }
    if let Some(delta) = features.delta {
        members.extend(object(json!({
            "linear_num_key_heads": delta.key_heads,
            "linear_num_value_heads": delta.value_heads,
            "linear_key_head_dim": delta.key_dim,
            "linear_value_head_dim": delta.value_dim,
            "linear_conv_kernel_dim": delta.kernel,
        })));
    }
    if let Some(local) = &features.local_rope {
        members.insert("rope_local_base_freq".to_owned(), json!(local.theta));
    }
    if config.architecture.family().is_gemma {
        members.extend(object(json!({
            "query_pre_attn_scalar": features.query_scalar,
            "attn_logit_softcapping": features.attention_softcap,
            "final_logit_softcapping": features.final_softcap,
        })));
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

fn scaling(rope: &Rope, context: usize) -> Value {
    match &rope.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_context,
        }),
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_context,
            attention_factor,
            truncate,
        } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "original_max_position_embeddings": original_context,
            "attention_factor": attention_factor,
            "truncate": truncate,
        }),
        // The divisors of longer contexts are not known any more, nor needed in this one.
        RopeScaling::Divided {
            divisors,
            attention_factor,
        } => json!({
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": attention_factor,
            "original_max_position_embeddings": context,
        }),
    }
}
