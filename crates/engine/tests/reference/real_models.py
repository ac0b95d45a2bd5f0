"""Writes the log-probabilities of a few texts under the real models, in f32.

usage: real_models.py FOLDER    (the folder that `get-models` filled)

For each model, `real_models.json` holds the tokens of each text and the log-probability of every token after the first.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
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
    for name, texts in models.items():
        print(name, [(len(t["tokens"]), round(sum(t["logprobs"]) / len(t["logprobs"]), 3)) for t in texts])
