"""usage: attack/run [--binary FILE] [--record FILE] [CASE]...

Runs the cases of attack/cases against a binary, and prints a table: what an attack did before the fixes
(attack/before.json) and what it does now. Exits with 1 if an attack gets through.

--binary FILE  the program to attack (default: a release build of this checkout)
--record FILE  writes what was seen as the new column "before", and succeeds whatever was seen
"""

import argparse
import importlib
import json
import sys
import time
import traceback
from pathlib import Path

from .harness import Target

HERE = Path(__file__).parent


def run(name, binary):
    """Runs a case. Returns what it saw, and whether the attack was held off."""
    case = importlib.import_module(f"attack.cases.{name}")
    start = time.monotonic()
    with Target(binary) as target:
        try:
            seen, held = case.attack(target)
        except Exception as error:  # a case that breaks is an attack that got through, and the others still run
            traceback.print_exc()
            seen, held = f"{type(error).__name__}: {error}"[:160], False
            print(target.logs()[-3000:], file=sys.stderr)
    print(f"{name}: {'held' if held else 'GOT THROUGH'} in {time.monotonic() - start:.1f} s: {seen}", flush=True)
    return {"title": case.TITLE, "seen": seen, "held": held}


def table(now, before):
    lines = ["| attack | before | now | |", "|---|---|---|---|"]
    for name, row in now.items():
        was = before.get(name, {}).get("seen", "not recorded")
        lines.append(f"| {row['title']} | {was} | {row['seen']} | {'held' if row['held'] else '**got through**'} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--record")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    known = sorted(path.stem for path in (HERE / "cases").glob("[a-z]*.py"))
    unknown = set(options.cases) - set(known)
    if unknown:
        sys.exit(f"attack/run: no case {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    binary = Path(options.binary).resolve()
    now = {name: run(name, binary) for name in options.cases or known}
    if options.record:
        record = Path(options.record)
        old = json.loads(record.read_text()) if record.exists() else {}
        rows = {name: {"seen": row["seen"], "held": row["held"]} for name, row in now.items()}
        record.write_text(json.dumps({**old, **rows}, indent=1, sort_keys=True) + "\n")
        return
    before = json.loads((HERE / "before.json").read_text())
    print(f"\n{table(now, before)}\n")
    through = sum(not row["held"] for row in now.values())
    print(f"{len(now)} attacks, {through} got through")
    sys.exit(through > 0)


main()
