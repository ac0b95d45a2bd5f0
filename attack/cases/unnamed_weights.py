"""A loop of reinforcement learning saves weights without a name at every step."""

import json
import time

TITLE = "weights for sampling without a name, 200 times"


def attack(target):
    options = ["--keep-unnamed", "1s"] if target.has_option("--keep-unnamed") else []
    server = target.serve(*options)
    api = server.api()
    model = api.model(api.session())

    def save(number):
        promise = api.post("save_weights_for_sampler", {"model_id": model, "seq_id": number + 1, "sampling_session_seq_id": number})
        return api.result(promise)["sampling_session_id"]

    samplers = [save(number) for number in range(200)]
    folders = server.data / "samplers"
    end = time.monotonic() + 8
    while (left := len(list(folders.iterdir()))) > 5 and time.monotonic() < end:
        time.sleep(0.2)
    newest = "error" not in api.result(api.sample([1, 2], samplers[-1], seq_id=0))
    body = {"sampling_session_id": samplers[0], "seq_id": 0, "num_samples": 1, "sampling_params": {"max_tokens": 1},
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]}}
    status, answer = api.send("POST", "/api/v1/asample", body)
    told = status == 404 and "without a name" in json.loads(answer).get("detail", "")
    late = "a late request is told so" if told else f"a late request gets {status}"
    return f"{left} of 200 left on the disk; {late}", left <= 5 and newest and told
