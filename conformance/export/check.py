"""Compares exports with what `transformers`, `peft` and llama.cpp make of them: see README.md here.

usage: check.py MODELS BINARY EXAMPLE SCRATCH [--write PAGE] [--only NAME]
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys

import models
import page
from blocks import compare_files
from readers import LlamaCpp, Ours, by_go, by_transformers, quantise
from transformers import AutoTokenizer

QUANTISATIONS = ["f32", "f16", "bf16", "q8_0", "q4_k_m"]
# llama.cpp's numbers of its mixtures.
FILE_TYPES = {"q8_0": 7, "q4_k_m": 15}
WINDOW = 255

# The greatest difference of one log-probability from ours, on the same numbers. llama.cpp rounds activations to the type of the
# weights: to f16 and bf16, and to eight bits for the quantised ones.
ALLOWED = {
    "transformers, merged": 3e-4, "peft": 3e-4, "llama.cpp, gguf-adapter": 3e-4, "llama.cpp, f32": 3e-4,
    "llama.cpp, f16": 0.03, "llama.cpp, bf16": 0.2, "llama.cpp, q8_0": 0.5, "llama.cpp, q4_k_m": 1.0,
}
# How much more a file that we quantise may cost, in log-perplexity, than one that llama.cpp quantises.
ALLOWED_LOSS = 0.01


class Case:
    def __init__(self, name, base, tinkrs, ours, scratch):
        self.name, self.base, self.tinkrs, self.ours = name, base, tinkrs, ours
        self.folder = scratch / name.replace(" ", "-")
        self.folder.mkdir(exist_ok=True)
        self.problems = []

    def run(self, *arguments):
        done = subprocess.run([str(part) for part in (self.tinkrs, *arguments)], cwd=self.folder, text=True, capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"tinkrs {arguments}: {done.stderr}")
        return done

    def export(self, what, to, *options):
        target = self.folder / to
        if not target.exists():
            self.run("export", what, "--to", target, *options)
        return target

    def expect(self, what, is_right):
        if not is_right:
            self.problems.append(f"{self.name}: {what}")
            print(f"PROBLEM {self.name}: {what}", flush=True)

    def compare(self, column, found, expected):
        difference = float(abs(found - expected).max())
        print(f"{self.name}: {column}: {difference:.1e}", flush=True)
        self.expect(f"{column} differs by {difference:.1e}, more than {ALLOWED[column]}", difference <= ALLOWED[column])
        return difference

    def train(self):
        """A few steps, the head included. Returns the adapter as `peft` reads it."""
        if not (self.folder / "peft").exists():
            models.write_lessons(self.folder / "lessons.jsonl")
            self.run(
                "train", "sft", "--local", "--model", f"it={self.base}", "--data", "lessons.jsonl", "--run-dir", "run", "--name", "it",
                "--epochs", "3", "--batch-size", "2", "--eval", "0", "--rank", "8", "--learning-rate", "0.003", "--warmup-steps", "0",
            )
        return self.export("it", "peft", "--format", "peft", "--base", self.base, "--base-name", "someone/something")

    def log_probabilities(self, windows):
        adapter = self.train()
        exact = self.ours.score(self.base, windows, adapter)
        change = abs(exact - self.ours.score(self.base, windows)).max()
        self.expect(f"the adapter changes nothing ({change})", change > 0.1)
        row = {}
        merged = self.export("it", "merged", "--format", "merged", "--base", self.base, "--dtype", "f32")
        column = "transformers, merged"
        row[column] = self.compare(column, by_transformers(merged, windows), exact)
        row["peft"] = self.compare("peft", by_transformers(self.base, windows, adapter), exact)

        is_tied = json.loads((self.base / "config.json").read_text()).get("tie_word_embeddings", False)
        small = without_head(adapter, self.folder / "without-head") if is_tied else adapter
        base = self.export(self.base, "base-f32", "--format", "gguf", "--quantize", "f32")
        lora = self.export(small, "gguf-adapter", "--format", "gguf-adapter", "--base", self.base)
        column = "llama.cpp, gguf-adapter"
        with LlamaCpp(base / "model.gguf", lora / "adapter.gguf") as other:
            row[column] = self.compare(column, other.score(windows), self.ours.score(self.base, windows, small))
        for how in QUANTISATIONS:
            file = self.export("it", f"gguf-{how}", "--format", "gguf", "--base", self.base, "--quantize", how) / "model.gguf"
            column = f"llama.cpp, {how}"
            with LlamaCpp(file) as other:
                row[column] = self.compare(column, other.score(windows), exact if how == "f32" else self.ours.score(file, windows))
        return row

    def tokenizers(self):
        file = self.export(self.base, "base-f32", "--format", "gguf", "--quantize", "f32") / "model.gguf"
        texts = models.TEXTS + models.SPECIAL[self.name]
        normalises = '"NFC"' in (self.base / "tokenizer.json").read_text()
        with LlamaCpp(file, vocabulary_only=True) as other:
            template = other.metadata.get("tokenizer.chat_template")
            if template:
                texts = texts + [render(self.base, template)]
            texts += [] if normalises else [models.DECOMPOSED]
            ours, embedded = self.ours.ids(self.base, texts), self.ours.ids(file, texts)
            for text, expected, again in zip(texts, ours, embedded):
                found = other.ids(text)
                self.expect(f"tokens of {text!r}: llama.cpp {found[:20]}, ours {expected[:20]}", found == expected)
                self.expect(f"tokens of {text!r}: ours from the GGUF file {again[:20]}, from the folder {expected[:20]}", again == expected)
        print(f"{self.name}: {len(texts)} texts have the same tokens", flush=True)
        return len(texts)

    def ollama(self):
        """The Modelfile's template in Go's language gives what the model's own does."""
        modelfile = (self.export(self.base, "ollama", "--format", "ollama", "--quantize", "q8_0") / "Modelfile").read_text()
        source, _, rest = modelfile.partition('TEMPLATE """')
        template, _, parameters = rest.partition('"""\n')
        self.expect(f"the Modelfile has no template: {modelfile}", source == "FROM ./model.gguf\n" and template)
        stops = [json.loads(line.removeprefix("PARAMETER stop ")) for line in parameters.splitlines()]
        tokenizer = AutoTokenizer.from_pretrained(self.base)
        self.expect(f"stops {stops} without {tokenizer.eos_token}", tokenizer.eos_token in stops)
        begin = self.ours.ids(self.base, [""])[0]
        begin = tokenizer.decode(begin)
        for messages, text in zip(models.CONVERSATIONS, by_go(template, models.CONVERSATIONS)):
            expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True).removeprefix(begin)
            self.expect(f"the Modelfile's template gives {text!r}, expected {expected!r}", text == expected)
        print(f"{self.name}: the Modelfile says {len(models.CONVERSATIONS)} conversations as the model's template does", flush=True)

    def quantised(self, windows):
        """Ours beside llama.cpp's own quantisation of the same model: blocks, and perplexity of a text."""
        base = self.export(self.base, "base-f32", "--format", "gguf", "--quantize", "f32") / "model.gguf"
        exact = perplexity(self.ours.score(base, windows))
        rows = []
        for how in QUANTISATIONS:
            file = self.export(self.base, f"base-{how}", "--format", "gguf", "--quantize", how) / "model.gguf"
            row = {"how": how, "bytes": file.stat().st_size, "exact": exact, "ours": perplexity(self.ours.score(file, windows))}
            with LlamaCpp(file) as other:
                row["ours in llama.cpp"] = perplexity(other.score(windows))
            if how in FILE_TYPES:
                theirs = self.folder / f"theirs-{how}.gguf"
                if not theirs.exists():
                    quantise(base, theirs, FILE_TYPES[how])
                row["theirs"] = perplexity(self.ours.score(theirs, windows))
                with LlamaCpp(theirs) as other:
                    row["theirs in llama.cpp"] = perplexity(other.score(windows))
                row["blocks"] = compare_files(base, file, theirs)
                for kind, found in row["blocks"].items():
                    self.expect(f"{how}: {found}, of {kind}", found.is_right())
                loss = math.log(row["ours"] / row["theirs"])
                self.expect(f"{how}: log-perplexity is {loss:.4f} above that of llama.cpp's file", loss <= ALLOWED_LOSS)
                ids = self.ours.ids(base, models.TEXTS)
                self.expect(f"{how}: tokens by llama.cpp's file differ", self.ours.ids(theirs, models.TEXTS) == ids)
            print(f"{self.name}: {row}", flush=True)
            rows.append(row)
        return rows


def perplexity(scores):
    return math.exp(-scores.mean())


def without_head(adapter, to):
    """The adapter of the other layers: llama.cpp has no adapters of a head that is the embedding."""
    from safetensors.numpy import load_file, save_file

    to.mkdir(exist_ok=True)
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: value for name, value in tensors.items() if ".lm_head." not in name}, to / "adapter_model.safetensors")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings["target_modules"] = [name for name in settings["target_modules"] if name != "lm_head"]
    (to / "adapter_config.json").write_text(json.dumps(settings))
    return to


def render(base, template):
    """A conversation by llama-cpp-python's own reading of the template; `transformers` must agree."""
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    tokenizer = AutoTokenizer.from_pretrained(base)
    expected = tokenizer.apply_chat_template(models.CONVERSATION, tokenize=False, add_generation_prompt=True)
    formatter = Jinja2ChatFormatter(template, eos_token=tokenizer.eos_token or "", bos_token=tokenizer.bos_token or "")
    found = formatter(messages=models.CONVERSATION).prompt
    if found != expected:
        raise RuntimeError(f"the chat template gives {found!r}, expected {expected!r}")
    return found


def windows_of(ids, count):
    ids = ids[:WINDOW * count]
    return [ids[start:start + WINDOW] for start in range(0, len(ids), WINDOW) if len(ids) - start > 1]


def main():
    parser = argparse.ArgumentParser()
    for name in ["models", "binary", "example", "scratch"]:
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path, metavar="PAGE")
    parser.add_argument("--only", metavar="NAME")
    arguments = parser.parse_args()
    scratch = arguments.scratch.resolve()
    random, stories = scratch / "made", scratch / "stories"
    if not random.exists():
        models.make_random(random, arguments.models / "qwen3-tokenizer")
    if not stories.exists():
        models.with_template(arguments.models / "stories15M", stories)
    bases = {name: arguments.models.resolve() / name for name in models.REAL}
    bases |= {"stories15M": stories, models.RANDOM: random}
    ours = Ours(arguments.example.resolve())
    found, problems = {}, []
    for name, base in bases.items():
        if arguments.only not in (None, name):
            continue
        case = Case(name, base, arguments.binary.resolve(), ours, scratch)
        ids = ours.ids(base, [models.text_of(name)])[0]
        result = {"texts": case.tokenizers()}
        case.ollama()
        result["differences"] = case.log_probabilities(windows_of(ids, 1))
        result["quantised"] = case.quantised(windows_of(ids, 4)) if name in models.REAL else []
        found[name] = result
        problems += case.problems
    print("\n".join(problems) if problems else "all within the tolerances")
    if problems:
        sys.exit(1)
    if arguments.write:
        page.write(arguments.write, found, ALLOWED, WINDOW, ALLOWED_LOSS)


main()
