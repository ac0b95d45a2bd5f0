"""Measures the official Python SDK on the workloads of the example `load`, for comparison in one run.

usage: client_python.py sample N PROMPT_TOKENS
       client_python.py train STEPS DATUMS TOKENS

Needs the SDK, and a server at TINKER_BASE_URL that offers `null/model`. Prints one line of JSON, like `load`.
"""

import json
import logging
import os
import resource
import sys
import time


def measured(mode, n, wall_s, cpu_s, **more):
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"client": "python", "mode": mode, "n": n, "wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3),
                      "rss_mib": round(rss_mib, 1), **more}))


def timed(work):
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def sample(service, n, prompt_tokens):
    from tinker import types

    client = service.create_sampling_client(base_model="null/model")
    prompt = types.ModelInput.from_ints([100 + i % 30_000 for i in range(prompt_tokens)])
    params = types.SamplingParams(max_tokens=128)

    def work():
        futures = [client.sample(prompt, 1, params) for _ in range(n)]
        tokens = sum(len(future.result().sequences[0].tokens) for future in futures)
        assert tokens == 128 * n, tokens

    wall_s, cpu_s = timed(work)
    measured("sample", n, wall_s, cpu_s, per_s=round(n / wall_s), cpu_us_per_op=round(cpu_s / n * 1e6, 1))


def train(service, steps, datums, tokens):
    from tinker import types

    client = service.create_lora_training_client(base_model="null/model", rank=32)
    ids = [100 + i % 30_000 for i in range(tokens + 1)]
    datum = types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]),
                        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * tokens})
    batch = [datum] * datums

    def work():
        futures = []
        for _ in range(steps):
            futures.append(client.forward_backward(batch, "cross_entropy"))
            futures.append(client.optim_step(types.AdamParams(learning_rate=1e-4)))
        outputs = [future.result() for future in futures]
        assert len(outputs[0].loss_fn_outputs) == datums

    wall_s, cpu_s = timed(work)
    n = steps * datums * tokens
    measured("train", steps, wall_s, cpu_s, mtok_per_s=round(n / wall_s / 1e6, 3),
             cpu_ns_per_token=round(cpu_s / n * 1e9, 2))


def main():
    os.environ.setdefault("TINKER_API_KEY", "tml-bench")
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    logging.disable(logging.WARNING)
    import tinker

    modes = {"sample": (sample, 2), "train": (train, 3)}
    mode, numbers = sys.argv[1:2], [int(number) for number in sys.argv[2:]]
    if not mode or mode[0] not in modes or len(numbers) != modes[mode[0]][1]:
        sys.exit(__doc__)
    modes[mode[0]][0](tinker.ServiceClient(), *numbers)


if __name__ == "__main__":
    main()
