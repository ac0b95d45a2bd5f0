"""Faults that a server injects, so that a training loop meets them in a test and not in production."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FaultRules = Mapping[str, Any]
"""A document of faults as ``tinkrs serve --faults`` reads it: ``{"seed": 7, "rules": [...]}``."""

# Answered by what only costs time to repeat: the official SDK retries these. An operation that was done keeps
# its number, so a lost answer (`cut`, `reset`) does not run it twice.
_KINDS: dict[str, dict[str, Any]] = {
    "rate_limit": {"fault": 429, "retry_after": 0.05},
    "server_error": {"fault": 503, "retry_after": 0.05},
    "cut": {"fault": "cut"},
    "reset": {"fault": "reset", "after": True},
}
# What a training loop calls over and over. A session is created once, and losing that is another test.
_ENDPOINTS = ("asample", "forward", "forward_backward", "optim_step", "retrieve_future")


def fault_rules(
    *,
    seed: int = 0,
    rules: Sequence[Mapping[str, Any]] = (),
    endpoints: Sequence[str] = _ENDPOINTS,
    **probabilities: float,
) -> FaultRules:
    """Returns the rules for faults that strike by chance.

    ``rate_limit=0.2`` answers a fifth of the requests with 429, ``server_error`` with 503; ``cut`` sends half of an
    answer, ``reset`` resets the connection after the request was done. They strike ``endpoints``: those that a
    training loop calls over and over, unless given. ``rules`` are rules as the server documents them.
    """
    unknown = sorted(set(probabilities) - set(_KINDS))
    if unknown:
        raise ValueError(f"unknown fault {unknown[0]!r}: expected {', '.join(_KINDS)}, rules, endpoints or seed")
    for name, given in [("endpoints", endpoints), ("rules", rules)]:
        if isinstance(given, (str, Mapping)):
            raise ValueError(f"{name} is {given!r}: expected a list")
    made: list[Mapping[str, Any]] = []
    for kind, probability in probabilities.items():
        # What comes from a marker has no types.
        if isinstance(probability, bool) or not isinstance(probability, (int, float)) or not 0 <= probability <= 1:
            raise ValueError(f"{kind} is {probability!r}: expected a probability from 0 to 1")
        for endpoint in endpoints:
            made.append({"endpoint": endpoint, "probability": probability, **_KINDS[kind]})
    return {"seed": seed, "rules": [*rules, *made]}
