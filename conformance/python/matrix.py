"""Writes which version of the official SDK can do what, from the results of `run`.

usage: matrix.py FOLDER_OF_JUNIT_FILES OUTPUT
"""

import sys
import xml.etree.ElementTree as xml
from pathlib import Path

# Where the part begins that `conformance/endpoints/run` writes.
OTHER_CLIENTS = "\n## Clients of other APIs\n"
MARKS = {"passed": "✓", "skipped": "–", "failed": "✗"}


def outcome(case):
    children = {child.tag for child in case}
    if children & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in children else "passed"


def read(file):
    """The tests of a file, in their order: (group, name) to outcome."""
    found = {}
    for case in xml.parse(file).iter("testcase"):
        group = case.get("classname").split(".")[-1].removeprefix("test_").replace("_", " ")
        name = case.get("name").removeprefix("test_").replace("_", " ")
        found[group, name] = outcome(case)
    return found


def version(file):
    name = file.stem
    numbers = [int(part) for part in name.split(",")[0].split(".")]
    return numbers, name


def main():
    folder, output = Path(sys.argv[1]), Path(sys.argv[2])
    files = sorted(folder.glob("*.xml"), key=version)
    results = {file.stem: read(file) for file in files}
    rows = {}
    for found in results.values():
        for group, name in found:
            rows.setdefault(group, {})[name] = None
    lines = [
        "# Compatibility",
        "",
        "What unmodified releases of the official Python SDK do on `tinkrs serve`, as `conformance/python/run` saw it. This page is",
        "written by that run: do not edit it. ✓ works, ✗ does not, – the release cannot do it, empty: not asked of that release.",
        "",
        "| version | " + " | ".join(results) + " |",
        "|---|" + "---|" * len(results),
        "| passed | " + " | ".join(str(list(found.values()).count("passed")) for found in results.values()) + " |",
    ]
    for group, names in rows.items():
        lines += ["", f"## {group.capitalize()}", "", "| | " + " | ".join(results) + " |", "|---|" + "---|" * len(results)]
        for name in names:
            marks = [MARKS.get(found.get((group, name)), "") for found in results.values()]
            lines.append(f"| {name} | " + " | ".join(marks) + " |")
    _, mark, rest = output.read_text().partition(OTHER_CLIENTS) if output.exists() else ("", "", "")
    output.parent.mkdir(exist_ok=True)
    output.write_text("\n".join(lines) + "\n" + mark + rest)


if __name__ == "__main__":
    main()
