"""Writes gguf/written.safetensors: numbers, and the blocks that the `gguf` package (0.19.0) makes of them.

    python -m venv venv && venv/bin/pip install gguf==0.19.0 safetensors==0.8.0
    venv/bin/python crates/engine/tests/reference/gguf_written.py
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import quants
from safetensors.numpy import save_file

random = np.random.default_rng(7)
values = random.standard_normal((16, 256)).astype(np.float32) * 0.04
values[3] *= 50
values[5, ::37] *= 8
values[6, :32] = 0
tensors = {"values": values}
for name, kind in [("q8_0", Kind.Q8_0), ("q5_0", Kind.Q5_0), ("bf16", Kind.BF16)]:
    tensors[name] = quants.quantize(values, kind).view(np.uint8)
tensors["f16"] = values.astype(np.float16).view(np.uint8)
save_file(tensors, Path(__file__).parent / "gguf" / "written.safetensors")
