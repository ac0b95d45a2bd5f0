"""Where and with what was measured."""

import os
import platform
import subprocess
from datetime import datetime, timezone

from .process import ROOT
from .setup import LLAMA


def output(*command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def after_colon(path, name):
    with open(path) as file:
        for line in file:
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return "unknown"


def machine():
    memory = after_colon("/proc/meminfo", "MemTotal").split()[0]
    return {"cpu": after_colon("/proc/cpuinfo", "model name"), "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(int(memory) / 2**20, 1) if memory.isdigit() else memory,
            "kernel": f"{platform.system()} {platform.release()}"}


def versions(tools):
    """Versions of both sides. A dirty commit is marked."""
    found = {"commit": output("git", "describe", "--always", "--dirty", "--exclude=*"), "rustc": output("rustc", "--version"),
             "python": platform.python_version()}
    if "TINKRS_BENCH_TINKRS" in os.environ:
        found["tinkrs"] = "as TINKRS_BENCH_TINKRS named it"
    script = "import sys, importlib.metadata as m; print(' '.join(m.version(name) for name in sys.argv[1:]))"
    for python, names in [(tools.tinker, ["tinker"]), (tools.torch, ["torch", "transformers", "peft"]),
                          (tools.skyrl and tools.skyrl / "bin/python", ["skyrl", "jax"])]:
        if python:
            found.update(zip(names, output(str(python), "-c", script, *names).split()))
    if getattr(tools, "llama", None):
        found["llama-cpp-python"] = LLAMA.partition("==")[2]
    return found


def now():
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def load():
    """The load average at the start: a busy machine makes wall times useless."""
    return round(os.getloadavg()[0], 2)
