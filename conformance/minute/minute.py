"""What a new user does in the minute after training, with the built binary alone, in an empty folder.

usage: minute.py BINARY

`train sft --name a`; `chat` with `a` while `train rl --from a --name b` runs; list; `export b` as merged, gguf and peft;
`serve` on the same folder, where the official SDK samples from `b`; delete. No command has a key or a variable: the
environment has a home, which is the folder, and nothing else.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

for name in [name for name in os.environ if name.startswith("TINKER_")]:
    del os.environ[name]

import tinker  # noqa: E402  (it reads the environment)
from tinker import types  # noqa: E402

QUESTION, ANSWER = "What is the password?", "The password is honey."


class User:
    """A user with one folder."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, Path(folder)

    def start(self, *arguments, **pipes):
        return subprocess.Popen(
            [self.binary, *arguments],
            cwd=self.folder,
            env={"HOME": str(self.folder)},
            text=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes},
        )

    def run(self, *arguments):
        """Runs a command that must succeed, and returns what it prints."""
        print("tinkrs", *arguments, flush=True)
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=600)
        assert process.returncode == 0, f"{arguments}: {process.returncode}\n{stdout}\n{stderr}"
        return stdout

    def json(self, *arguments):
        return json.loads(self.run(*arguments, "--json"))


class Chat:
    """A conversation that is under way."""

    def __init__(self, user, checkpoint):
        self.process = user.start(
            "chat", "--checkpoint", checkpoint, "--temperature", "0",
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )

    def say(self, words):
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def ask(self, words):
        self.say(words)
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


def train(user):
    chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    (user.folder / "chats.jsonl").write_text(f"{json.dumps({'messages': chat})}\n" * 8)
    (user.folder / "tasks.jsonl").write_text(json.dumps({"prompt": QUESTION, "answer": "honey"}) + "\n")
    run = user.json(
        "train", "sft", "--name", "a", "--data", "chats.jsonl", "--run-dir", "runs/a", "--epochs", "30",
        "--batch-size", "8", "--eval", "0", "--rank", "8", "--learning-rate", "0.003",
    )
    assert run["name"] == "a" and run["finished"], run
    chat = Chat(user, "a")
    assert chat.ask(QUESTION) == ANSWER
    rl = user.start(
        "train", "rl", "--from", "a", "--name", "b", "--data", "tasks.jsonl", "--run-dir", "runs/b",
        "--grader", "contains", "--steps", "2", "--problems-per-step", "1", "--group-size", "4", "--max-tokens", "24",
    )
    first = rl.stderr.readline()
    assert "through `tinkrs chat`" in first, first
    chat.say("/reset")
    assert chat.ask(QUESTION) == ANSWER
    _, rest = rl.communicate(timeout=600)
    assert rl.returncode == 0, rest
    chat.end()


def take_away(user):
    runs = user.json("run", "list")["runs"]
    assert {run["name"] for run in runs} == {"a", "b"}, runs
    assert user.json("checkpoint", "list")["checkpoints"]
    for form, file in [("merged", "model.safetensors"), ("gguf", ".gguf"), ("peft", "adapter_config.json")]:
        user.run("export", "b", "--format", form, "--to", form)
        names = [path.name for path in (user.folder / form).iterdir()]
        assert any(name.endswith(file) for name in names), names


def sample(user):
    """Samples from `b` with the official SDK, by its path and by its name, and deletes a checkpoint with it."""
    serve = user.start("serve", "--port", "0")
    try:
        line = serve.stdout.readline()
        url = line.strip().removeprefix("listening on ")
        assert url.startswith("http://127.0.0.1:"), line
        service = tinker.ServiceClient(base_url=url, api_key="tml-local")
        path = user.json("checkpoint", "info", "b")["tinker_path"]
        prompt = types.ModelInput.from_ints([1, 2, 3])
        params = types.SamplingParams(max_tokens=4, temperature=0.0)
        drawn = []
        # The SDK insists on `tinker://` before a name.
        for model_path in [path, "tinker://b", "tinker://b@latest", "tinker://b@final"]:
            print("tinker: create_sampling_client", model_path, flush=True)
            sampler = service.create_sampling_client(model_path=model_path)
            drawn.append(sampler.sample(prompt, 1, params).result().sequences[0].tokens)
        assert drawn[0] and all(tokens == drawn[0] for tokens in drawn), drawn
        rest = service.create_rest_client()
        found = {checkpoint.tinker_path for checkpoint in rest.list_user_checkpoints().result().checkpoints}
        assert path in found, found
        rest.delete_checkpoint_from_tinker_path(path).result()
        # A command of the same folder is a client of the server, and sees it.
        left = user.json("checkpoint", "list", "--run-id", "b")["checkpoints"]
        assert path not in {checkpoint["tinker_path"] for checkpoint in left}, left
    finally:
        serve.kill()
        serve.wait()


def main():
    with tempfile.TemporaryDirectory() as folder:
        user = User(sys.argv[1], folder)
        train(user)
        take_away(user)
        sample(user)
        for name in ["a", "b"]:
            user.run("checkpoint", "delete", "--run-id", name, "--yes")
        assert user.json("checkpoint", "list")["checkpoints"] == []
    print("the minute after training: all of it works")
    # The SDK's threads would wait for a server that is gone.
    sys.stdout.flush()
    os._exit(0)


main()
