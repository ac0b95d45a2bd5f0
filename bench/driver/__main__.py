"""usage: bench/run [client|python|wire|engine|limits|llama|server|endpoints|growth|studio|all]...

Measures sections, all of them by default, and writes results.json and results.md as each one ends. With
TINKRS_BENCH_QUICK=1, one small round of each shows that everything works; its results go to the cache.
TINKRS_BENCH_ROUNDS (5) and TINKRS_BENCH_OUT (a folder) change how often and where to.
"""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

from . import client, endpoints, engine, growth, limits, llama, machine, python, render, server, studio, wire
from .process import ROOT, Failed
from .progress import say
from .setup import CACHE, QUICK, ROUNDS, Tools

SECTIONS = {"client": client, "python": python, "wire": wire, "engine": engine, "limits": limits, "llama": llama, "server": server,
            "endpoints": endpoints, "growth": growth, "studio": studio}


def chosen(words):
    if not words or "all" in words:
        words = list(SECTIONS)
    if any(word not in SECTIONS for word in words):
        sys.exit(__doc__)
    return [name for name in SECTIONS if name in words]


def write(folder, name, section):
    """Replaces one section, and renders all. Both files are always complete."""
    path = folder / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {"sections": {}}
    results["sections"][name] = section
    for target, text in [(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n"),
                         (folder / "results.md", render.markdown(results))]:
        unfinished = target.with_suffix(".new")
        unfinished.write_text(text)
        unfinished.replace(target)


def main():
    names = chosen(sys.argv[1:])
    # Thousands of connections, in the programs that are started too.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    # So that what was started is ended, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(os.environ.get("TINKRS_BENCH_OUT") or (CACHE / "bench/quick" if QUICK else ROOT / "bench"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        tools = Tools(names)
        versions = machine.versions(tools)
        for name in names:
            say(f"section {name}")
            start, load = time.monotonic(), machine.load()
            rows = SECTIONS[name].run(tools)
            write(folder, name, {"date": machine.now(), "rounds": ROUNDS, "seconds": time.monotonic() - start, "load": load,
                                 "machine": machine.machine(), "versions": versions, "rows": rows})
            say(f"section {name} took {time.monotonic() - start:.0f} s; see {folder / 'results.md'}")
    except Failed as failure:
        sys.exit(f"bench/run: {failure}")
    except KeyboardInterrupt:
        sys.exit("bench/run: interrupted; the sections that ended are written")


if __name__ == "__main__":
    main()
