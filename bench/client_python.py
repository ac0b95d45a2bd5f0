"""Measures the official Python SDK on the workloads of the client's example `load`, and of the wire's benchmark.

usage: client_python.py sample N PROMPT_TOKENS [IN_FLIGHT]
       client_python.py train STEPS DATUMS TOKENS
       client_python.py rl MODEL GROUP TOKENS
       client_python.py wire DATUMS TOKENS TURNS

Needs the SDK and, except for `wire`, a server at TINKER_BASE_URL; for `sample` and `train` it offers `null/model`. Prints one
line of JSON, like `load`. `rl` warms up, then takes a step for each line of stdin.
"""

import collections
import json
import logging
import os
import resource
import sys
import time


def measured(mode, n, wall_s, cpu_s, **more):
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"client": "python", "mode": mode, "n": n, "wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3),
                      "rss_mib": round(rss_mib, 1), **more}), flush=True)


def timed(work):
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def token_ids(count):
    """Returns tokens as a prompt might have them: mostly of five digits. `load` sends the same."""
    return [100 + i * 7_919 % 150_000 for i in range(count)]


def service():
    import tinker

    return tinker.ServiceClient()


def sample(n, prompt_tokens, in_flight=None):
    from tinker import types

    client = service().create_sampling_client(base_model="null/model")
    prompt = types.ModelInput.from_ints(token_ids(prompt_tokens))
    params = types.SamplingParams(max_tokens=128)

    def finish(future):
        assert len(future.result().sequences[0].tokens) == 128

    def work():
        pending = collections.deque()
        for _ in range(n):
            if len(pending) == in_flight:
                finish(pending.popleft())
            pending.append(client.sample(prompt, 1, params))
        while pending:
            finish(pending.popleft())

    wall_s, cpu_s = timed(work)
    measured("sample", n, wall_s, cpu_s, per_s=round(n / wall_s, 1), cpu_us_per_op=round(cpu_s / n * 1e6, 1))


def supervised(tokens):
    from tinker import types

    ids = token_ids(tokens + 1)
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]),
                       loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * tokens})


def train(steps, datums, tokens):
    from tinker import types

    client = service().create_lora_training_client(base_model="null/model", rank=32)
    batch = [supervised(tokens)] * datums

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


def rl(model, group, tokens):
    from tinker import types

    training = service().create_lora_training_client(base_model=model, rank=16, seed=1)
    sampler = training.save_weights_and_get_sampling_client()
    prompt = [token % 500 for token in token_ids(16)]
    params = types.SamplingParams(max_tokens=tokens, seed=1, stop=[])

    def datum(sequence, advantage):
        everything, before = prompt + list(sequence.tokens), [0.0] * (len(prompt) - 1)
        inputs = {"target_tokens": everything[1:], "logprobs": before + list(sequence.logprobs),
                  "advantages": before + [advantage] * len(sequence.tokens)}
        return types.Datum(model_input=types.ModelInput.from_ints(everything[:-1]), loss_fn_inputs=inputs)

    def step():
        nonlocal sampler
        sequences = sampler.sample(types.ModelInput.from_ints(prompt), group, params).result().sequences
        assert [len(sequence.tokens) for sequence in sequences] == [tokens] * group
        rewards = [sum(token % 2 == 0 for token in sequence.tokens) / tokens for sequence in sequences]
        mean = sum(rewards) / group
        data = [datum(sequence, reward - mean) for sequence, reward in zip(sequences, rewards)]
        passed = training.forward_backward(data, "importance_sampling")
        update = training.optim_step(types.AdamParams(learning_rate=1e-5))
        sampler = training.save_weights_and_get_sampling_client()
        passed.result(), update.result()

    step()
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        wall_s, cpu_s = timed(step)
        measured("rl", group, wall_s, cpu_s, tokens_per_s=round(group * tokens / wall_s, 1))


def wire(datums, tokens, turns):
    """Times the SDK's own conversions of a pass and of its output, without any I/O. The fastest turn counts."""
    import numpy
    from tinker import types
    from tinker.proto import request_conv, response_conv, tinker_public_pb2
    from tinker.types.forward_backward_request import ForwardBackwardRequest

    given = types.ForwardBackwardInput(data=[supervised(tokens)] * datums, loss_fn="cross_entropy")
    request = ForwardBackwardRequest(forward_backward_input=given, model_id="session:train:0", seq_id=1)

    def encode():
        return request_conv.forward_backward_request_to_proto(request).SerializeToString()

    output = tinker_public_pb2.ForwardBackwardOutput(loss_fn_output_type="TorchLossReturn", metrics={"loss:sum": 1.5})
    field = output.loss_fn_outputs.add(num_datums=datums).fields["logprobs"]
    field.dtype = tinker_public_pb2.DTYPE_FLOAT32
    field.data = numpy.linspace(0, -1, datums * tokens, dtype="float32").tobytes()
    field.offsets = (numpy.arange(datums + 1, dtype="int64") * tokens * 4).tobytes()
    body = output.SerializeToString()
    decoded = response_conv.deserialize_forward_backward_output(body)
    assert len(decoded.loss_fn_outputs) == datums
    assert numpy.asarray(decoded.loss_fn_outputs[0]["logprobs"].data).size == tokens

    def decode():
        return response_conv.deserialize_forward_backward_output(body)

    for what, work, size in [("encode the request", encode, len(encode())), ("decode the output", decode, len(body))]:
        wall_s = min(timed(work)[0] for _ in range(turns))
        print(json.dumps({"what": what, "bytes": size, "ns_per_token": wall_s / (datums * tokens) * 1e9}), flush=True)


def main():
    os.environ.setdefault("TINKER_API_KEY", "tml-bench")
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    logging.disable(logging.WARNING)
    modes = {"sample": (sample, (2, 3)), "train": (train, (3,)), "rl": (rl, (3,)), "wire": (wire, (3,))}
    mode, arguments = (sys.argv + [""])[1], sys.argv[2:]
    if mode not in modes or len(arguments) not in modes[mode][1]:
        sys.exit(__doc__)
    modes[mode][0](*(int(argument) if argument.isdigit() else argument for argument in arguments))


if __name__ == "__main__":
    main()
