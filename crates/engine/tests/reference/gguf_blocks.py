"""Writes quantised blocks with their values, and tiny models as GGUF files.

`gguf/blocks.safetensors` holds, for each quantised format by its number in the files, `<number>.blocks` (random bytes
with usable scales) and `<number>.values` (what the `gguf` package makes of them).

`gguf/tiny-*.gguf` are the models of the same name with the names, the order of rows and the metadata that llama.cpp's
converter gives them; matrices of the MLP are in Q8_0, other matrices in F16, the rest in F32. `tiny-llama3` gets the
rotary settings of Llama 3.1, the only scaling that can be told from the factors in a file.
"""

import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, quants
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).parent
FOLDER = HERE / "gguf"
BLOCKS = 4
# Size of a block in bytes, and where in it the f16 scales are.
FORMATS = {Type.Q4_0: (18, [0]), Type.Q4_1: (20, [0, 2]), Type.Q5_0: (22, [0]), Type.Q5_1: (24, [0, 2]),
           Type.Q8_0: (34, [0]), Type.Q4_K: (144, [0, 2]), Type.Q5_K: (176, [0, 2]), Type.Q6_K: (210, [208])}
PARTS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}


def write_blocks():
    random, tensors = np.random.default_rng(3), {}
    for format, (size, scales) in FORMATS.items():
        blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for start in scales:
            scale = random.uniform(-0.1, 0.1, (BLOCKS, 1)).astype(np.float16)
            blocks[:, start:start + 2] = scale.view(np.uint8)
        tensors[f"{format.value}.blocks"] = blocks
        tensors[f"{format.value}.values"] = quants.dequantize(blocks, format)
    save_file(tensors, FOLDER / "blocks.safetensors")


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, *part, kind = name.split(".")
    return f"blk.{layer}.{PARTS['.'.join(part)]}.{kind}"


def interleave(rows, heads):
    """From half-and-half to interleaved rotary order, as Llama files have it."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def llama3_factors(head_dim, theta=500000.0, factor=8.0, low=1.0, high=4.0, context=8192):
    """What each frequency is divided by."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((context / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def write_model(model):
    config = json.loads((HERE / model / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = GGUFWriter(FOLDER / f"{model}.gguf", config["model_type"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if model == "tiny-llama3":
        writer.add_rope_freq_base(500000.0)
        writer.add_tensor("rope_freqs.weight", llama3_factors(config["head_dim"]))
    else:
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_token_list([f"token {i}" for i in range(config["vocab_size"])])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, tensor in load_file(HERE / model / "model.safetensors").items():
        if config["model_type"] == "llama" and ".q_proj." in name:
            tensor = interleave(tensor, heads)
        if config["model_type"] == "llama" and ".k_proj." in name:
            tensor = interleave(tensor, kv_heads)
        if ".up_proj." in name or ".gate_proj." in name:
            writer.add_tensor(gguf_name(name), quants.quantize(tensor, Type.Q8_0), raw_dtype=Type.Q8_0)
        else:
            writer.add_tensor(gguf_name(name), tensor.astype(np.float16) if tensor.ndim == 2 else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    write_blocks()
    for model in ("tiny-llama", "tiny-llama3", "tiny-qwen2", "tiny-qwen3"):
        write_model(model)
