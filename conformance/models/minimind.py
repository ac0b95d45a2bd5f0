"""MiniMind2-Small, a chat model, from an int8 ONNX export. The graph says which weights are whose; it is not run."""

import json
import shutil

import numpy as np
import onnx
from onnx import numpy_helper

from folder import write_model


def write(package, folder):
    source = package / "package"
    graph = onnx.load(source / "onnx/model_quantized.onnx").graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def widened(name):
        base = name.removesuffix("_quantized")
        numbers, zero, scale = (arrays[key].astype(np.float32) for key in (name, f"{base}_zero_point", f"{base}_scale"))
        return (numbers - zero) * scale

    weights = {"model.embed_tokens.weight": widened("model.embed_tokens.weight_quantized")}
    for node in graph.node:
        if node.op_type == "MatMulInteger" and "lm_head" not in node.name:
            path = node.name.strip("/").split("/")[:-1]
            weights[".".join(path) + ".weight"] = widened(node.input[1]).T
    weights.update({name: array for name, array in arrays.items() if name.endswith("norm.weight")})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder)
    write_model(folder, json.loads((source / "config.json").read_text()), weights, np.float32)
