"""The server: what it adds to the engine, and steps of reinforcement learning through it, beside other clients and servers."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from .compare import Metric, Side, alternate, compare, single
from .process import ROOT, Server, Worker, lines_of, shown
from .progress import say
from .setup import QUICK, ROUNDS, STORIES, call

OPERATIONS, POLLS = (50, 100) if QUICK else (500, 2_000)
NANO = "tinkrs/nano"
# Model: sequences in a group, and tokens of each.
STEPS = {NANO: (4, 8)} if QUICK else {NANO: (16, 32), STORIES: (16, 64)}
NEW = "<new folder>"

STEP = Metric("wall_s", "time of a step", "s", "wall")
SERVER_MEMORY = Metric("server_mib", "peak memory of the server", "MiB", "memory")
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


def sharing(tools):
    """A sample of one key beside another key's pass. Its program takes turns with and without the samples itself."""
    slices, rounds = (2, 1) if QUICK else (24, 3)
    command = [tools.programs["server"], "--json", "--sharing", tools.models / STORIES, "--slices", slices, "--rounds", rounds]
    side = Side("tinkrs-server", shown(command), lambda: lines_of(command)[-1])
    (numbers,) = alternate("a sample beside a pass", [side], 1)
    sample, training = f"sample of 4 tokens, {STORIES}", f"pass of {slices} x 1,024 tokens, {STORIES}"
    return [
        single(sample, Metric("idle_p50_ms", "on an idle server (p50)", "ms", "wall"), side, numbers),
        single(sample, Metric("busy_p95_ms", "while another key's pass runs (p95)", "ms", "wall"), side, numbers),
        single(sample, Metric("limit_ms", "10 x idle and one slice", "ms", "wall"), side, numbers),
        single(training, Metric("pass_alone_s", "alone", "s", "wall"), side, numbers),
        single(training, Metric("pass_beside_s", "beside samples without a pause", "s", "wall"), side, numbers),
    ]


def folder_of(tools, model):
    return ROOT / "crates/nano/model" if model == NANO else tools.models / model


def serve(stack, tools, model):
    """Starts our server for a model. Returns it, and the command that does the same."""
    data = stack.enter_context(tempfile.TemporaryDirectory(prefix="tinkrs-bench-"))
    command = [tools.programs["tinkrs"], "serve", "--addr", "127.0.0.1:0"]
    if model != NANO:
        command += ["--model", f"{model}={folder_of(tools, model)}"]
    return stack.enter_context(Server([*command, "--data-dir", data])), shown([*command, "--data-dir", NEW])


def serve_skyrl(stack, tools, model):
    """Starts SkyRL's server for a model. Returns it, the commands that do the same, and its name of the model."""
    scripts, folder = ROOT / "conformance/skyrl", folder_of(tools, model)
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tinkrs-bench-")))
    copy, data = scratch / "model", scratch / "data"
    call([scripts / "model", folder, copy])
    data.mkdir()
    server = stack.enter_context(Server([scripts / "serve", copy, data]))
    commands = [[scripts / "model", folder, "<model>"], [scripts / "serve", "<model>", NEW]]
    return server, "; ".join(map(shown, commands)), copy


def worker(stack, name, server, server_command, *command):
    """A side whose rounds are those of a program that talks to a server."""
    say(f"starting {name}: {shown(command)}")
    program = stack.enter_context(Worker(command, TINKER_BASE_URL=server.url))
    program.wait_until_ready()
    prefix = f"{server_command} &  echo | TINKER_API_KEY=tml-bench TINKER_BASE_URL=<its URL> "
    return Side(name, shown(command, prefix), lambda: {**program.round(), "server_mib": server.peak_mib()})


def reinforcement(tools, model, group, tokens):
    """Steps of both SDKs on one server, each with a training run of its own. Seeds are equal, so the work is too."""
    with ExitStack() as stack:
        server = serve(stack, tools, model)
        programs = {"tinkrs": [tools.programs["load"]], "tinker (Python)": [tools.tinker, ROOT / "bench/client_python.py"]}
        sides = [worker(stack, name, *server, *program, "rl", model, group, tokens) for name, program in programs.items()]
        what = f"RL step through tinkrs serve, {model}: {group} × {tokens} tokens sampled, trained on, saved"
        # Small steps vary more, and cost little.
        return compare(what, sides, [STEP, CLIENT_CPU], ROUNDS if QUICK else 2 * ROUNDS)


def servers(tools, model, group, tokens):
    """The same steps of our client on our server, and on SkyRL's."""
    with ExitStack() as stack:
        load = tools.programs["load"]
        ours = worker(stack, "tinkrs serve", *serve(stack, tools, model), load, "rl", model, group, tokens)
        server, command, name = serve_skyrl(stack, tools, model)
        theirs = worker(stack, "SkyRL", server, command, load, "rl", name, group, tokens)
        theirs.command = theirs.command.replace(str(name), "'<model>'")
        what = f"RL step of our client, {model}: {group} × {tokens} tokens sampled, trained on, saved"
        return compare(what, [ours, theirs], [STEP, SERVER_MEMORY], ROUNDS)


def run(tools):
    rows = overhead(tools) + sharing(tools)
    for model, (group, tokens) in STEPS.items():
        rows += reinforcement(tools, model, group, tokens)
    if tools.skyrl:
        for model, (group, tokens) in STEPS.items():
            rows += servers(tools, model, group, tokens)
    return rows
