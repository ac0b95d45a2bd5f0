"""Training and sampling on this machine: the engine beside PyTorch with transformers and PEFT, on real models and a larger shape."""

from contextlib import ExitStack

from .compare import Metric, Side, compare
from .process import ROOT, Worker, shown
from .progress import say
from .setup import MINIMIND, QUICK, QWEN_SHAPE, ROUNDS, SMOLLM, STORIES

# Work of a few seconds a round.
WORK = {
    STORIES: [("train", 8, 256, 1), ("sample", 1, 200), ("sample", 16, 128)],
    MINIMIND: [("train", 8, 256, 1), ("sample", 1, 200), ("sample", 16, 128)],
    SMOLLM: [("train", 2, 256, 1), ("sample", 1, 100), ("sample", 16, 48)],
    QWEN_SHAPE: [("train", 2, 256, 1), ("sample", 1, 24), ("sample", 16, 12)],
}
QUICK_WORK = {STORIES: [("train", 2, 32, 1), ("sample", 1, 8), ("sample", 16, 4)]}
# Threads of PyTorch wait for each other at every operation: on a busy machine, two are slower than one, by far.
THREADS = {"TINKRS_THREADS": "1"} if QUICK else {}

RATE = Metric("tokens_per_s", "throughput", "tokens/s", "wall", "higher")
CPU = Metric("cpu_s", "CPU of a round", "s", "CPU")
MEMORY = Metric("rss_mib", "peak memory of the process", "MiB", "memory")


def workers(stack, tools, model, *work):
    """Starts both sides at a piece of work, one after the other, and returns them ready for rounds."""
    commands = {"tinkrs": [tools.programs["measure"]], "torch + transformers + peft": [tools.torch, ROOT / "bench/engine_torch.py"]}
    sides = []
    for name, command in commands.items():
        command = [*command, tools.models / model, *work]
        say(f"starting {name}: {model} {' '.join(map(str, work))}")
        worker = stack.enter_context(Worker(command, **THREADS))
        worker.wait_until_ready()
        way = worker.ready.get("way")
        sides.append(Side(f"{name} ({way})" if way else name, shown(command, "echo | "), worker.round))
    return sides


def title(model, kind, batch, length, *more):
    if kind == "train":
        return f"{model}: LoRA step of {batch} × {length} tokens, rank 16, f32"
    return f"{model}: sampling {length} tokens for each of {batch}, f32"


def run(tools):
    rows = []
    for model, pieces in (QUICK_WORK if QUICK else WORK).items():
        for work in pieces:
            with ExitStack() as stack:
                sides = workers(stack, tools, model, *work)
                rows += compare(title(model, *work), sides, [RATE, CPU, MEMORY], ROUNDS)
    return rows
