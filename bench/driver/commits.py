"""usage: bench/compare COMMIT [client|engine|server]...

Builds the programs of a commit and of this checkout, lets them take turns, and prints a table. TINKRS_BENCH_ROUNDS (5)
changes how often; TINKRS_BENCH_QUICK=1 makes one small round on a debug build.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack

from . import client, engine, server
from .compare import Metric, Side, compare
from .process import ROOT, Failed, Server, Worker, lines_of
from .progress import say
from .setup import CACHE, QUICK, ROUNDS, STORIES, build, call, models

SECTIONS = ["client", "engine", "server"]


def programs_of(commit, sections):
    """Builds the programs of a commit in a work tree of its own."""
    commit = call(["git", "rev-parse", "--verify", f"{commit}^{{commit}}"]).strip()
    tree = CACHE / "commits" / commit
    if not tree.exists():
        call(["git", "worktree", "add", "--detach", tree, commit])
    # A target folder of its own, or each build would replace the other's programs.
    return build(sections, tree, env={**os.environ, "CARGO_TARGET_DIR": str(tree / "target")})


def on_null_server(both, options, *arguments):
    """Our client of each commit against one server that answers at once."""
    def work(programs, url):
        return lambda: lines_of([programs["load"], *arguments], TINKER_BASE_URL=url)[-1]

    stack = ExitStack()
    url = stack.enter_context(Server([both["after"]["null_server"], *options])).url
    return stack, [Side(name, "", work(programs, url)) for name, programs in both.items()]


def client_rows(both):
    rows = []
    for in_flight, n in client.SAMPLES.items():
        stack, sides = on_null_server(both, [], "sample", n, client.PROMPT, in_flight)
        with stack:
            metrics = [client.CPU, client.RATE] + [client.MEMORY] * (in_flight == 2_000)
            rows += compare(f"{n:,} samples, {in_flight:,} in flight", sides, metrics, ROUNDS)
    stack, sides = on_null_server(both, [], "train", client.STEPS, client.DATUMS, client.TOKENS)
    with stack:
        metric = Metric("cpu_ns_per_token", "CPU a token", "ns", "CPU")
        rows += compare(f"{client.STEPS} training steps of {client.DATUMS} × {client.TOKENS:,} tokens", sides, [metric], ROUNDS)
    return rows


def engine_rows(both):
    rows, folder = [], models()
    for model, pieces in (engine.QUICK_WORK if QUICK else engine.WORK).items():
        for work in pieces:
            with ExitStack() as stack:
                sides = []
                for name, programs in both.items():
                    worker = stack.enter_context(Worker([programs["measure"], folder / model, *work], **engine.THREADS))
                    worker.wait_until_ready()
                    sides.append(Side(name, "", worker.round))
                rows += compare(engine.title(model, *work), sides, [engine.RATE, engine.MEMORY], ROUNDS)
    return rows


def server_rows(both):
    def overhead(programs):
        command = [programs["server"], "--json", "--operations", server.OPERATIONS, "--polls", server.POLLS]
        return lambda: lines_of(command)[-1]

    sides = [Side(name, "", overhead(programs)) for name, programs in both.items()]
    metrics = [Metric("added_ms", "the server adds (p50)", "ms", "wall"),
               Metric("polls_mib", "memory of waiting polls, both ends", "MiB", "memory"),
               Metric("start_program_ms", "`tinkrs serve` until it answers", "ms", "wall")]
    rows = compare("the server itself", sides, metrics, ROUNDS)
    for model, (group, tokens) in server.STEPS.items():
        with ExitStack() as stack:
            sides = [rl_side(stack, name, programs, model, group, tokens) for name, programs in both.items()]
            rows += compare(f"RL step, {model}: {group} × {tokens} tokens", sides, [server.STEP, server.CLIENT_CPU, server.SERVER_MEMORY],
                            ROUNDS if QUICK else 2 * ROUNDS)
    return rows


def rl_side(stack, name, programs, model, group, tokens):
    """Client and server of one commit."""
    data = stack.enter_context(tempfile.TemporaryDirectory(prefix="tinkrs-bench-"))
    more = ["--model", f"{model}={models() / model}"] if model == STORIES else []
    command = [programs["tinkrs"], "serve", "--addr", "127.0.0.1:0", *more, "--data-dir", data]
    running = stack.enter_context(Server(command))
    worker = stack.enter_context(Worker([programs["load"], "rl", model, group, tokens], TINKER_BASE_URL=running.url))
    worker.wait_until_ready()
    return Side(name, "", lambda: {**worker.round(), "server_mib": running.peak_mib()})


# A peak of memory differs by a few pages between builds, more than between rounds of one build.
LEAST = 0.01


def verdict(row):
    """Compares the median of this checkout with the worst round of the commit."""
    after, before = row["sides"]
    if row["better"] == "lower":
        return after["median"] > before["max"] * (1 + LEAST)
    return after["median"] < before["min"] * (1 - LEAST)


def cell(side):
    return f"{side['median']:.4g} ({side['min']:.4g}–{side['max']:.4g})"


def table(rows):
    lines = ["| what | number | before | after | ratio | |", "|---|---|---|---|---|---|"]
    for row in rows:
        after, before = row["sides"]
        ratio = f"{row['ratio']['median']:.2f}" if row["ratio"] else "–"
        lines.append(f"| {row['what']} | {row['metric']}, {row['unit']} | {cell(before)} | {cell(after)} | {ratio} | {'worse' if verdict(row) else ''} |")
    return "\n".join(lines)


def main():
    commit, *sections = sys.argv[1:] or sys.exit(__doc__)
    sections = sections or SECTIONS
    if any(section not in SECTIONS for section in sections):
        sys.exit(__doc__)
    try:
        both = {"after": build(sections), "before": programs_of(commit, sections)}
        rows = []
        for section, measure in (("client", client_rows), ("engine", engine_rows), ("server", server_rows)):
            if section in sections:
                say(f"section {section}")
                rows += measure(both)
    except (Failed, subprocess.SubprocessError) as failure:
        sys.exit(f"bench/compare: {failure}")
    print(table(rows))
    worse = sum(map(verdict, rows))
    print(f"\n{len(rows)} numbers, {worse} worse than every round of {commit}. A ratio above 1 means better than before.")
    sys.exit(worse > 0)


if __name__ == "__main__":
    main()
