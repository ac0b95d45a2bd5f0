"""The server: what it adds to the engine, and steps of reinforcement learning through it, from both SDKs."""

import tempfile
from contextlib import ExitStack

from .compare import Metric, Side, alternate, compare, single
from .process import ROOT, Server, Worker, lines_of, shown
from .progress import say
from .setup import QUICK, ROUNDS, STORIES

OPERATIONS, POLLS = (50, 100) if QUICK else (500, 2_000)
# Model: sequences in a group, and tokens of each.
STEPS = {"tinkrs/nano": (4, 8)} if QUICK else {"tinkrs/nano": (16, 32), STORIES: (16, 64)}

STEP = Metric("wall_s", "time of a step", "s", "wall")
CLIENT_CPU = Metric("cpu_s", "CPU of the client in a step", "s", "CPU")


def bench_side(tools, operations, polls):
    """The benchmark of the crate, server and clients in one process."""
    command = [tools.programs["server"], "--json", "--operations", operations, "--polls", polls]
    return Side("tinkrs-server", shown(command), lambda: lines_of(command)[-1])


def overhead(tools):
    side = bench_side(tools, OPERATIONS, POLLS)
    (rounds,) = alternate("overhead of the server", [side], ROUNDS)
    operation = f"forward_backward of three tokens on a tiny model, median of {OPERATIONS}"
    return [
        single(operation, Metric("http_ms", "through the server", "ms", "wall"), side, rounds),
        single(operation, Metric("engine_ms", "on the engine, in turns with it", "ms", "wall"), side, rounds),
        single(operation, Metric("added_ms", "the server adds (p50)", "ms", "wall"), side, rounds),
        single(f"{POLLS:,} polls that wait", Metric("polls_mib", "memory of both ends", "MiB", "memory"), side, rounds),
        single("start of `tinkrs serve` with its built-in model", Metric("start_program_ms", "until it answers", "ms", "wall"), side, rounds),
    ]


def reinforcement(tools, model, group, tokens):
    """Steps of both SDKs on one server, each with a training run of its own. Seeds are equal, so the work is too."""
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="tinkrs-bench-"))
        command = [tools.programs["tinkrs"], "serve", "--addr", "127.0.0.1:0"]
        if model == STORIES:
            command += ["--model", f"{model}={tools.models / model}"]
        server = stack.enter_context(Server([*command, "--data-dir", data]))
        prefix = f"{shown([*command, '--data-dir', '<new folder>'])} &  echo | TINKER_API_KEY=tml-bench TINKER_BASE_URL=<its URL> "
        programs = {"tinkrs": [tools.programs["load"]], "tinker (Python)": [tools.tinker, ROOT / "bench/client_python.py"]}
        sides = []
        for name, program in programs.items():
            say(f"starting {name}: rl on {model}")
            command = [*program, "rl", model, group, tokens]
            worker = stack.enter_context(Worker(command, TINKER_BASE_URL=server.url))
            worker.wait_until_ready()
            sides.append(Side(name, shown(command, prefix), worker.round))
        what = f"RL step through tinkrs serve, {model}: {group} × {tokens} tokens sampled, trained on, saved"
        # Small steps vary more, and cost little.
        return compare(what, sides, [STEP, CLIENT_CPU], ROUNDS if QUICK else 2 * ROUNDS)


def run(tools):
    rows = overhead(tools)
    for model, (group, tokens) in STEPS.items():
        rows += reinforcement(tools, model, group, tokens)
    return rows
