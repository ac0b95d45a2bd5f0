"""The client beside the official SDK and a bare hyper loop, all against a server that answers at once."""

from .compare import Metric, Side, alternate, compare, row
from .process import ROOT, Server, lines_of, shown
from .setup import QUICK, ROUNDS

PROMPT = 1_000
SAMPLES = {1: 50, 400: 400, 2_000: 400} if QUICK else {1: 500, 400: 2_000, 2_000: 2_000}
STEPS, DATUMS, TOKENS = (2, 16, 500) if QUICK else (10, 64, 2_000)
PYTHON_PROGRAM = ROOT / "bench/client_python.py"

CPU = Metric("cpu_us_per_op", "CPU a sample", "µs", "CPU")
RATE = Metric("per_s", "samples a second", "1/s", "wall", "higher")
MEMORY = Metric("rss_mib", "peak memory of the process", "MiB", "memory")
WALL = Metric("wall_s", "time for all", "s", "wall")


def sides(tools, server, server_options, *arguments, names=("tinkrs", "tinker (Python)")):
    """The same work on our client, on the official SDK and, if it is among the names, in a bare loop."""
    load = tools.programs["load"]
    mode, *rest = arguments
    commands = {"tinkrs": [load, mode, *rest], "tinker (Python)": [tools.tinker, PYTHON_PROGRAM, mode, *rest],
                "bare hyper loop": [load, "raw", *rest]}
    prefix = f"{shown([tools.programs['null_server'], *server_options])} &  TINKER_API_KEY=tml-bench TINKER_BASE_URL=<its URL> "

    def work(command):
        return lambda: lines_of(command, TINKER_BASE_URL=server.url)[-1]

    return [Side(name, shown(commands[name], prefix), work(commands[name])) for name in names]


def run(tools):
    rows = []
    with Server([tools.programs["null_server"]]) as server:
        for in_flight, n in SAMPLES.items():
            what = f"{n:,} samples, {in_flight:,} in flight"
            turns = sides(tools, server, [], "sample", n, PROMPT, in_flight,
                          names=("tinkrs", "tinker (Python)", "bare hyper loop"))
            ours, theirs, bare = alternate(what, turns, ROUNDS)
            metrics = [CPU, RATE] + [MEMORY] * (in_flight == 2_000)
            rows += [row(what, metric, turns[:2], [ours, theirs]) for metric in metrics]
            rows += [row(what, metric, [turns[0], turns[2]], [ours, bare]) for metric in (CPU, RATE)]

        what = f"{STEPS} training steps of {DATUMS} × {TOKENS:,} tokens, pipelined"
        rows += compare(what, sides(tools, server, [], "train", STEPS, DATUMS, TOKENS),
                        [Metric("cpu_ns_per_token", "CPU a token", "ns", "CPU"),
                         Metric("mtok_per_s", "throughput", "million tokens/s", "wall", "higher")], ROUNDS)

    n, latency = (200, 200) if QUICK else (2_000, 1_000)
    options = ["--latency-ms", latency]
    with Server([tools.programs["null_server"], *options]) as server:
        what = f"{n:,} samples in flight, server latency {latency:,} ms"
        rows += compare(what, sides(tools, server, options, "sample", n, PROMPT, n), [MEMORY, WALL, CPU], ROUNDS)
    return rows
