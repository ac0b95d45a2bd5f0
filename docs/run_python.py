"""Runs the Python of pages as a reader would: the blocks of a page in one program, beside a server on this machine.

Needs the packages `tinkrs`, `tinker`, `openai` and `anthropic`; `python/test` calls it. usage: docs/run_python.py PAGE...
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tinkrs


def blocks(text):
    """The blocks of Python in a page, or an error for one that would not be run."""
    inside, found = None, []
    for line in text.splitlines():
        if inside is None and line.startswith("```"):
            language = line[3:].split(" ")[0]
            assert not (language == "python" and line != "```python"), f"Python that is not run: {line}"
            inside = [] if language == "python" else False
        elif inside is not None and line == "```":
            if inside:
                found.append("\n".join(inside))
            inside = None
        elif inside is not False and inside is not None:
            inside.append(line)
    return found


def run(page, folder, server):
    found = blocks(page.read_text())
    if not found:
        return
    # The address that the pages name is where a server listens unless it is told otherwise.
    program = "\n\n".join(found).replace("http://127.0.0.1:8000", server.url)
    path = folder / f"{page.stem}.py"
    path.write_text(program)
    environment = os.environ | {"TINKER_BASE_URL": server.url, "TINKER_API_KEY": "tml-local", "TINKER_TELEMETRY": "0"}
    done = subprocess.run([sys.executable, path], env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{page}\n{program}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}")
    print(f"ok: the Python of {page.name}, {len(found)} blocks")


with tempfile.TemporaryDirectory() as folder, tinkrs.serve() as server:
    folder = pathlib.Path(folder)
    # The run that pages ask for by this name.
    talk = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Ahoy!"}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    command = "tinkrs train sft --data chats.jsonl --run-dir run --name my-run --rank 8 --epochs 1 --batch-size 1 --eval 0"
    options = {"env": os.environ | {"TINKER_API_KEY": "tml-local"}, "cwd": folder, "check": True, "capture_output": True}
    subprocess.run([*command.split(), "--base-url", server.url], **options)
    for name in sys.argv[1:]:
        run(pathlib.Path(name).resolve(), folder, server)
