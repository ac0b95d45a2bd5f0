"""Custom-loss graphs, encoded by the SDK's own `encode_graph`.

The SDK encodes a graph that torch.fx traced. Torch is too large to install for a few
vectors, so this module stands in for the part of it that `encode_graph` looks at:
nodes, qualified names and the four kinds of constants. The encoding is the SDK's.
"""

from __future__ import annotations

import builtins
import math
import operator
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from tinker import types
from tinker.lib.public_interfaces.custom_loss import LossHandle, encode_graph

Loss = tuple[str, list[types.CustomLossInput], types.CustomLossGraph]


class Node:
    """Stands in for `torch.fx.Node`."""

    def __init__(self, op: str, name: str, target: Any, *args: Any, **kwargs: Any) -> None:
        self.op, self.name, self.target, self.args, self.kwargs = op, name, target, args, kwargs


class _Constant:
    """Stands in for `torch.dtype` and its like, which print as `torch.<name>`."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


Dtype, Device, Layout, MemoryFormat = (
    type(name, (_Constant,), {}) for name in ("dtype", "device", "layout", "memory_format")
)


def minimal_graph() -> Loss:
    """The shortest loss that passes the SDK's checks: minus the sum, no metrics."""
    logprobs = Node("placeholder", "logprobs", "logprobs")
    total = Node("call_method", "sum_1", "sum", logprobs)
    loss = Node("call_function", "neg", operator.neg, total)
    output = Node("output", "output", "output", (loss, {}))
    return _encode("negative_sum", {"logprobs": 1}, [logprobs, total, loss, output])


def encoded_graph() -> Loss:
    """Every node kind that the SDK sends and every form of encoded value."""
    logprobs = Node("placeholder", "logprobs", "logprobs")
    weights = Node("placeholder", "weights", "weights")
    scale = Node("placeholder", "scale", "scale")
    values = Node(
        "call_function",
        "values",
        _torch_function("full_like"),
        logprobs,
        None,
        True,
        7,
        -2.5,
        "text",
        [1, [2.0, None], weights],
        dtype=Dtype("torch.float32"),
        device=Device("cpu"),
        layout=Layout("torch.strided"),
        memory_format=MemoryFormat("torch.contiguous_format"),
    )
    nodes = [
        logprobs,
        weights,
        scale,
        Node("call_function", "shape", getattr, logprobs, "shape"),
        Node("call_function", "log", math.log, 2),
        values,
        Node("call_method", "clamp", "clamp", values, min=-math.inf, max=math.inf),
        Node("call_method", "nan_to_num", "nan_to_num", values, math.nan),
        Node("call_function", "item", operator.getitem, values, (slice(None, -1, 2), ..., None)),
        Node("call_function", "first", operator.getitem, values, slice(1, None, None)),
        Node("call_method", "options", "new_zeros", weights, {"size": [1, (2, 3)], "none": None}),
        Node("call_function", "exp", _torch_function("exp"), values),
    ]
    loss = Node("call_function", "mul", operator.mul, nodes[-1], scale)
    metrics = {"custom/loss:sum": loss, "custom/exp.mean/x-1:mean": nodes[-1]}
    nodes += [loss, Node("output", "output", "output", (loss, metrics))]
    return _encode("every_value", {"logprobs": 2, "weights": 1, "scale": 0}, nodes)


def _encode(name: str, ranks: dict[str, Any], nodes: list[Node]) -> Loss:
    inputs = [types.CustomLossInput(name=key, rank=rank) for key, rank in ranks.items()]
    graph: Any = SimpleNamespace(graph=SimpleNamespace(nodes=nodes))
    handle = LossHandle(name=name, inputs=tuple(inputs), session_id="session-1", graph=graph)
    with mock.patch.dict(sys.modules, _torch_modules()):
        return name, inputs, encode_graph(handle)


def _torch_function(name: str) -> Any:
    def function() -> None: ...

    function.__name__ = name
    function.__module__ = "torch"
    return function


def _torch_modules() -> dict[str, ModuleType]:
    torch, fx, node = ModuleType("torch"), ModuleType("torch.fx"), ModuleType("torch.fx.node")
    torch.dtype, torch.device, torch.layout = Dtype, Device, Layout
    torch.memory_format, torch.fx, fx.Node, fx.node = MemoryFormat, fx, Node, node
    node._get_qualified_name = _qualified_name
    return {"torch": torch, "torch.fx": fx, "torch.fx.node": node}


def _qualified_name(function: Any) -> str:
    """What torch.fx calls a function: built-ins by their bare name, others with their module."""
    name = function.__name__
    return name if getattr(builtins, name, None) is function else f"{function.__module__}.{name}"
