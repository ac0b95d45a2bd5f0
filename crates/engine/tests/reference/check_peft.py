"""Checks that an adapter saved by the engine gives the same logits in `peft`.

usage: check_peft.py MODEL ADAPTER LOGITS

MODEL is a Hugging Face folder, ADAPTER a folder that the engine saved, LOGITS a safetensors file in which the engine
put `tokens.N` (i64) and `logits.N` (f32, one row a token) for N = 0, 1, ... Exits with 1 if any logit differs by more
than 1e-4 of the largest.

`cargo run -p tinkrs-engine --example export_adapter -- MODEL FOLDER` makes ADAPTER and LOGITS for one of the tiny
models of this folder, or for a real one. CI has no PyTorch, so this is run by hand.

Last result (torch 2.15.0, peft 0.21.2), rank 8 on all layers and the head after five steps: logits differ by at most
3.0e-6 for the four tiny models (logits up to 6), 3.9e-5 for stories15M (up to 31), 3.4e-5 for MiniMind2-Small (up to
53).
"""

import sys

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def main(model_folder, adapter_folder, logits_file):
    transformers.utils.logging.disable_progress_bar()
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(base, adapter_folder).eval()
    saved = load_file(logits_file)
    worst = 0.0
    for key, tokens in saved.items():
        if not key.startswith("tokens."):
            continue
        with torch.no_grad():
            theirs = model(input_ids=tokens[None], use_cache=False).logits[0]
            without = base_logits(model, tokens)
        ours = saved[key.replace("tokens", "logits")]
        difference, scale = (ours - theirs).abs().max().item(), theirs.abs().max().item()
        effect = (theirs - without).abs().max().item()
        print(f"{key}: largest difference {difference:.2e}, largest logit {scale:.2f}, effect of the adapter {effect:.2e}")
        worst = max(worst, difference / scale)
    return 0 if worst <= 1e-4 else 1


def base_logits(model, tokens):
    with model.disable_adapter():
        return model(input_ids=tokens[None], use_cache=False).logits[0]


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
