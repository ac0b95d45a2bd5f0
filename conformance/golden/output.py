"""Writing vectors: sorted keys, two spaces, a newline at the end, no NaN literals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """`value` as plain JSON: non-finite floats become "nan", "inf" and "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(plain(value), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_bytes(path, text.encode() + b"\n")


def write_bytes(path: Path, data: bytes) -> None:
    # Two cases with one name would silently lose a vector.
    if path.exists():
        raise FileExistsError(f"two vectors are called {path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
