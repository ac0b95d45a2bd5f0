//! Published shapes that `random:` names, as far as they decide the work.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tinkrs_engine::ModelConfig;

const NAMES: &str = "qwen3-0.6b, qwen3-1.7b or qwen3-30b-a3b";

pub(crate) fn find(name: &str) -> Result<ModelConfig> {
    let shape = match name {
        "qwen3-0.6b" => dense(1024, 3072),
        "qwen3-1.7b" => dense(2048, 6144),
        "qwen3-30b-a3b" => experts(),
        other => bail!("no shape `{other}`: expected {NAMES}"),
    };
    Ok(ModelConfig::from_hf_json(&shape.to_string())?)
}

fn dense(hidden: usize, ffn: usize) -> Value {
    json!({
        "model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": ffn, "vocab_size": 151_936,
        "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000,
        "tie_word_embeddings": true, "attention_bias": false, "hidden_act": "silu",
        "bos_token_id": 151_643, "eos_token_id": 151_645,
    })
}

fn experts() -> Value {
    json!({
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "vocab_size": 151_936, "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000, "tie_word_embeddings": false, "attention_bias": false, "hidden_act": "silu",
        "bos_token_id": 151_643, "eos_token_id": 151_645,
    })
}
