"""Measures PyTorch + PEFT on the workloads of `cargo bench -p tinkrs-engine`, for comparison on one machine.

usage: engine_torch.py [--models FOLDER] [--only MODEL] [--repeats N] [--threads N]

Needs torch, transformers and peft. Models: `95m` and `7m`, random Qwen3 shapes; and, with --models or TINKRS_MODELS,
the real ones that `get-models` fetched into FOLDER. Each measurement runs in a process of its own, so that its peak
memory is its own, and prints one line of JSON; all is in f32:

  train      one LoRA step: forward, cross-entropy, backward, AdamW; rank 16 on the seven linears, 8 sequences of 256;
             the best of N repeats
  decode     one new token for each of 1 or 16 sequences, with a KV cache, greedily, no adapter; the mean of the fastest
             quarter of 127 steps after a prompt of 16

`seconds` is the time of one step. Tokens per core-second divide by the processor time used instead of the clock.

Torch's threads wait for each other at every operation: on a busy machine, many threads are slower than one, by far for
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
RANDOM_MODELS = {
    "95m": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4,
                intermediate_size=2304, vocab_size=16384),
    "7m": dict(hidden_size=256, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
               intermediate_size=768, vocab_size=8192),
}
REAL_MODELS = ["stories15M", "MiniMind2-Small", "SmolLM2-135M-Instruct"]
RANK, ALPHA, TRAIN_BATCH, TRAIN_LENGTH = 16, 32, 8, 256
PROMPT, NEW_TOKENS = 16, 128


def load(name, folder):
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    if name not in RANDOM_MODELS:
        return AutoModelForCausalLM.from_pretrained(Path(folder) / name, dtype=torch.float32)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(Qwen3Config(
        **RANDOM_MODELS[name], head_dim=64, max_position_embeddings=2048, tie_word_embeddings=True))


def timed(step):
    """Returns the wall and processor seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - cpu


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

    step()  # The first step allocates; it is not counted.
    timings = [timed(step) for _ in range(repeats)]
    return TRAIN_BATCH * TRAIN_LENGTH, min(wall for wall, _ in timings), min(cpu for _, cpu in timings)


def decode(model, batch):
    import torch

    model.eval()
    output = None

    def step():
        nonlocal output
        if output is None:
            tokens = torch.randint(0, model.config.vocab_size, (batch, PROMPT))
            output = model(input_ids=tokens, use_cache=True)
        else:
            tokens = output.logits[:, -1].argmax(-1, keepdim=True)
            output = model(input_ids=tokens, past_key_values=output.past_key_values, use_cache=True)

    with torch.inference_mode():
        timings = [timed(step) for _ in range(NEW_TOKENS)][1:]
    wall = sorted(wall for wall, _ in timings)[: len(timings) // 4]
    return batch, sum(wall) / len(wall), sum(cpu for _, cpu in timings) / len(timings)


def measure(workload, batch, name, options, results):
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    model = load(name, options.models)
    if workload == "train":
        tokens, wall, cpu = train(model, options.repeats)
    else:
        tokens, wall, cpu = decode(model, batch)
    results.put({
        "implementation": f"torch {torch.__version__}", "workload": workload, "model": name, "batch": batch,
        "threads": options.threads, "seconds": round(wall, 5), "tokens_per_second": round(tokens / wall, 1),
        "tokens_per_core_second": round(tokens / cpu, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    })


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=os.environ.get("TINKRS_MODELS"), help="folder with the real models")
    parser.add_argument("--only", help="measure this model alone")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    real = [name for name in REAL_MODELS if options.models and (Path(options.models) / name).is_dir()]
    for name in [*RANDOM_MODELS, *real]:
        if options.only not in (None, name):
            continue
        for workload, batch in [("decode", 1), ("decode", 16), ("train", TRAIN_BATCH)]:
            results = context.SimpleQueue()
            process = context.Process(target=measure, args=(workload, batch, name, options, results))
            process.start()
            process.join()
            if process.exitcode != 0:
                raise SystemExit(f"{workload} of {name} failed")
            print(json.dumps(results.get()), flush=True)


if __name__ == "__main__":
    main()
