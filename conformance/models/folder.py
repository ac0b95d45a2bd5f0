"""What the folders have in common: Llama's configuration, the order of rotary rows, the files."""

import json

import numpy as np
from safetensors.numpy import save_file

# Hugging Face's names of a layer's tensors, without `.weight`.
LAYER = {
    "attention_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "feed_forward_norm": "post_attention_layernorm", "gate": "mlp.gate_proj",
    "up": "mlp.up_proj", "down": "mlp.down_proj",
}


def rotary_halves(weight, heads):
    """Moves each head's rows from interleaved rotary pairs to Hugging Face's order: first halves, then second halves."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // (2 * heads), 2, columns)
    return pairs.transpose(0, 2, 1, 3).reshape(rows, columns)


def llama(*, hidden, inner, layers, heads, kv_heads, vocab, context, theta):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "rope_scaling": None, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
        "max_position_embeddings": context, "rope_theta": theta,
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1))


def write_model(folder, config, weights, dtype):
    weights = {name: np.ascontiguousarray(weight.astype(dtype)) for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", {**config, "torch_dtype": np.dtype(dtype).name})
