"""A Python caller that draws many samples: with `tinkrs.sdk` and with the official SDK, which it stands in for."""

from .compare import Metric, Side, compare
from .process import ROOT, Server, lines_of, shown
from .setup import QUICK, ROUNDS

SAMPLES, PROMPT = (200, 1_000) if QUICK else (2_000, 1_000)
PROGRAM = ROOT / "bench/sampling_python.py"


def run(tools):
    with Server([tools.programs["null_server"]]) as server:
        prefix = f"{shown([tools.programs['null_server']])} &  PYTHONPATH=python/src TINKER_API_KEY=tml-bench TINKER_BASE_URL=<its URL> "

        def side(name, package):
            command = [tools.tinker, PROGRAM, package, SAMPLES, PROMPT]
            env = {"TINKER_BASE_URL": server.url, "PYTHONPATH": str(tools.python_package)}
            return Side(name, shown(command, prefix), lambda: lines_of(command, **env)[-1])

        what = f"{SAMPLES:,} samples of a Python caller, all in flight"
        return compare(what, [side("tinkrs.sdk", "tinkrs"), side("tinker (Python)", "tinker")],
                       [Metric("cpu_us_per_op", "CPU a sample", "µs", "CPU"), Metric("wall_s", "time for all", "s", "wall"),
                        Metric("rss_mib", "peak memory of the process", "MiB", "memory")], ROUNDS)
