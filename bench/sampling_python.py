"""Measures the CPU of a Python caller that draws samples, all in flight: with the official SDK, or with `tinkrs.sdk`.

usage: sampling_python.py tinker|tinkrs N PROMPT_TOKENS

Needs the packages `tinker` and `tinkrs`, and a server at TINKER_BASE_URL that offers `null/model`. Prints a line of JSON.
"""

import json
import os
import resource
import sys
import time


def main(which, n, prompt_tokens):
    from tinker import types

    if which == "tinkrs":
        from tinkrs.sdk import ServiceClient
    else:
        from tinker import ServiceClient
    client = ServiceClient().create_sampling_client(base_model="null/model")
    prompt = types.ModelInput.from_ints([100 + i * 7_919 % 150_000 for i in range(prompt_tokens)])
    params = types.SamplingParams(max_tokens=128)
    client.sample(prompt, 1, params).result()
    wall, cpu = time.perf_counter(), time.process_time()
    pending = [client.sample(prompt, 1, params) for _ in range(n)]
    for future in pending:
        assert len(future.result().sequences[0].tokens) == 128
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"client": which, "n": n, "cpu_us_per_op": round(cpu / n * 1e6, 1), "wall_s": round(wall, 2), "rss_mib": rss_mib}), flush=True)


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
os._exit(0)  # the SDK's threads have nothing left to do
