"""The engine beside what this machine can do at best: memory read, multiply-adds done, a file read. A ratio is the share of that."""

from contextlib import ExitStack

from .compare import Metric, Side, compare
from .engine import THREADS
from .process import Worker, shown
from .progress import say
from .setup import MINIMIND, QUICK, QWEN_SHAPE, ROUNDS, SMOLLM, STORIES

BYTES = Metric("gb_per_s", "weights read", "GB/s", "wall", "higher")
LOADED = Metric("gb_per_s", "weights loaded", "GB/s", "wall", "higher")
OPERATIONS = Metric("gflop_per_s", "arithmetic", "GFLOP/s", "wall", "higher")

# Model, weights, activations, tokens.
DECODING = [(model, name, activations, tokens) for model, tokens in ((SMOLLM, 96), (QWEN_SHAPE, 32))
            for name, activations in (("bf16", "f32"), ("q8_0", "f32"), ("q8_0", "int8"), ("q4_k_m", "f32"), ("q4_k_m", "int8"))]
PROMPTS = [SMOLLM, QWEN_SHAPE]
STEPS = [(STORIES, 8), (MINIMIND, 8), (SMOLLM, 2), (QWEN_SHAPE, 2)]


def beside(tools, what, metric, ours, limit, name):
    """A piece of work of the engine, and the limit that bounds it, in turns."""
    with ExitStack() as stack:
        sides = []
        for side, arguments in (("tinkrs", ours), (name, limit)):
            command = [tools.programs["measure"], *arguments]
            say(f"starting {side}: {what}")
            worker = stack.enter_context(Worker(command, **THREADS))
            worker.wait_until_ready()
            sides.append(Side(side, shown(command, "echo | "), worker.round))
        return compare(what, sides, [metric], ROUNDS)


def run(tools):
    rows = []
    memory, fma = (["limits", "memory"], "reading memory"), (["limits", "fma"], "multiply-adds in registers")
    for model, name, activations, tokens in DECODING[:1] if QUICK else DECODING:
        what = f"{model}, {name}: one sequence, activations in {activations}"
        ours = [tools.gguf / f"{model}-{name}.gguf", "--weights", "stored", "--activations", activations, "sample", 1, tokens]
        rows += beside(tools, what, BYTES, ours, *memory)
    if QUICK:
        return rows
    for model in PROMPTS:
        ours = [tools.gguf / f"{model}-bf16.gguf", "--weights", "stored", "prompt", 1, 512]
        rows += beside(tools, f"{model}, bf16: a prompt of 512 tokens", OPERATIONS, ours, *fma)
    for model, batch in STEPS:
        ours = [tools.models / model, "train", batch, 256, 1]
        rows += beside(tools, f"{model}, f32: LoRA step of {batch} × 256 tokens, rank 16", OPERATIONS, ours, *fma)
    for name in ("bf16", "q8_0", "q4_k_m"):
        file = tools.gguf / f"{QWEN_SHAPE}-{name}.gguf"
        rows += beside(tools, f"{QWEN_SHAPE}, {name}: loading", LOADED, [file, "--weights", "stored", "load"],
                       ["limits", "file", file], "reading the file, one thread")
    return rows
