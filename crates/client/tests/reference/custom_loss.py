"""Makes custom_loss.json: traced losses as the official SDK 0.36.0 uploads them, and what they
evaluate to in PyTorch.

Run with a Python that has torch and the SDK: `python custom_loss.py > custom_loss.json`.
The same losses are written in Rust in src/autodiff/tests/traced.rs.
"""

import json

import torch
import torch.nn.functional as F
from tinker.lib.public_interfaces.custom_loss import encode_graph, trace_loss


def negative_sum(logprobs):
    return -logprobs.sum(), {}


def clipped(logprobs, old, advantages, scale):
    ratio = torch.exp(logprobs - old)
    surrogate = torch.minimum(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages)
    drift = (old - logprobs).mean()
    return -surrogate.sum() * scale, {
        "custom/drift:mean": drift,
        "custom/ratio/sum_1:sum": ratio.sum(),
    }


def functions(logprobs, mask, add_1):
    x = torch.exp(logprobs) + 0.5
    x = x - 1.0 / x
    x = torch.log(torch.sqrt(x ** 2 + 1.5)) + x ** 0.0 + torch.abs(x)
    x = torch.sigmoid(x) * torch.tanh(x) - F.softplus(x) + F.logsigmoid(-x)
    x = torch.relu(x + 3.0) / 2.0
    x = torch.maximum(x, logprobs) + torch.clamp(x, min=0.25) + torch.clamp(x, max=float("inf"))
    x = torch.where(mask != 0, x, -1.0)
    y = torch.cat([x[1:], x[:-1]])
    z = torch.stack([y[0], torch.dot(x, add_1), y[-1], x.detach().sum(-1)])
    return torch.logsumexp(z, -1) + y.mean() + x.sum(-1), {"custom/z-0.5:sum": z.sum()}


def candidates(logprobs, weights):
    normalised = logprobs - torch.logsumexp(logprobs, -1).unsqueeze(-1)
    probabilities = torch.exp(normalised)
    weighted = weights.unsqueeze(-1) * probabilities
    return (weighted * logprobs).sum(-1).sum(), {"custom/first:mean": weighted[0].sum()}


CASES = [
    (negative_sum, {"logprobs": 1}, {"logprobs": [-0.5, -1.25, -2.0]}),
    (
        clipped,
        {"logprobs": 1, "old": 1, "advantages": 1, "scale": 0},
        {
            "logprobs": [-0.5, -1.25, -2.0, -0.75],
            "old": [-0.25, -2.5, -2.0, -0.875],
            "advantages": [1.0, 0.5, -2.0, -0.25],
            "scale": 0.75,
        },
    ),
    (
        functions,
        {"logprobs": 1, "mask": 1, "add_1": 1},
        {
            "logprobs": [-0.5, -1.25, -2.0, -0.75],
            "mask": [1.0, 0.0, 1.0, 1.0],
            "add_1": [0.5, 0.25, -0.125, 2.0],
        },
    ),
    (
        candidates,
        {"logprobs": 2, "weights": 1},
        {"logprobs": [[-0.5, -1.25, -3.0], [-2.0, -0.75, -1.0]], "weights": [1.0, -0.5]},
    ),
]


def main():
    made = []
    for fn, ranks, values in CASES:
        handle = trace_loss(fn, ranks, "session-1")
        tensors = {name: torch.tensor(values[name], dtype=torch.float64) for name in ranks}
        tensors["logprobs"].requires_grad_(True)
        loss, metrics = handle.graph(*tensors.values())
        loss.backward()
        made.append(
            {
                "name": handle.name,
                "inputs": [i.model_dump() for i in handle.inputs],
                "graph": encode_graph(handle).model_dump(),
                "values": values,
                "loss": loss.item(),
                "gradient": tensors["logprobs"].grad.flatten().tolist(),
                "metrics": {name: value.item() for name, value in metrics.items()},
            }
        )
    print(json.dumps(made, indent=1))


main()
