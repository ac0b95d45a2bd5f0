"""Numbers that a program has computed, shown beside those of the server."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any


def log_metrics(
    run: Any, step: int, metrics: Mapping[str, float], *, url: str | None = None, key: str | None = None
) -> None:
    """Reports what was measured at a step, such as a reward, to the server that the run is on.

    :param run: a training client of the official SDK, or the id of its run.
    :param step: the step; the server counts those of the optimizer from 1.
    :param metrics: finite numbers by their names. A metric that was reported of the step before is replaced.
    :param url: the server. That of the client unless given, else ``TINKER_BASE_URL``.
    :param key: the key. That of the client unless given, else ``TINKER_API_KEY``.

    A server that takes no reports, such as the hosted one, is left alone.
    """
    holder = getattr(run, "holder", None)
    url = url or getattr(holder, "_base_url", None) or os.environ["TINKER_BASE_URL"]
    key = key or getattr(holder, "_api_key", None) or os.environ["TINKER_API_KEY"]
    address = f"{str(url).rstrip('/')}/api/v1/training_runs/{getattr(run, 'model_id', run)}/metrics"
    body = json.dumps({"step": step, "metrics": {name: float(value) for name, value in metrics.items()}}, allow_nan=False)
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    try:
        urllib.request.urlopen(urllib.request.Request(address, body.encode(), headers), timeout=60).close()
    except urllib.error.HTTPError as error:
        if error.code not in (404, 405, 501):
            raise ValueError(json.loads(error.read() or b"{}").get("detail", str(error))) from None
