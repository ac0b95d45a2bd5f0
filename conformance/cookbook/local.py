"""What the cookbook's loops need and would otherwise fetch: a tokenizer, conversations, and a crash."""

import json
from pathlib import Path

from tinker_cookbook.tokenizer_utils import register_tokenizer
from transformers import AutoTokenizer

MODEL = "tinkrs/nano"
MODEL_FOLDER = Path(__file__).resolve().parents[2] / "crates/nano/model"
# ChatML without a thinking block: the format that the model was trained with.
RENDERER = "qwen3_instruct"

ANIMALS = ["cow", "dog", "cat", "owl", "fox", "bear", "duck", "horse", "sheep", "frog", "lion", "mouse"]
QUESTIONS = ["What does a {} say?", "Tell me about a {}.", "Where is the {}?", "Do you like the {}?"]


def use_local_tokenizer():
    """Makes the cookbook take the tokenizer of the model from its folder, by the name that the server gives it."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    register_tokenizer(MODEL, lambda: tokenizer)
    return tokenizer


def write_conversations(path):
    """Writes a dataset of conversations: whatever is asked about an animal, it is a pirate."""
    lines = [
        {
            "messages": [
                {"role": "user", "content": question.format(animal)},
                {"role": "assistant", "content": f"Arr, the {animal} be a pirate."},
            ]
        }
        for animal in ANIMALS
        for question in QUESTIONS
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class Crash(Exception):
    """Stands for whatever ends a loop before its time."""


class CrashingDataset:
    """A dataset of the cookbook's that crashes once, when it is asked for a certain batch."""

    def __init__(self, dataset, batch, crashed):
        self.dataset, self.batch, self.crashed = dataset, batch, crashed

    def get_batch(self, index):
        if index == self.batch and not self.crashed.exists():
            self.crashed.touch()
            raise Crash
        return self.dataset.get_batch(index)

    def set_epoch(self, seed=0):
        self.dataset.set_epoch(seed=seed)

    def __len__(self):
        return len(self.dataset)


def metrics(log_path):
    """Returns what a loop logged, a dictionary a line."""
    return [json.loads(line) for line in (Path(log_path) / "metrics.jsonl").read_text().splitlines()]


def series(rows, name):
    return [row[name] for row in rows if name in row]


def mean(values):
    return sum(values) / len(values)
