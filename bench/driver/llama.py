"""Sampling and prompts of quantised models on this machine: the engine beside llama.cpp, on the same GGUF file."""

from contextlib import ExitStack

from .compare import Side, compare, row, alternate
from .engine import CPU, MEMORY, RATE, THREADS
from .process import ROOT, Worker, shown
from .progress import say
from .setup import LARGE_SHAPE, QUICK, QWEN_SHAPE, ROUNDS, SMOLLM

FORMATS = {"bf16": ["f32"], "q8_0": ["f32", "int8"], "q4_k_m": ["f32", "int8"]}
WORK = {
    SMOLLM: [("sample", 1, 48), ("sample", 16, 24), ("prompt", 1, 512)],
    QWEN_SHAPE: [("sample", 1, 24), ("sample", 16, 12), ("prompt", 1, 512)],
    LARGE_SHAPE: [("sample", 1, 12), ("sample", 16, 6), ("prompt", 1, 256)],
}
QUICK_WORK = {SMOLLM: [("sample", 1, 4)]}
WHAT = {"sample": "sampling {1} tokens for each of {0}", "prompt": "{0} prompt of {1} tokens"}


def worker(stack, command, what):
    say(f"starting {what}")
    worker = stack.enter_context(Worker(command, **THREADS))
    worker.wait_until_ready()
    return worker


def measured(tools, model, *work):
    return [tools.programs["measure"], model, *work]


def beside_llama(tools, rows, model, work):
    """Each format with each kind of activations, and llama.cpp once, in turns."""
    for name, kinds in FORMATS.items():
        file = tools.gguf / f"{model}-{name}.gguf"
        what = f"{model}, {name}: " + WHAT[work[0]].format(*work[1:])
        with ExitStack() as stack:
            sides = []
            for activations in kinds:
                command = measured(tools, file, "--weights", "stored", "--activations", activations, *work)
                sides.append(Side(f"tinkrs ({activations})", shown(command, "echo | "), worker(stack, command, what).round))
            command = [tools.python, ROOT / "bench/engine_llama.py", tools.llama, file, *work]
            theirs = Side("llama.cpp", shown(command, "echo | "), worker(stack, command, "llama.cpp").round)
            results = alternate(what, [*sides, theirs], ROUNDS)
            for side, kind, ours in zip(sides, kinds, results):
                for metric in (RATE, CPU, MEMORY):
                    rows.append(row(f"{what}; activations in {kind}", metric, [side, theirs], [ours, results[-1]]))


def against_itself(tools, rows, model):
    """What the ways of the engine cost beside each other: adapters, and steps over a quantised base."""
    folder = tools.models / model
    pairs = [
        ("sixteen adapters instead of one, 24 tokens for each of 16", ("--weights", "bf16", "sample", 16, 24, 16), "sixteen",
         ("--weights", "bf16", "sample", 16, 24, 1), "one"),
        ("LoRA step of 2 × 256 tokens over q8_0 instead of bf16", ("--weights", "q8_0", "train", 2, 256, 1), "q8_0",
         ("--weights", "bf16", "train", 2, 256, 1), "bf16"),
        ("LoRA step of 2 × 256 tokens over q4_k instead of bf16", ("--weights", "q4_k", "train", 2, 256, 1), "q4_k",
         ("--weights", "bf16", "train", 2, 256, 1), "bf16"),
    ]
    for what, first, first_name, second, second_name in pairs:
        with ExitStack() as stack:
            sides = [Side(name, shown(measured(tools, folder, *work), "echo | "),
                          worker(stack, measured(tools, folder, *work), what).round)
                     for work, name in ((first, first_name), (second, second_name))]
            rows += compare(f"{model}: {what}", sides, [RATE, CPU, MEMORY], ROUNDS)


def run(tools):
    rows = []
    for model, pieces in (QUICK_WORK if QUICK else WORK).items():
        for work in pieces:
            beside_llama(tools, rows, model, work)
        if not QUICK:
            against_itself(tools, rows, model)
    return rows
