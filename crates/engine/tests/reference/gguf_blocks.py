"""Writes quantised blocks with their values, and tiny models as GGUF files.

`gguf/blocks.safetensors` holds, for each quantised format by its number in the files, `<number>.blocks` (random bytes
with usable scales) and `<number>.values` (what the `gguf` package makes of them).

`gguf/tiny-*.gguf` are the models of the same name with the names, the order of rows and the metadata that llama.cpp's
converter gives them; matrices of the MLP are in Q8_0 (experts of gpt-oss in MXFP4), other matrices in F16, the rest in F32. `tiny-llama3` gets the
rotary settings of Llama 3.1, the only scaling that can be told from the factors in a file.
"""

import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, RopeScalingType, quants
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
PHI3 = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
GEMMA = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "post_feedforward_layernorm": "post_ffw_norm"}
MOE = {"mlp.gate": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
       "mlp.experts.down_proj": "ffn_down_exps"}
QWEN35 = {"post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
          "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
          "linear_attn.out_proj": "ssm_out", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
          "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
          "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
# Hugging Face's name, that of GGUF, and names of parts that differ from the usual ones.
FAMILIES = {"gemma2": ("gemma2", GEMMA), "gemma3_text": ("gemma3", GEMMA), "phi3": ("phi3", PHI3),
            "qwen3_moe": ("qwen3moe", MOE), "qwen3_5_text": ("qwen35", QWEN35),
            "qwen3_5_moe_text": ("qwen35moe", MOE | QWEN35),
            "gpt_oss": ("gpt-oss", MOE | {"mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks",
                                          "post_attention_layernorm": "post_attention_norm"})}
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


def gguf_name(name, parts):
    if name in NAMES:
        return NAMES[name]
    if name.endswith("sinks"):
        name += ".weight"
    if name.endswith("A_log"):
        return f"blk.{name.split('.')[2]}.ssm_a"
    if name.endswith("dt_bias"):
        return f"blk.{name.split('.')[2]}.ssm_dt.bias"
    _, _, layer, *part, kind = name.split(".")
    return f"blk.{layer}.{(PARTS | parts)['.'.join(part)]}.{kind}"


def with_experts_joined(tensors):
    """GGUF has the experts of a layer in one tensor."""
    joined = {}
    for name, tensor in list(tensors.items()):
        # Those of gpt-oss are joined already, with inputs first, and gates and values in turn.
        for part, start in (("gate_up_proj", 0), ("gate_up_proj_bias", 0), ("down_proj", None), ("down_proj_bias", None)):
            if name.endswith(f".experts.{part}"):
                del tensors[name]
                tensor = tensor if part.endswith("bias") else tensor.swapaxes(1, 2)
                kind = "bias" if part.endswith("bias") else "weight"
                base = name.removesuffix(part)
                if start is None:
                    tensors[f"{base}down_proj.{kind}"] = np.ascontiguousarray(tensor)
                else:
                    tensors[f"{base}gate_proj.{kind}"] = np.ascontiguousarray(tensor[:, ::2])
                    tensors[f"{base}up_proj.{kind}"] = np.ascontiguousarray(tensor[:, 1::2])
    for name, tensor in tensors.items():
        if ".experts." in name and name.split(".experts.")[1][0].isdigit():
            before, after = name.split(".experts.")
            index, after = after.split(".", 1)
            joined.setdefault(f"{before}.experts.{after}", {})[int(index)] = tensor
        else:
            joined[name] = tensor
    return {name: np.stack([tensor[i] for i in range(len(tensor))]) if isinstance(tensor, dict) else tensor
            for name, tensor in joined.items()}


def write_features(writer, config):
    """Adds what sets newer families apart."""
    kind, rope = config["model_type"], config["rope_parameters"]
    if kind.startswith("gemma"):
        writer.add_sliding_window(config["sliding_window"])
        writer.add_uint32(f"{FAMILIES[kind][0]}.attention.sliding_window_pattern", 2)
        for option in ("attn", "final"):
            if config.get(f"{option}_logit_softcapping"):
                writer.add_float32(f"{FAMILIES[kind][0]}.{option}_logit_softcapping",
                                   config[f"{option}_logit_softcapping"])
    if kind == "gemma3_text":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["full_attention"]["factor"])
    if kind == "phi3":
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        first, longest = config["original_max_position_embeddings"], config["max_position_embeddings"]
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        writer.add_rope_scaling_type(RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(first)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(longest / first) / np.log(first))))
        for length in ("short", "long"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], dtype=np.float32))
    if kind == "gpt_oss":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_float32("gpt-oss.rope.scaling.yarn_beta_fast", rope["beta_fast"])
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if kind == "qwen3_moe":
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if kind.startswith("qwen3_5"):
        heads, width = config["linear_num_value_heads"], config["linear_value_head_dim"]
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(heads)
        writer.add_ssm_inner_size(heads * width)
        writer.add_array(f"{FAMILIES[kind][0]}.attention.recurrent_layers",
                         [layer == "linear_attention" for layer in config["layer_types"]])
        writer.add_uint32(f"{FAMILIES[kind][0]}.full_attention_interval", 4)
        writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
        writer.add_rope_dimension_sections([11, 11, 10, 0])
    if kind == "qwen3_5_moe_text":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def as_llama_cpp_computes(name, tensor, config):
    """Values and order of the tensors of Qwen3.5: value heads are in another order, and some numbers are computed."""
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return tensor + 1
    if name.endswith("A_log"):
        tensor = -np.exp(tensor)
    if name.endswith(("conv1d.weight", "shared_expert_gate.weight")):
        tensor = tensor.squeeze()
    if "linear_attn." not in name:
        return tensor
    key_heads, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    width = config["linear_value_head_dim"]

    def tiled(rows, width):
        """The first value head of every key head, then the second of each."""
        parts = rows.reshape(key_heads, heads // key_heads, width, *rows.shape[1:])
        return parts.swapaxes(0, 1).reshape(rows.shape)

    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        keys = 2 * key_heads * config["linear_key_head_dim"]
        return np.concatenate([tensor[:keys], tiled(tensor[keys:], width)])
    if name.endswith("in_proj_z.weight"):
        return tiled(tensor, width)
    if name.endswith("out_proj.weight"):
        return np.ascontiguousarray(tiled(tensor.T, width).T)
    return tensor if name.endswith("norm.weight") else tiled(tensor, 1)


def interleave(rows, heads):
    """From half-and-half to interleaved rotary order, as Llama files have it."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def llama3_factors(head_dim, theta=500000.0, factor=8.0, low=1.0, high=4.0, context=8192):
    """What each frequency is divided by."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((context / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def write_mxfp4_folder():
    """Writes the experts of the tiny gpt-oss as its published files have them; the blocks are those of its GGUF file."""
    source, folder = HERE / "tiny-gpt-oss", HERE / "tiny-gpt-oss-mxfp4"
    folder.mkdir(exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            tensors[name] = tensor
            continue
        rows = np.ascontiguousarray(tensor.swapaxes(1, 2))
        blocks = quants.quantize(rows, Type.MXFP4).reshape(*rows.shape[:2], -1, 17)
        halves = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
        tensors[f"{name}_blocks"] = np.ascontiguousarray(halves[..., ::2] | halves[..., 1::2] << 4)
        tensors[f"{name}_scales"] = np.ascontiguousarray(blocks[..., 0])
    save_file(tensors, folder / "model.safetensors")


def write_model(model):
    config = json.loads((HERE / model / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    family, parts = FAMILIES.get(config["model_type"], (config["model_type"], {}))
    writer = GGUFWriter(FOLDER / f"{model}.gguf", family)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if "intermediate_size" in config:
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
        rope = config["rope_parameters"]
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    write_features(writer, config)
    writer.add_token_list([f"token {i}" for i in range(config["vocab_size"])])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, tensor in with_experts_joined(load_file(HERE / model / "model.safetensors")).items():
        if family.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        if config["model_type"] == "llama" and ".q_proj." in name:
            tensor = interleave(tensor, heads)
        if config["model_type"] == "llama" and ".k_proj." in name:
            tensor = interleave(tensor, kv_heads)
        if family.startswith("qwen35"):
            tensor = as_llama_cpp_computes(name, tensor, config)
        if family == "gpt-oss" and ".experts." in name and name.endswith(".weight"):
            writer.add_tensor(gguf_name(name, parts), quants.quantize(tensor, Type.MXFP4), raw_dtype=Type.MXFP4)
        elif ".experts." in name and name.endswith(".bias"):
            writer.add_tensor(gguf_name(name, parts), tensor)
        elif ".up_proj." in name or ".gate_proj." in name or ".out_proj." in name:
            writer.add_tensor(gguf_name(name, parts), quants.quantize(tensor, Type.Q8_0), raw_dtype=Type.Q8_0)
        else:
            is_matrix = tensor.ndim > 1 and "conv1d" not in name
            writer.add_tensor(gguf_name(name, parts), tensor.astype(np.float16) if is_matrix else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    write_blocks()
    for model in ("tiny-llama", "tiny-llama3", "tiny-qwen2", "tiny-qwen3", "tiny-phi3", "tiny-gemma2", "tiny-gemma3",
                  "tiny-qwen3-moe", "tiny-gpt-oss", "tiny-qwen35", "tiny-qwen35-moe"):
        write_model(model)
    write_mxfp4_folder()
