"""A flood of long samples must leave other keys their part of the batch."""

import time
from concurrent.futures import ThreadPoolExecutor

from attack.harness import NANO, Refused

TITLE = "a flood of requests for 4,096 samples each; another key samples 4 tokens"
REQUESTS = 300


def attack(target):
    server = target.serve()
    one, other = server.api("tml-one"), server.api("tml-other")
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 5, 9]}]}
    body = {"base_model": NANO, "prompt": prompt, "num_samples": 4096,
            "sampling_params": {"max_tokens": 200, "temperature": 1.0, "stop": []}}

    def submit(_):
        try:
            one.post("asample", body)
            return 1
        except Refused:
            return 0

    with ThreadPoolExecutor(8) as pool:
        taken = sum(pool.map(submit, range(REQUESTS)))
    times = []
    for _ in range(3):
        start = time.monotonic()
        try:
            result = other.result(other.sample([1, 5, 9], max_tokens=4), timeout=15)
        except (Refused, TimeoutError) as error:
            return f"{taken} requests wait; the other key: {str(error)[:60]}", False
        if "error" in result:
            return f"{taken} requests wait; the other key: {str(result)[:60]}", False
        times.append(time.monotonic() - start)
    return f"{taken} requests wait; the other key's samples took {max(times):.2f} s at most", max(times) < 5
