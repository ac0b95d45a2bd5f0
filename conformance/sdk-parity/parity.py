"""Compares the official SDK with Tinkrs, row by row, and writes docs/sdk-parity.md.

    parity.py            fails if a row has no counterpart, or if the document is not current
    parity.py --write    writes the document, if every row has its counterpart

A row finds its counterpart by its name. Where that does not lead there, table.toml says what does (`rust`, `cli` or
`variable`), or why there is nothing or something else (`reason`).
"""

import ast
import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import official
from official import REQUIRED, Row
from ours import Ours, arguments, returned

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCUMENT = ROOT / "docs/sdk-parity.md"
KEYS = {"rust", "reason", "note"}


@dataclass
class Counterpart:
    # Items of our API; empty if there is deliberately nothing.
    rust: list[str] = field(default_factory=list)
    # Our default, where it is another.
    default: str | None = None
    reason: str = ""
    note: str = ""


class Comparison:
    """Finds the counterpart of each row; what is missing or different without a reason is in `problems`."""

    def __init__(self, rows: dict[str, Row], ours: Ours, table: dict[str, dict]):
        self.rows, self.ours, self.table = rows, ours, table
        self.problems: list[tuple[str, str]] = []
        self.found: dict[str, Counterpart] = {}
        for name in table:
            if name not in rows:
                self.problem(name, "is in the table, and the official SDK does not have it")
        for row in rows.values():
            self.found[row.name] = self.counterpart(row)

    def problem(self, name, text):
        self.problems.append((name, text))

    def counterpart(self, row):
        entry = self.table.get(row.name)
        if entry is None:
            return self.by_rule(row)
        if unknown := entry.keys() - KEYS:
            self.problem(row.name, f"the table has {', '.join(sorted(unknown))}, which means nothing")
        rust = entry.get("rust", [])
        found = Counterpart([rust] if isinstance(rust, str) else rust, reason=entry.get("reason", ""), note=entry.get("note", ""))
        for name in found.rust:
            if not self.exists(row, name):
                self.problem(row.name, f"`{name}` is in the table, and Tinkrs does not have it")
        if not found.rust and not found.reason:
            self.problem(row.name, "has no counterpart and no reason why")
        self.check_default(row, found)
        return found

    def exists(self, row, name):
        if row.kind in ("command", "option", "argument"):
            words = name.split()[1:]
            options = [word for word in words if word.startswith("-")]
            known = self.ours.commands.get(" ".join(word for word in words if word not in options))
            return known is not None and all(option in known.options for option in options)
        if row.kind == "variable":
            return name.removeprefix("$") in self.ours.variables
        return self.ours.api.has(name)

    # Rules

    def by_rule(self, row):
        rule = {
            "command": self.command,
            "option": self.option,
            "argument": self.argument,
            "variable": self.variable,
            "constructor": self.constructor,
            "special": lambda row: None,
            "method": self.member,
            "field": self.member,
            "parameter": self.parameter,
            "value": self.value,
        }.get(row.kind, self.named)
        # What belongs to something that is left out is left out for the same reason.
        owner = self.owner(row)
        if owner.reason and not owner.rust:
            return Counterpart(reason=f"see `{self.owner_name(row)}`")
        found = rule(row)
        if found is None:
            self.problem(row.name, "has no counterpart")
            return Counterpart(reason="missing")
        self.check_default(row, found)
        return found

    def owner_name(self, row):
        if row.kind == "value":
            return row.name.split(' "')[0]
        if row.kind == "parameter":
            function = row.name.split("(")[0]
            return f"{function}()" if f"{function}()" in self.rows else function
        if row.kind in ("method", "field"):
            return row.name.rpartition(".")[0]
        if row.kind == "constructor":
            return row.name.removesuffix("()")
        return row.name.rpartition(" ")[0] if row.kind in ("option", "argument") else ""

    def owner(self, row):
        return self.found.get(self.owner_name(row), Counterpart())

    def named(self, row):
        path = self.ours.api.named(row.name.split(".")[-1])
        return path and Counterpart([path])

    def constructor(self, row):
        for owner in self.owner(row).rust:
            if self.ours.api.member(owner, "new"):
                return Counterpart([f"{owner}::new"])
        return None

    def member(self, row):
        """A method or a field of the same name, on the counterpart of its class."""
        name = row.name.rpartition(".")[2]
        for owner in self.owner(row).rust:
            if self.ours.api.member(owner, name):
                return Counterpart([f"{owner}::{name}"])
        if is_tag(row):
            return Counterpart(self.owner(row).rust[:1], note="says what the message is")
        return None

    def parameter(self, row):
        """An argument or a setter of the same name, else the argument at the same place."""
        name = re.search(r"\((.*)\)", row.name)[1]
        function = (self.owner(row).rust or [""])[0]
        signature = self.ours.api.signature(function) or ""
        # Times have a type of their own here, so their names need not say the unit.
        for name in (name, name.removesuffix("_seconds")):
            if name in arguments(signature):
                return Counterpart([f"{function}({name})"])
            if setter := self.setter(returned(signature), name):
                return Counterpart([setter])
        siblings = [other.name for other in self.rows.values() if other.kind == "parameter" and self.owner_name(other) == self.owner_name(row)]
        at_place = list(arguments(signature))[siblings.index(row.name) :][:1]
        if row.default == REQUIRED and at_place:
            return Counterpart([f"{function}({at_place[0]})"])
        return None

    def setter(self, made, name):
        """The setter of what a function returns: of a request type, or of one form of a generic one."""
        path = made and self.ours.api.named(re.sub(r"<.*>", "", made))
        owner = made if "<" in made else path
        return f"{owner}::{name}" if path and self.ours.api.member(owner, name) else None

    def value(self, row):
        """A variant of the same name."""
        choice = row.name.split('"')[1]
        variant = "".join(part.capitalize() for part in choice.lower().split("_"))
        for owner in self.owner(row).rust:
            for name in (variant, variant.replace("Float", "F").replace("Int", "I")):
                if self.ours.api.member(owner, name):
                    return Counterpart([f"{owner}::{name}"])
        return None

    def command(self, row):
        words = row.name.removeprefix("tinker").strip()
        return Counterpart([f"tinkrs {words}".strip()]) if words in self.ours.commands else None

    def option(self, row):
        command, option = row.name.rsplit(" ", 1)
        known = self.ours.commands.get(command.removeprefix("tinker").strip())
        if known is None or option not in known.options:
            return None
        return Counterpart([f"tinkrs{command.removeprefix('tinker')} {option}"])

    def argument(self, row):
        """The argument at the same place, which may be left out or repeated where the official one may."""
        command = self.owner_name(row)
        known = self.ours.commands.get(command.removeprefix("tinker").strip())
        theirs = [other.name for other in self.rows.values() if other.kind == "argument" and self.owner_name(other) == command]
        place = theirs.index(row.name)
        if known is None or place >= len(known.arguments):
            return None
        ours, shape = known.arguments[place], row.name.rpartition(" ")[2]
        if ours.endswith("...") != shape.endswith("...") or ours.startswith("[") != shape.startswith("["):
            return None
        return Counterpart([f"tinkrs{command.removeprefix('tinker')} {ours}"])

    def variable(self, row):
        return Counterpart([row.name]) if row.name[1:] in self.ours.variables else None

    # Defaults

    def check_default(self, row, found):
        """What is taken if nothing is given is the same, or a reason says why not."""
        if not found.rust or row.default is None or row.default == REQUIRED or is_tag(row):
            return
        if row.kind == "option":
            ours = self.option_default(found.rust[0])
        elif row.default in ("nothing", "absent"):
            return
        else:
            ours = self.rust_default(row, found.rust[0])
        if ours is None:
            if not found.reason:
                self.problem(row.name, f"defaults to {row.default}, and ours is not known: defaults.json lacks `{found.rust[0]}`")
        elif ours != row.default:
            found.default = ours
            if not found.reason:
                self.problem(row.name, f"defaults to {row.default}, and `{found.rust[0]}` to {ours}")

    def option_default(self, name):
        command, option = name.rsplit(" ", 1)
        known = self.ours.commands[command.removeprefix("tinkrs").strip()].options[option]
        return known.default or ("none" if known.takes_value else "flag")

    def rust_default(self, row, name):
        """Our default as Python would write it; `None` if it is not known."""
        if name in self.ours.defaults:
            return same_notation(row.default, self.ours.defaults[name])
        if row.default != "None":
            return None
        # What may be left out: a setter, or a member that holds nothing then.
        path, _, argument = name.removesuffix(")").partition("(")
        signature = self.ours.api.signature(path)
        if argument:
            return "None" if arguments(signature)[argument].startswith("Option<") else REQUIRED
        is_field = ": " in signature and not re.match(r"((const|async|unsafe) )*fn ", signature)
        if is_field and ": Option<" not in signature:
            return "never absent"
        return "None"


def same_notation(theirs, ours):
    """Writes one of our defaults as Python does; numbers are the same number if they are equal."""
    try:
        if ast.literal_eval(theirs) == ours and isinstance(ast.literal_eval(theirs), bool) == isinstance(ours, bool):
            return theirs
    except (ValueError, SyntaxError):
        pass
    return repr(ours)


def is_tag(row):
    return row.kind == "field" and row.name.rpartition(".")[2] in ("type", "state") and row.default != REQUIRED


# The document


def document(rows, found):
    counts = {"same": 0, "other": 0, "absent": 0}
    groups: dict[str, list[str]] = {}
    for row in rows.values():
        counterpart = found[row.name]
        kind = "absent" if not counterpart.rust else "other" if counterpart.reason else "same"
        counts[kind] += 1
        groups.setdefault(row.group, []).append(line(row, counterpart))
    text = [
        "# The official SDK and Tinkrs, row by row",
        "",
        f"Every public class, method, parameter, default, type, environment variable, command and option of the Python package `tinker` {official.version()},",
        "read from the installed package, and what stands for it here. `conformance/sdk-parity/check --write` writes this file and",
        "`.ci/run` checks it: a row that a new release adds, removes or gives another default fails by its name.",
        "",
        f"{len(rows)} rows: {counts['same']} have the same thing here, {counts['other']} something else for a reason that is given, {counts['absent']} nothing, for a",
        "reason that is given. `…_async` twins are the methods without the suffix. Paths without a crate are those of `tinkrs`. A default is what the",
        "official one takes if nothing is given; ours is the same unless it stands behind it. Types are the official ones: a change of them is seen here.",
    ]
    for group, lines in groups.items():
        text += ["", f"## {group}", "", "| official | type | default | Tinkrs | |", "|---|---|---|---|---|", *lines]
    return "\n".join(text) + "\n"


def line(row, counterpart):
    default = "" if row.default in (None, "flag", "nothing") else f"`{row.default}`" if row.default != REQUIRED else REQUIRED
    if counterpart.default is not None:
        default += f"; here `{counterpart.default}`"
    ours = ", ".join(f"`{name}`" for name in counterpart.rust) or "—"
    remark = "; ".join(text for text in (counterpart.reason, counterpart.note) if text)
    cells = [f"`{row.name}`", f"`{row.type}`" if row.type else "", default, ours, remark]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def changes(old, new):
    """The rows in which two documents differ, by name."""
    rows = lambda text: {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| `")}
    old, new = rows(old), rows(new)
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"{name}: is in docs/sdk-parity.md, and not in the SDK"
        elif name not in old:
            yield f"{name}: is new"
        elif old[name] != new[name]:
            yield f"{name}: changed\n  - {old[name]}\n  + {new[name]}"


def main(arguments):
    table = tomllib.loads((HERE / "table.toml").read_text())
    rows = official.rows()
    compared = Comparison(rows, Ours(ROOT), table)
    for name, text in compared.problems:
        print(f"{name}: {text}")
    if compared.problems:
        print(f"{len(compared.problems)} of {len(rows)} rows of tinker {official.version()} fail.")
        return 1
    fresh = document(rows, compared.found)
    if arguments == ["--write"]:
        DOCUMENT.write_text(fresh)
    committed = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    if committed != fresh:
        print("\n".join(changes(committed, fresh)))
        print("docs/sdk-parity.md is not current: conformance/sdk-parity/check --write, and read the diff.")
        return 1
    print(f"{len(rows)} rows of tinker {official.version()} have their counterpart or a reason")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
