"""Numbers that a program has computed, shown beside those of the server."""

from __future__ import annotations

import json
import math
import os
import urllib.error
import urllib.request
import warnings
from collections.abc import Mapping
from typing import Any


def log_metrics(
    run: Any, step: int, metrics: Mapping[str, float], *, url: str | None = None, key: str | None = None
) -> None:
    """Reports what was measured at a step, such as a reward, to the server that the run is on.

    :param run: a training client of the official SDK, or the id of its run.
    :param step: the step; the server counts those of the optimizer from 1.
    :param metrics: numbers by their names. A metric that was reported of the step before is replaced. One that is not
        finite is left out with a ``RuntimeWarning``: a loss that is no number is no reason to end a program.
    :param url: the server. That of the client unless given, else ``TINKER_BASE_URL``.
    :param key: the key. That of the client unless given, else ``TINKER_API_KEY``.

    A server that takes no reports, such as the hosted one, is left alone.
    """
    holder = getattr(run, "holder", None)
    url = url or getattr(holder, "_base_url", None) or os.environ["TINKER_BASE_URL"]
    key = key or getattr(holder, "_api_key", None) or os.environ["TINKER_API_KEY"]
    address = f"{str(url).rstrip('/')}/api/v1/training_runs/{getattr(run, 'model_id', run)}/metrics"
    body = json.dumps({"step": step, "metrics": _finite(metrics)})
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    try:
        urllib.request.urlopen(urllib.request.Request(address, body.encode(), headers), timeout=60).close()
    except urllib.error.HTTPError as error:
        if error.code not in (404, 405, 501):
            raise ValueError(_detail(error)) from None


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    found = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"the metric {name!r} is {value!r}: expected a number") from None
        if math.isfinite(number):
            found[name] = number
        else:
            warnings.warn(f"the metric {name!r} is {number}, and left out", RuntimeWarning, stacklevel=3)
    return found


def _detail(error: urllib.error.HTTPError) -> str:
    """What a server says of a refusal. A proxy in front of it says something else."""
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, KeyError, TypeError):
        return str(error)
