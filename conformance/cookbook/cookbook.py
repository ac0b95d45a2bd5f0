"""Runs the loops of the cookbook, unmodified, on a server that is already there.

usage: cookbook.py FOLDER

Reads TINKER_BASE_URL. Everything is written to the folder. Prints a summary as JSON; fails if a loss does not fall, a
reward does not rise, or a run does not go on after a crash.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

# Before the libraries look at it. Nothing may be fetched: a model hub in the way of a test is a test of the hub.
os.environ.update(TINKER_API_KEY="tml-conformance", TINKER_TELEMETRY="0", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import exported  # noqa: E402
import reinforcement  # noqa: E402
import supervised  # noqa: E402
from local import use_local_tokenizer  # noqa: E402


def main():
    folder = Path(sys.argv[1])
    tokenizer = use_local_tokenizer()
    summary = {"versions": {name: version(name) for name in ["tinker-cookbook", "tinker", "transformers", "torch"]}}

    def part(name, run):
        started = time.monotonic()
        summary[name] = run()
        summary[name]["seconds"] = round(time.monotonic() - started, 1)

    part("supervised", lambda: supervised.run(folder))
    part("exported", lambda: exported.run(folder, tokenizer))
    part("reinforcement", lambda: reinforcement.synchronous(folder))
    part("other forms of reinforcement", lambda: reinforcement.other_forms(folder))
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
