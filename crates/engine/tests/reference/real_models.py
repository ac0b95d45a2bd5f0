"""Writes log-probabilities, logits and LoRA gradients of a few texts under the real models, in f32.

usage: real_models.py FOLDER    (the folder that `conformance/models/get-models` filled)

For each model, `real_models.json` holds the tokens of each text and the log-probability of every token after the first.
`real_gradients.json` holds, for the first text: some logits of each position; and, with an adapter whose values follow
from their names (`drawn`), the loss, and of each gradient its largest size, its norm, and some elements. All of them
would be megabytes.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

TEXTS = {
    "stories15M": [
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw "
        "a big, red ball in the sky and wanted to touch it, but it was too high.",
        "Tom and his dog ran to the river. The water was very cold!",
        "The quarterly report shows 12.5% growth; see appendix B (page 7).",
    ],
    "MiniMind2-Small": [
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        "The capital of France is Paris.<|im_end|>\n",
        "<|im_start|>user\n什么是人工智能?<|im_end|>\n<|im_start|>assistant\n"
        "人工智能是计算机科学的一个分支,它研究如何让机器像人一样思考。<|im_end|>\n",
        "<|im_start|>fn main() { println!(\"hello\"); }",
    ],
    "SmolLM2-135M-Instruct": [
        "<|im_start|>user\nName three primary colours.<|im_end|>\n<|im_start|>assistant\n"
        "Red, blue and yellow.<|im_end|>\n",
        "The mitochondrion is the powerhouse of the cell, and",
    ],
}


LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK, ALPHA = 4, 32
LOGITS, ELEMENTS = 32, 8


def drawn(name, count, scale):
    """Returns numbers between -scale / 2 and scale / 2 that any language can repeat to the last bit."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 % 2**32
    mixed = np.arange(count, dtype=np.uint64) * 2654435761 + seed
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    mixed ^= mixed >> 13
    return ((mixed >> 8).astype(np.float32) / np.float32(2**24) - np.float32(0.5)) * np.float32(scale)


def spread(count, wanted):
    """Returns `wanted` places, evenly spread over `count`."""
    return [i * count // wanted for i in range(wanted)]


def short(value):
    """Leaves out digits that no f32 has."""
    return float(f"{value:.9g}")


def some(tensor, wanted):
    flat = tensor.detach().flatten()
    return [short(flat[i].item()) for i in spread(flat.numel(), wanted)]


def gradients_of(folder, tokens):
    """Returns logits without, and loss and gradients with, the adapter."""
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    inputs, targets = torch.tensor([tokens[:-1]]), torch.tensor(tokens[1:])
    with torch.no_grad():
        logits = base(input_ids=inputs, use_cache=False).logits[0]
    logits = [some(row, LOGITS) for row in logits]
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=LINEARS, task_type="CAUSAL_LM"))
    parameters = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            name = name.replace(".default", "").removeprefix("base_model.model.").removesuffix(".weight")
            scale = 0.02 if name.endswith("lora_B") else 0.1
            parameter.data = torch.from_numpy(drawn(name, parameter.numel(), scale)).reshape(parameter.shape)
            parameters[name] = parameter
    logprobs = model(input_ids=inputs, use_cache=False).logits[0].log_softmax(-1).gather(1, targets[:, None])
    loss = -logprobs.sum()
    loss.backward()
    gradients = {
        name: {"largest": short(parameter.grad.abs().max().item()), "norm": short(parameter.grad.double().norm().item()),
               "elements": some(parameter.grad, ELEMENTS)}
        for name, parameter in parameters.items()
    }
    return {"tokens": tokens, "logits": logits, "loss": loss.item(), "gradients": gradients}


def logprobs_of(model, tokens):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits[:-1].log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()


def run(folder, texts):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in texts:
        tokens = tokenizer.encode(text).ids
        yield {"text": text, "tokens": tokens, "logprobs": [round(x, 6) for x in logprobs_of(model, tokens)]}


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    models = {name: list(run(Path(sys.argv[1]) / name, texts)) for name, texts in TEXTS.items()}
    text = json.dumps(models, ensure_ascii=False)
    (Path(__file__).parent / "real_models.json").write_text(text.replace('{"text"', '\n{"text"') + "\n")
    gradients = {name: gradients_of(Path(sys.argv[1]) / name, texts[0]["tokens"]) for name, texts in models.items()}
    text = json.dumps(gradients, separators=(",", ":"))
    (Path(__file__).parent / "real_gradients.json").write_text(text.replace('"model.', '\n"model.') + "\n")
    for name, texts in models.items():
        print(name, [(len(t["tokens"]), round(sum(t["logprobs"]) / len(t["logprobs"]), 3)) for t in texts])
