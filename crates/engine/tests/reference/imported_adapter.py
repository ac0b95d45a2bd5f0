"""Writes an adapter for `tiny-llama` as people make them with `peft`, and what PyTorch computes with it.

It adapts two of the seven linear layers, with a rank, alpha and dropout that are nobody's defaults. In `expected.json`:

  tokens, targets           a sequence, and the next token at each place
  base                      log-probabilities of the targets under the base model
  logprobs                  the same with the adapter
  learning_rate, trained    the same after two AdamW steps on the sum of -logprobs (betas 0.9 and 0.95, eps 1e-12)
"""

import json
import shutil
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tiny_models import logits_of, target_logprobs
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
FOLDER = HERE / "imported-adapter"
LEARNING_RATE, STEPS, LENGTH = 5e-3, 2, 14


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    base = AutoModelForCausalLM.from_pretrained(HERE / "tiny-llama", dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(7)
    sequence = torch.randint(0, base.config.vocab_size, (LENGTH + 1,))
    tokens, targets = sequence[:-1], sequence[1:]
    with torch.no_grad():
        expected = {"tokens": tokens.tolist(), "targets": targets.tolist(),
                    "base": target_logprobs(logits_of(base, tokens), targets).tolist()}

    settings = LoraConfig(r=6, lora_alpha=9, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base, settings).eval()  # no dropout from here on: it is not part of what is compared
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.data = torch.randn(parameter.shape) * 0.2
    model.save_pretrained(FOLDER)
    (FOLDER / "README.md").unlink(missing_ok=True)
    # The folder that it was made in is nobody's business, and sets have no order.
    path = FOLDER / "adapter_config.json"
    written = json.loads(path.read_text()) | {"base_model_name_or_path": "tiny-llama"}
    written["target_modules"].sort()
    path.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")

    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
    logprobs = target_logprobs(logits_of(model, tokens), targets)
    expected |= {"logprobs": logprobs.tolist(), "learning_rate": LEARNING_RATE}
    for _ in range(STEPS):
        optimizer.zero_grad()
        (-logprobs.sum()).backward()
        optimizer.step()
        logprobs = target_logprobs(logits_of(model, tokens), targets)
    expected["trained"] = logprobs.tolist()
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for name in ("base", "logprobs", "trained"):
        print(f"{name}: {sum(expected[name]):.4f}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    main()
