"""Programs that are measured: run once, asked for rounds, or serving in the background."""

import json
import os
import shlex
import subprocess
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 600  # seconds


class Failed(Exception):
    """A side of a comparison did not do its work. Nothing is reported without both sides."""


def shown(command, prefix=""):
    """Writes a command as one would type it in the root of the repository."""
    words = [str(word).replace(f"{ROOT}/", "") for word in command]
    return prefix + shlex.join(words)


def environment(more):
    """The environment of a measured program: ours, without what would let a proxy or a key take part."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("TINKER_") and name.lower() not in ("http_proxy", "all_proxy", "pythonpath")}
    return {**kept, "TINKER_API_KEY": "tml-bench", "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0", "NO_PROXY": "127.0.0.1", **more}


def lines_of(command, **env):
    """Runs a program to its end and returns its lines of JSON."""
    try:
        done = subprocess.run([str(word) for word in command], cwd=ROOT, env=environment(env), capture_output=True,
                              text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise Failed(f"{shown(command)} took more than {TIMEOUT} s") from None
    if done.returncode != 0:
        raise Failed(f"{shown(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Background:
    """A program that runs until the `with` block ends. Its stderr is shown if it fails."""

    def __init__(self, command, **env):
        self.command, self.errors = [str(word) for word in command], tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, cwd=ROOT, env=environment(env), text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def line(self):
        """Returns the next line of its output. A program that says nothing for too long is ended."""
        watch = threading.Timer(TIMEOUT, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        if not line:
            self.errors.seek(0)
            raise Failed(f"{shown(self.command)} ended early, or was silent for {TIMEOUT} s:\n{self.errors.read()[-4000:]}")
        return line.strip()


def status(process, name):
    """A number of /proc/PROCESS/status, or 0 if the process is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


class Server(Background):
    """A server that prints its URL when it is ready."""

    def __init__(self, command, **env):
        super().__init__(command, **env)
        self.url = self.line().removeprefix("listening on ")

    def peak_mib(self):
        """The most memory that its processes ever had, summed up."""
        children = {}
        for folder in Path("/proc").glob("[0-9]*"):
            children.setdefault(status(folder.name, "PPid"), []).append(int(folder.name))
        family = [self.process.pid]
        for process in family:
            family += children.get(process, [])
        return sum(status(process, "VmHWM") for process in family) / 1024


class Worker(Background):
    """A program that does a round of its work for each line it is given."""

    def __init__(self, command, **env):
        super().__init__(command, **env)
        self.ready = None

    def wait_until_ready(self):
        while self.ready is None:
            line = self.line()
            if line.startswith("{"):
                self.ready = json.loads(line)

    def round(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # Reading says why.
        while True:
            line = self.line()
            if line.startswith("{"):
                return json.loads(line)
