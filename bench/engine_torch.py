"""Measures PyTorch + transformers + PEFT on the workloads of the engine's example `measure`.

usage: engine_torch.py FOLDER train BATCH LENGTH STEPS
       engine_torch.py FOLDER sample BATCH TOKENS [ADAPTERS]

FOLDER is a Hugging Face folder; everything is in f32, on all cores or TINKRS_THREADS. The first round warms up and prints
`{"ready": true, "way": …}`. Then each line on stdin asks for a round, which prints one line of JSON.

Each workload is done in the fastest of the ways that people use, and the line says in which:

  train    scaled-dot-product attention, gradients for the adapter alone (rank 16 on the seven linears), the fused AdamW;
           eager or by `torch.compile`, whichever is faster when warming up
  sample   temperature 1 and log-probabilities, with a KV cache and without gradients: `model.generate`, or a loop
           around `model()` with the default or a static cache, whichever is fastest when warming up
"""

import json
import os
import resource
import sys
import time

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK, PROMPT = 16, 16


def load(folder):
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(int(os.environ.get("TINKRS_THREADS") or len(os.sched_getaffinity(0))))
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


def adapters_on(model, count):
    """Puts adapters named 0, 1, … on the seven linear layers of each block."""
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=LINEARS, task_type="CAUSAL_LM")
    model = get_peft_model(model, config, adapter_name="0")
    for index in range(1, count):
        model.add_adapter(str(index), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=1e-3)  # A new adapter is half zeros.
    return model


def training(model, batch, length, steps):
    """Returns a round of LoRA steps, and the way they are done."""
    import torch

    vocab = model.config.vocab_size
    model = adapters_on(model, 1)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0, fused=True)
    tokens = torch.randint(0, vocab, (batch, length + 1))

    def step(forward):
        logits = forward(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    ways, seconds = {"eager": model, "compiled": torch.compile(model)}, {}
    for name, forward in ways.items():
        # Twice: what is compiled may be compiled anew after the first step.
        for _ in range(2):
            step(forward)
        start = time.perf_counter()
        step(forward)
        seconds[name] = time.perf_counter() - start
    fastest = min(seconds, key=seconds.get)

    def round_of_steps():
        for _ in range(steps):
            step(ways[fastest])
        return steps * batch * length

    return round_of_steps, f"PEFT, {fastest}, sdpa, fused AdamW"


def sampling(model, batch, new_tokens, adapters=0):
    """Returns a round of sampling in the fastest way, and its name."""
    import torch
    from transformers import StaticCache

    vocab, config = model.config.vocab_size, model.config
    model.generation_config.eos_token_id = None
    more = {}
    if adapters:
        model = adapters_on(model, adapters)
        more = {"adapter_names": [str(index % adapters) for index in range(batch)]}
    model.eval()
    prompts = torch.randint(0, vocab, (batch, PROMPT))

    def draw(logits):
        logprobs = torch.log_softmax(logits, -1)
        chosen = torch.multinomial(logprobs.exp(), 1)
        return chosen, logprobs.gather(-1, chosen)

    def loop(count, cache=None):
        tokens, drawn = prompts, []
        for index in range(count):
            position = torch.arange(tokens.shape[1]) + (PROMPT + index - 1 if index else 0)
            output = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1,
                           position_ids=position.unsqueeze(0), **more)
            cache = output.past_key_values
            tokens, logprob = draw(output.logits[:, -1])
            drawn.append((tokens, logprob))
        return len(drawn) * batch

    def static_loop(count):
        return loop(count, StaticCache(config=config, max_batch_size=batch, max_cache_len=PROMPT + new_tokens))

    def generate(count):
        output = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=1.0,
                                top_k=0, top_p=1.0, max_new_tokens=count, return_dict_in_generate=True,
                                output_logits=True, pad_token_id=0, **more)
        for logits, tokens in zip(output.logits, output.sequences[:, PROMPT:].T):
            torch.log_softmax(logits, -1).gather(-1, tokens.unsqueeze(-1))
        return output.sequences[:, PROMPT:].numel()

    ways = {"a loop, default cache": loop, "a loop, static cache": static_loop, "generate": generate}
    seconds = {}
    with torch.inference_mode():
        for name, way in ways.items():
            trial = min(new_tokens, 32)
            way(trial)
            start = time.perf_counter()
            way(trial)
            seconds[name] = time.perf_counter() - start
    fastest = min(seconds, key=seconds.get)

    def round_of_samples():
        with torch.inference_mode():
            return ways[fastest](new_tokens)

    return round_of_samples, f"{fastest}, sdpa"


def measure(round_of_work):
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = round_of_work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"tokens": tokens, "wall_s": wall, "cpu_s": cpu, "tokens_per_s": tokens / wall,
            "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main():
    workloads = {"train": (training, (3,)), "sample": (sampling, (2, 3))}
    folder, workload, *numbers = sys.argv[1:] if len(sys.argv) > 2 else ["", ""]
    if workload not in workloads or len(numbers) not in workloads[workload][1]:
        sys.exit(__doc__)
    work, way = workloads[workload][0](load(folder), *(int(number) for number in numbers))
    work()
    print(json.dumps({"ready": True, "way": way}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(measure(work)), flush=True)


if __name__ == "__main__":
    main()
