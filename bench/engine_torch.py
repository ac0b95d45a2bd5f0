"""Measures PyTorch + PEFT on the workloads of `cargo bench -p tinkrs-engine`, for comparison in one run.

usage: engine_torch.py [--models FOLDER] [--only MODEL] [--repeats N] [--threads N]

Needs torch, transformers and peft. Models: `95M`, a random Qwen3; and, with --models, the real ones that `get-models`
fetched into FOLDER. Each measurement runs in a process of its own, so that its peak memory is its own, and prints one
line of JSON with the best of N repeats:

  train      one LoRA step: forward, cross-entropy, backward, AdamW; rank 16 on the seven linears, 8 sequences of 256
  sample     128 new tokens after a prompt of 16, with a KV cache, for 1 and for 16 sequences at once, no adapter

Its threads wait for each other at every operation: on a busy machine, many threads are slower than one, by far for
small models. Compare on an idle machine, or with --threads 1.
"""

import argparse
import json
import multiprocessing
import os
import resource
import time
from pathlib import Path

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
REAL_MODELS = ["stories15M", "MiniMind2-Small", "SmolLM2-135M-Instruct"]
RANK, ALPHA, TRAIN_BATCH, TRAIN_LENGTH = 16, 32, 8, 256
PROMPT, NEW_TOKENS = 16, 128


def load(name, folder):
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    if name != "95M":
        return AutoModelForCausalLM.from_pretrained(Path(folder) / name, dtype=torch.float32)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(Qwen3Config(
        hidden_size=768, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4, head_dim=64,
        intermediate_size=2304, vocab_size=16384, max_position_embeddings=2048, tie_word_embeddings=True))


def best(step, repeats):
    """Returns wall and processor seconds of the fastest of `repeats` runs, after one that is not counted."""
    step()
    timings = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        timings.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(timings)


def train(model, repeats):
    import torch
    from peft import LoraConfig, get_peft_model

    vocab = model.config.vocab_size
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=LINEARS, task_type="CAUSAL_LM"))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
    tokens = torch.randint(0, vocab, (TRAIN_BATCH, TRAIN_LENGTH + 1))

    def step():
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return TRAIN_BATCH * TRAIN_LENGTH, *best(step, repeats)


def sample(model, batch, repeats):
    """Times the new tokens only: the prompt is read before the clock starts, and its time taken off."""
    import torch

    model.eval()
    prompt = torch.randint(0, model.config.vocab_size, (batch, PROMPT))

    def generate(count):
        with torch.inference_mode():
            output = model(input_ids=prompt, use_cache=True)
            for _ in range(count):
                token = torch.multinomial(output.logits[:, -1].softmax(-1), 1)
                output = model(input_ids=token, past_key_values=output.past_key_values, use_cache=True)

    prefill = best(lambda: generate(0), repeats)
    whole = best(lambda: generate(NEW_TOKENS), repeats)
    return batch * NEW_TOKENS, whole[0] - prefill[0], whole[1] - prefill[1]


def measure(workload, batch, name, options, results):
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    model = load(name, options.models)
    if workload == "train":
        tokens, wall, cpu = train(model, options.repeats)
    else:
        tokens, wall, cpu = sample(model, batch, options.repeats)
    results.put({
        "implementation": f"torch {torch.__version__}", "workload": workload, "model": name, "batch": batch,
        "threads": options.threads, "seconds": round(wall, 4), "tokens_per_second": round(tokens / wall, 1),
        "tokens_per_core_second": round(tokens / cpu, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    })


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="folder with the real models")
    parser.add_argument("--only", help="measure this model alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    for name in ["95M"] + (REAL_MODELS if options.models else []):
        if options.only not in (None, name):
            continue
        for workload, batch in [("train", TRAIN_BATCH), ("sample", 1), ("sample", 16)]:
            results = context.SimpleQueue()
            process = context.Process(target=measure, args=(workload, batch, name, options, results))
            process.start()
            process.join()
            if process.exitcode != 0:
                raise SystemExit(f"{workload} of {name} failed")
            print(json.dumps(results.get()), flush=True)


if __name__ == "__main__":
    main()
