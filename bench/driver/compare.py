"""Turns taken by the sides of a comparison, and what comes out of them."""

import statistics
from dataclasses import dataclass

from .progress import say


@dataclass
class Metric:
    """A number of a round: where it is, what it is called, and which way is better."""

    key: str
    label: str
    unit: str
    clock: str  # "CPU" or "wall" for times, "memory" for sizes
    better: str = "lower"


@dataclass
class Side:
    """One implementation at one piece of work: `work` does a round and returns its numbers."""

    name: str
    command: str
    work: object


def alternate(what, sides, rounds):
    """Lets the sides take turns. Returns the rounds of each, in the order of `sides`."""
    results = [[] for _ in sides]
    for number in range(rounds):
        for side, done in zip(sides, results):
            say(f"{what}: round {number + 1}/{rounds}, {side.name}")
            done.append(side.work())
    return results


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def row(what, metric, sides, results):
    """Compares two sides by one number. The ratio says how many times as good the first one is, pair by pair."""
    ours, theirs = ([numbers[metric.key] for numbers in rounds] for rounds in results)
    ratios = [b / a if metric.better == "lower" else a / b for a, b in zip(ours, theirs) if a and b]
    return {
        "what": what, "metric": metric.label, "unit": metric.unit, "clock": metric.clock, "better": metric.better,
        "sides": [{"name": side.name, "command": side.command, **spread(values), "values": values}
                  for side, values in zip(sides, (ours, theirs))],
        "ratio": spread(ratios) if ratios else None,
    }


def single(what, metric, side, rounds):
    """Reports a number that has no other side, or has it inside the program that was run."""
    values = [numbers[metric.key] for numbers in rounds]
    return {"what": what, "metric": metric.label, "unit": metric.unit, "clock": metric.clock, "better": metric.better,
            "sides": [{"name": side.name, "command": side.command, **spread(values), "values": values}], "ratio": None}


def compare(what, sides, metrics, rounds):
    """Lets two sides take turns, and compares them by each metric."""
    results = alternate(what, sides, rounds)
    return [row(what, metric, sides, results) for metric in metrics]
