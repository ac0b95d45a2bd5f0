"""How cost grows when the work grows tenfold: the exponent of a power law through two measured points.

An exponent of 1 is proportional, 0 does not grow at all, 2 is quadratic.
"""

import math
import statistics
from contextlib import ExitStack

from .client import PROMPT, sides as client_sides
from .compare import Metric, alternate, spread
from .engine import workers
from .process import Server
from .server import SERVER_MEMORY, bench_side, serve, worker
from .setup import MINIMIND, QUICK, ROUNDS, STORIES

TIME = Metric("wall_s", "time", "s", "wall")
CPU = Metric("cpu_s", "CPU", "s", "CPU")
MEMORY = Metric("rss_mib", "peak memory of the process", "MiB", "memory")
TEN = 2 if QUICK else 10
MODEL = STORIES if QUICK else MINIMIND


def growth(what, variable, sizes, sides, results, metrics):
    """One row for each side and metric. `sides` and `results` have the small size first, then the large one."""
    half, rows = len(sides) // 2, []
    for index in range(half):
        small, large = (results[index], results[index + half])
        for metric in metrics:
            points = [[numbers[metric.key] for numbers in rounds] for rounds in (small, large)]
            exponents = [math.log(b / a) / math.log(sizes[1] / sizes[0]) for a, b in zip(*points) if a > 0 and b > 0]
            rows.append({
                "what": what, "variable": variable, "metric": metric.label, "unit": metric.unit, "clock": metric.clock,
                "side": sides[index].name.split(" (")[0] if "torch" in sides[index].name else sides[index].name,
                "points": [{"at": size, "median": statistics.median(values), "values": values, "command": side.command}
                           for size, values, side in zip(sizes, points, (sides[index], sides[index + half]))],
                "exponent": spread(exponents) if exponents else None,
            })
    return rows


def of_engine(tools, what, variable, sizes, work):
    """`work` says what to do at a size."""
    with ExitStack() as stack:
        sides = [side for size in sizes for side in workers(stack, tools, MODEL, *work(size))]
        results = alternate(f"{what}, growing", sides, ROUNDS)
        return growth(f"{MODEL}: {what}", variable, sizes, sides, results, [TIME, MEMORY])


def of_client(tools):
    sizes = (20, 20 * TEN) if QUICK else (200, 2_000)
    with Server([tools.programs["null_server"]]) as server:
        sides = [side for size in sizes for side in client_sides(tools, server, [], "sample", size, PROMPT, size)]
        results = alternate("samples in flight, growing", sides, ROUNDS)
        return growth("client: samples, all at once", "in flight", sizes, sides, results, [CPU, MEMORY])


def of_polls(tools):
    sizes = (50, 50 * TEN) if QUICK else (200, 2_000)
    sides = [bench_side(tools, 50, size) for size in sizes]
    results = alternate("waiting polls, growing", sides, ROUNDS)
    memory = Metric("polls_mib", "memory of both ends", "MiB", "memory")
    return growth("server: polls that wait", "in flight", sizes, sides, results, [memory])


def of_adapters(tools):
    """Through the server: what is sampled stays the same, and is shared by more adapters."""
    sizes, (samples, tokens) = (2, 2 * TEN), (4, 2) if QUICK else (20, 24)
    with ExitStack() as stack:
        sides = [worker(stack, "tinkrs serve", *serve(stack, tools, MODEL), tools.programs["load"], "adapters", MODEL, size,
                        samples, tokens) for size in sizes]
        results = alternate("adapters of the server, growing", sides, ROUNDS)
        what = f"{MODEL}, through the server: {samples} samples of {tokens} tokens"
        return growth(what, "adapters", sizes, sides, results, [TIME, SERVER_MEMORY])


def run(tools):
    rows = []
    length, tokens, few = (8, 4, 2) if QUICK else (64, 40, 24)
    pieces = [
        (f"a LoRA step of sequences of {length} tokens", "batch", 2, lambda size: ("train", size, length, 1)),
        ("a LoRA step of 4 sequences", "length", length, lambda size: ("train", 4, size, 1)),
        (f"sampling {tokens} tokens", "batch", 2, lambda size: ("sample", size, tokens)),
        ("sampling for a batch of 4", "length", tokens, lambda size: ("sample", 4, size)),
        (f"sampling {few} tokens for a batch of 20", "adapters", 2, lambda size: ("sample", 20, few, size)),
    ]
    # One of each kind shows that it works.
    for what, variable, start, work in pieces[::4] if QUICK else pieces:
        rows += of_engine(tools, what, variable, (start, start * TEN), work)
    return rows + of_adapters(tools) + of_client(tools) + of_polls(tools)
