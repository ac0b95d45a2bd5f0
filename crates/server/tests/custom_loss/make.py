"""Traces losses with the official SDK and computes them with PyTorch, as numbers to compare with.

    python make.py > traced.json

Needs tinker 0.36.0 and torch. Each entry of the file has what `create_custom_loss` uploads, the tensors
of a datum, and what PyTorch makes of them in double precision: the loss, its gradient by the
log-probabilities, and the metrics.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, Callable

import torch
import torch.nn.functional as F
from tinker.lib.public_interfaces.custom_loss import encode_graph, trace_loss

torch.manual_seed(1)
T, K = 6, 3
DATA = {
    "old_logprobs": -torch.rand(T) * 3,
    "advantages": torch.tensor([0.0, 1.5, -0.5, 0.0, 2.0, -1.0]),
    "mask": torch.tensor([0, 1, 1, 0, 1, 1]),
    "scale": torch.tensor(0.7),
    "wide": torch.randn(T, K),
}
LOGPROBS = {1: -torch.rand(T) * 3 - 0.05, 2: -torch.rand(T, K) * 3 - 0.05}
RANKS = {"old_logprobs": 1, "advantages": 1, "mask": 1, "scale": 0, "wide": 2}
LOSSES: list[tuple[str, int, Callable[..., Any]]] = []


def loss(rank: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function that returns a loss and metrics."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        LOSSES.append((function.__name__, rank, function))
        return function

    return add


@loss()
def clipped_surrogate(logprobs, old_logprobs, advantages, mask):
    """What a user writes: PPO with a mean over the unmasked tokens, and a KL penalty."""
    mask = mask.float()
    count = mask.sum().clamp(min=1)
    ratio = torch.exp(logprobs - old_logprobs)
    clipped = torch.clamp(ratio, 0.8, 1.2)
    surrogate = torch.min(ratio * advantages, clipped * advantages)
    kl = torch.exp(old_logprobs - logprobs) - (old_logprobs - logprobs) - 1
    loss = -(surrogate * mask).sum() / count + 0.1 * (kl * mask).sum() / count
    outside = ((ratio < 0.8) | (ratio > 1.2)) & (mask > 0)
    metrics = {
        "custom/kl:mean": (kl.detach() * mask).sum() / count,
        "custom/clip_fraction:mean": outside.float().sum() / count,
        "custom/tokens:sum": mask.sum(),
    }
    return loss, metrics


@loss()
def sequence_ratio(logprobs, old_logprobs, advantages, mask):
    """One ratio a sequence, over the tokens that are not masked."""
    log_ratio = torch.where(mask != 0, logprobs - old_logprobs, torch.zeros_like(logprobs))
    ratio = (log_ratio.sum() / mask.sum()).exp()
    return -(ratio.clip(0.5, 1.5) * advantages[mask.bool()]).sum(), {"custom/ratio:mean": ratio}


@loss()
def preference(logprobs, old_logprobs):
    """The first half against the second, as in DPO."""
    half = logprobs.shape[0] // 2
    margin = (logprobs - old_logprobs)[:half].sum() - (logprobs - old_logprobs)[half:].sum()
    accuracy = (margin > 0).float()
    return -F.logsigmoid(0.3 * margin), {"custom/accuracy:mean": accuracy}


@loss(rank=2)
def distillation(logprobs, wide):
    """Candidates for each token, weighted by a teacher."""
    teacher = F.softmax(wide, dim=-1)
    student = F.log_softmax(logprobs, dim=1)
    kl = (teacher * (torch.log(teacher) - student)).sum(-1)
    return kl.mean(), {"custom/kl:mean": kl.detach().mean(), "custom/max:mean": kl.max()}


@loss()
def in_place(logprobs, advantages):
    """`+=` on a variable that is not used again."""
    total = logprobs * advantages
    total += 1.5
    total *= advantages
    total -= logprobs
    total /= 2
    return total.sum(), {}


@loss()
def sizes(logprobs):
    """Arithmetic on sizes, as Python does it."""
    n = logprobs.shape[0]
    m = logprobs.size(-1) + logprobs.numel() * logprobs.ndim - logprobs.dim()
    x = logprobs / n + math.sqrt(n) - math.log(m, 2) + n // 4 + m % 4 - (-n) + 2**n + n**-1
    return x.sum() * (logprobs.size()[0] + math.ceil(n / 4)), {}


@loss()
def masks(logprobs, advantages, mask):
    """Truth values and the ways to make and use them."""
    keep = ~(advantages == 0) & (mask > 0) | (logprobs <= -2.5) ^ (logprobs >= -0.5)
    x = logprobs.masked_fill(~keep, 0.0) + torch.where(keep, logprobs, 1.0) * 2
    x = x + logprobs.where(advantages.ne(0).logical_not(), logprobs**2)
    x = x + torch.logical_or(keep, mask.bool()) * logprobs + torch.isnan(x).float()
    y = torch.masked_select(logprobs, keep).sum() + logprobs[advantages > 0].square().sum()
    some = torch.any(keep).float() + keep.all() + keep.sum() + torch.count_nonzero(advantages)
    return x.sum() + y + some * logprobs.mean(), {"custom/keep:sum": keep.sum()}


@loss(rank=2)
def parts(logprobs, wide):
    """Slices, indices and what puts tensors together."""
    x = logprobs[1:, 0] * 2 + logprobs[:-1, -1] + logprobs[..., 1][1:] + wide[None, 0, 1]
    y = torch.cat([logprobs[0], logprobs[-1]]) + torch.stack([logprobs[0, 1], logprobs[2, 2]]).sum()
    z = torch.cat([logprobs[:, :1], wide[:, :2] * logprobs[:, 1:]], dim=1).cumsum(0)
    w = torch.stack([logprobs, wide * logprobs], dim=-1).flatten(1).diff(dim=-1)
    v = logprobs.T.reshape(-1)[::4].flip(0) + logprobs.permute(1, 0).transpose(0, 1).sum()
    u = logprobs.unsqueeze(0).squeeze(0).view(3, -1).roll(1, 0)[:, 2:].expand(3, 4).sum()
    first, second = logprobs.chunk(2)[0], torch.split(logprobs, 3)[1]
    picked = torch.gather(logprobs, 1, wide.argmax(1).unsqueeze(-1)) ** 3
    t = picked + logprobs.unbind(1)[0].narrow(0, 1, 2).sum()
    total = x.pow(2).sum() + y.exp().sum() + (z * z).sum() + w.abs().sum() + (v * v).sum() + u
    return total + t.sum() + (first * second).sum() + logprobs.index_select(0, wide[0].abs().long()).sum(), {}


@loss(rank=2)
def reductions(logprobs, wide):
    """Everything that makes fewer numbers of many."""
    x = logprobs.sum(0).exp().sum() + logprobs.mean(dim=1, keepdim=True).square().sum()
    x = x + torch.sum(logprobs * wide, dim=(0, 1)) + logprobs.amax(0).sum() + torch.amin(logprobs)
    x = x + logprobs.max() * 2 + logprobs.min(dim=1).values.exp().sum() + torch.max(logprobs, 0)[0].sum()
    x = x + torch.logsumexp(logprobs, -1).sum() + torch.logsumexp(logprobs * 900, dim=(0, 1))
    x = x + logprobs.std() + logprobs.var(0).sum() + torch.std(logprobs, dim=1, unbiased=False).sum()
    x = x + torch.var(wide * logprobs, correction=0) + logprobs.norm() + torch.norm(logprobs, p=1)
    x = x + torch.linalg.vector_norm(logprobs, dim=1).sum() + torch.linalg.norm(logprobs[0])
    x = x + (logprobs.softmax(0) * wide).sum() + F.softmax(logprobs, -1).max()
    x = x + (logprobs[:, 0] @ wide).sum() + torch.dot(logprobs[:, 0], wide[:, 1])
    x = x + torch.matmul(logprobs, wide[0]).exp().sum() + (logprobs @ logprobs.T).mean()
    return x, {"custom/argmax:sum": torch.argmax(logprobs).float()}


@loss()
def elements(logprobs, old_logprobs, scale):
    """Every function of one element."""
    p = torch.exp(logprobs)
    x = torch.log(p + 1) + p.log2() + torch.log10(p) + p.log1p() + torch.expm1(logprobs) + torch.exp2(p)
    x = x + torch.sqrt(p) + p.rsqrt() + torch.reciprocal(p) + p.sigmoid() + torch.sigmoid(logprobs)
    x = x + torch.tanh(logprobs) + F.relu(logprobs + 1) + torch.relu(p) + F.logsigmoid(p)
    x = x + F.softplus(p) + F.softplus(logprobs, beta=2) + F.silu(logprobs) + F.leaky_relu(logprobs)
    x = x + F.elu(logprobs) + F.hardtanh(logprobs + 1) + torch.sin(p) + torch.cos(logprobs)
    x = x + torch.special.expit(logprobs) + abs(logprobs + 1) + torch.abs(logprobs) + (+p) - (-p)
    x = x + logprobs.clamp(max=-1) + logprobs.clamp_min(-1.0) + torch.clamp(p, old_logprobs.exp(), scale)
    x = x + torch.sign(logprobs) * p + p.round() + p.floor() + p.ceil() * logprobs.trunc()
    x = x + torch.nan_to_num(logprobs / 2) + logprobs.detach() * p + p.clone().contiguous()
    x = x + logprobs.to(torch.float64) + p.to(old_logprobs.dtype) + p.type_as(p)
    return (x * scale).sum(), {}


@loss()
def pairs(logprobs, old_logprobs, advantages, mask, scale):
    """Every function of two elements."""
    p, q = logprobs.exp(), old_logprobs.exp()
    x = p + q - 2 * p / q + (p * q) ** 2 + p**q + 2**p + (1 - p) + 3 / p + torch.pow(p, scale)
    x = x + torch.add(p, q, alpha=2) + p.sub(q) + torch.mul(p, q) + torch.div(p, q) + torch.rsub(p, 1)
    x = x + torch.maximum(p, q) + p.minimum(q) + torch.max(p, scale) + torch.logaddexp(logprobs, q)
    x = x + torch.xlogy(mask, p) + torch.lerp(p, q, 0.3) + (7 * p) % 2 + torch.remainder(9 * p, q)
    x = x + (q // 0.1) * p + torch.floor_divide(mask, 2) + mask % 2 + torch.div(p, q, rounding_mode="floor")
    x = x + F.mse_loss(p, q) + F.l1_loss(p, q, reduction="sum") + F.huber_loss(p, q, delta=0.1)
    x = x + F.smooth_l1_loss(logprobs, old_logprobs, reduction="none", beta=0.5)
    x = x + F.binary_cross_entropy_with_logits(logprobs, q) + F.kl_div(logprobs, q, reduction="batchmean")
    x = x + F.kl_div(logprobs, old_logprobs, reduction="none", log_target=True)
    return (x * advantages).sum(), {}


@loss()
def creations(logprobs, mask):
    """New tensors, which take part in the loss."""
    n = logprobs.shape[0]
    x = logprobs * torch.arange(n) + torch.zeros(n, device=logprobs.device) + torch.ones_like(logprobs)
    x = x * torch.full_like(logprobs, 2.0) + logprobs.new_zeros(n) + logprobs.new_ones(1, 1)[0]
    x = x + torch.full((n,), 0.5) * logprobs + logprobs.new_full((n,), 3) + torch.ones(n).cumsum(0)
    x = x + torch.zeros_like(mask, dtype=torch.float32) + torch.arange(1, n + 1, 1).double() / n * x
    return (x * x).mean(), {"custom/n:mean": torch.ones(n).sum()}


def entry(name: str, rank: int, function: Callable[..., Any]) -> dict[str, Any]:
    names = list(function.__code__.co_varnames[1 : function.__code__.co_argcount])
    ranks = {"logprobs": rank, **{name: RANKS[name] for name in names}}
    handle = trace_loss(function, ranks, "session")
    logprobs = LOGPROBS[rank].double().requires_grad_()
    inputs = [DATA[name].double() if DATA[name].is_floating_point() else DATA[name] for name in names]
    value, metrics = handle.graph(logprobs, *inputs)
    value.backward()
    numbers = {name: {"shape": list(x.shape), "data": x.flatten().tolist(),
                      "dtype": "float32" if x.is_floating_point() else "int64"}
               for name, x in [(name, DATA[name]) for name in names]}
    return {
        "name": name,
        "inputs": [item.model_dump() for item in handle.inputs],
        "graph": encode_graph(handle).model_dump(),
        "logprobs": {"shape": list(logprobs.shape), "data": LOGPROBS[rank].flatten().tolist()},
        "tensors": numbers,
        "loss": value.item(),
        "gradient": logprobs.grad.flatten().tolist(),
        "metrics": {key: float(metric) for key, metric in metrics.items()},
    }


if __name__ == "__main__":
    entries = [entry(*item) for item in LOSSES]
    # One entry a line: the file is for machines, and its changes should be readable.
    sys.stdout.write("[\n" + ",\n".join(json.dumps(item) for item in entries) + "\n]\n")
