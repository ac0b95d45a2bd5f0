"""Writes three steps of `torch.optim.AdamW` on gradients that are given, with Tinker's defaults and variations.

Each case of `adamw.json` has its settings, the parameters (two tensors, as flat lists) before the first step, the
gradients of each step, and after each step the parameters and the gradient norm before clipping.
"""

import json
from pathlib import Path

import torch

DEFAULTS = dict(learning_rate=1e-4, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=0.0)
CASES = {
    "defaults": [{}] * 3,
    "weight decay": [dict(weight_decay=0.1, learning_rate=1e-2)] * 3,
    "clipping": [dict(grad_clip_norm=1.0, learning_rate=1e-2)] * 3,
    "clipping that never bites": [dict(grad_clip_norm=1e6)] * 3,
    "large epsilon": [dict(eps=1e-2, learning_rate=1e-2)] * 3,
    "settings that change every step": [
        dict(learning_rate=1e-2), dict(learning_rate=3e-3, beta1=0.8, weight_decay=0.05),
        dict(learning_rate=1e-3, beta2=0.99, grad_clip_norm=0.5),
    ],
}
SIZES = (5, 3)


def run(steps):
    torch.manual_seed(7)
    parameters = [torch.randn(size).requires_grad_() for size in SIZES]
    optimizer = torch.optim.AdamW(parameters, lr=0.0)
    case = {"before": [p.tolist() for p in parameters], "steps": []}
    for changes in steps:
        settings = DEFAULTS | changes
        optimizer.param_groups[0].update(lr=settings["learning_rate"], betas=(settings["beta1"], settings["beta2"]),
                                         eps=settings["eps"], weight_decay=settings["weight_decay"])
        gradients = [torch.randn(size) for size in SIZES]
        # A gradient that is exactly zero must move nothing, whatever epsilon is.
        gradients[0][0] = 0.0
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, settings["grad_clip_norm"] or float("inf"))
        optimizer.step()
        case["steps"].append({"settings": settings, "gradients": [g.tolist() for g in gradients], "norm": norm.item(),
                              "after": [p.tolist() for p in parameters]})
    return case


if __name__ == "__main__":
    cases = {name: run(steps) for name, steps in CASES.items()}
    (Path(__file__).parent / "adamw.json").write_text(json.dumps(cases, indent=1) + "\n")
