"""A null for a number, on other endpoints and in other places than the learning rate."""

from attack.harness import NANO, Refused

TITLE = "`null` for temperature, top_p, a clip threshold, a search limit"


def attack(target):
    api = target.serve().api()
    session = api.session()
    model = api.model(session)
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    tensor = {"data": [2, 3], "dtype": "int64", "shape": [2]}
    numbers = {"data": [0.5, 0.5], "dtype": "float32", "shape": [2]}
    datum = {"model_input": prompt, "loss_fn_inputs": {"target_tokens": tensor, "logprobs": numbers, "advantages": numbers}}
    sample = {"base_model": NANO, "prompt": prompt, "num_samples": 1}
    cases = {
        "temperature": ("asample", {**sample, "sampling_params": {"max_tokens": 1, "temperature": None}}),
        "top_p": ("asample", {**sample, "sampling_params": {"max_tokens": 1, "top_p": None}}),
        "clip_low_threshold": ("forward_backward", {"model_id": model, "seq_id": 1, "forward_backward_input": {
            "data": [datum], "loss_fn": "ppo", "loss_fn_config": {"clip_low_threshold": None}}}),
        "limit": ("sessions/search", {"limit": None}),
    }
    taken = []
    for name, (path, body) in cases.items():
        try:
            answer = api.post(path, body)
            if "request_id" in answer:
                answer = api.result(answer)
        except Refused as refused:
            answer = {"error": refused.body.decode()}
        if name not in str(answer.get("error")):
            taken.append(name)
    return (f"defaults for {', '.join(taken)}" if taken else "all refused by name"), not taken
