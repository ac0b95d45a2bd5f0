"""Encoding a pass and decoding its output, beside a plain copy of the bytes and the conversions of the official SDK."""

from .compare import Metric, Side, alternate, row
from .process import ROOT, lines_of, shown
from .setup import QUICK, ROUNDS

# As in the benchmark of the crate.
DATUMS, TOKENS = 256, 2_048
TURNS, PYTHON_TURNS = (2, 2) if QUICK else (201, 7)


def run(tools):
    ours = [tools.programs["wire"], "--json", "--turns", TURNS]
    theirs = [tools.tinker, ROOT / "bench/client_python.py", "wire", DATUMS, TOKENS, PYTHON_TURNS]

    def work(command):
        return lambda: {line["what"]: line for line in lines_of(command)}

    turns = [Side("tinkrs", shown(ours), work(ours)), Side("tinker (Python)", shown(theirs), work(theirs))]
    copy = Side("plain copy", shown(ours), None)
    measured, reference = alternate("wire", turns, ROUNDS)
    rows = []
    for what in ["encode the request", "decode the output"]:
        mine, python = [turn[what] for turn in measured], [turn[what] for turn in reference]
        # The benchmark times the copy in turns with the work.
        copies = [{"ns_per_token": turn["copy_ns_per_token"]} for turn in mine]
        title = f"{what} of a pass of {DATUMS} × {TOKENS:,} tokens"
        metric = Metric("ns_per_token", "fastest turn, a token", "ns", "wall")
        rows.append(row(title, metric, [turns[0], turns[1]], [mine, python]))
        rows.append(row(title, metric, [turns[0], copy], [mine, copies]))
    return rows
