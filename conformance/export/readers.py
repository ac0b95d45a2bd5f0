"""Log-probabilities and token ids of a model: by our engine, by `transformers` and `peft`, and by llama.cpp."""

import ctypes
import json
import os
import pathlib
import subprocess

import go
import llama_cpp
import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

# A number of ggml: keys and values are kept in f32, so that only the weights are rounded.
GGML_F32 = 0


def log_probabilities(logits, tokens):
    """The log-probability of every token but the first, from the scores of every position."""
    logits = torch.as_tensor(np.asarray(logits)).double()[:-1]
    rows = torch.log_softmax(logits, dim=-1)
    return rows[torch.arange(len(tokens) - 1), torch.as_tensor(tokens[1:])].numpy()


class Ours:
    """The example `log_probabilities` of crates/export."""

    def __init__(self, binary):
        self.binary = binary

    def ask(self, model, adapter=None, texts=(), tokens=()):
        command = [self.binary, model, *([adapter] if adapter else [])]
        request = json.dumps({"texts": list(texts), "tokens": [list(map(int, ids)) for ids in tokens]})
        done = subprocess.run([str(part) for part in command], input=request, text=True, capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"{model}: {done.stderr}")
        return json.loads(done.stdout)

    def ids(self, model, texts):
        return self.ask(model, texts=texts)["ids"]

    def score(self, model, windows, adapter=None):
        return np.concatenate(self.ask(model, adapter, tokens=windows)["log_probabilities"])


def by_transformers(folder, windows, adapter=None):
    """Scores by `transformers`, and by `peft` where there is an adapter."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if adapter:
        model = PeftModel.from_pretrained(model, adapter)
    model.eval()
    with torch.no_grad():
        return np.concatenate([
            log_probabilities(model(torch.tensor([window])).logits[0], window) for window in windows
        ])


class LlamaCpp:
    """A GGUF file as llama.cpp reads it."""

    def __init__(self, path, adapter=None, vocabulary_only=False):
        options = {"lora_path": str(adapter)} if adapter else {}
        self.model = llama_cpp.Llama(
            str(path), n_ctx=512, n_batch=512, n_threads=1, n_threads_batch=1, logits_all=not vocabulary_only,
            vocab_only=vocabulary_only, type_k=GGML_F32, type_v=GGML_F32, verbose=False, **options,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.model.close()

    def ids(self, text):
        # As a server of llama.cpp does: what begins a text is put there, special tokens are recognised.
        return self.model.tokenize(text.encode(), add_bos=True, special=True)

    def score(self, windows):
        scores = []
        for window in windows:
            self.model.reset()
            self.model.eval(window)
            scores.append(log_probabilities(self.model.scores[:len(window)], window))
        return np.concatenate(scores)

    @property
    def metadata(self):
        return self.model.metadata


def quantise(source, target, file_type):
    """llama.cpp's own quantisation."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = file_type, 2
    result = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    if result != 0:
        raise RuntimeError(f"llama_model_quantize of {source}: {result}")


def by_go(template, conversations):
    """Conversations by a template in Go's language."""
    conversations = [[{"Role": message["role"], "Content": message["content"]} for message in messages] for messages in conversations]
    here = pathlib.Path(__file__).parent
    command = [pathlib.Path(go.__file__).parent / "bin" / "go", "run", here / "render.go"]
    done = subprocess.run(
        [str(part) for part in command], input=json.dumps({"template": template, "conversations": conversations}), text=True, capture_output=True,
        env=os.environ | {"GOTOOLCHAIN": "local", "GOTELEMETRY": "off"},
    )
    if done.returncode != 0:
        raise RuntimeError(f"{template!r}: {done.stderr}")
    return json.loads(done.stdout)
