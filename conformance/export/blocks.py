"""The blocks of two GGUF files, tensor by tensor."""

import dataclasses

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


@dataclasses.dataclass
class Found:
    """What was found of one storage format."""

    tensors: int = 0
    equal: int = 0
    # Sums of squares over all tensors.
    ours: float = 0.0
    theirs: float = 0.0
    # Whether the format leaves a choice.
    is_searched: bool = False

    def is_right(self):
        if self.is_searched:
            # Less noise than llama.cpp's, or little more.
            return self.ours <= 1.02 * self.theirs
        return self.equal == self.tensors

    @property
    def noise(self):
        return self.ours / self.theirs if self.theirs else 1.0


def tensors(path):
    return {tensor.name: tensor for tensor in GGUFReader(path).tensors}


def compare_files(exact, ours, theirs):
    """Returns what was found for each format of `theirs`."""
    exact, ours, theirs = tensors(exact), tensors(ours), tensors(theirs)
    found = {}
    if set(ours) != set(theirs):
        raise RuntimeError(f"tensors differ: {sorted(set(ours) ^ set(theirs))}")
    for name, other in theirs.items():
        mine = ours[name]
        if mine.tensor_type != other.tensor_type or list(mine.shape) != list(other.shape):
            raise RuntimeError(f"{name}: {mine.tensor_type.name} {mine.shape}, llama.cpp has {other.tensor_type.name} {other.shape}")
        kind = other.tensor_type.name
        here = found.setdefault(kind, Found(is_searched=kind.endswith("_K")))
        here.tensors += 1
        here.equal += bool(np.array_equal(mine.data, other.data))
        values = np.asarray(exact[name].data, dtype=np.float32)
        for who, tensor in (("ours", mine), ("theirs", other)):
            read = dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
            error = float(np.square((read - values).astype(np.float64)).sum())
            setattr(here, who, getattr(here, who) + error)
    return found
