"""What Tinkrs has, read from files that its own checks keep true.

The public API comes from the listings in docs/api, which conformance/public-api/check compares with the code; the
options of the command line from the help in crates/cli/tests/help, which a test compares with the binary; our
defaults from defaults.json, which a test of the client writes from the code. So nothing is compiled here.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

CRATES = ("tinkrs", "tinkrs_types", "tinkrs_wire")
ITEM = re.compile(
    r"(?:#\[non_exhaustive\] )?pub "
    r"((?:(?:const|async|unsafe) )*fn|mod|use|struct|enum|union|trait|type|const|static) ([\w:]*\w)(.*)"
)
FUNCTION = re.compile(r"(?:(?:const|async|unsafe) )*fn (\w+)")
OF = re.compile(r" \(of (.+)\)$")
OPTION = re.compile(r"  (?:(-\w), |    )(--[\w-]+)(?: ([<\[]\S+))?(?:\s|$)")


@dataclass
class Member:
    text: str
    # For a method of one form of a generic type, that form: `Request<SaveState>`.
    of: str | None


@dataclass
class Item:
    kind: str
    rest: str
    members: dict[str, list[Member]] = field(default_factory=dict)


class Api:
    """The items of the public API, by path."""

    def __init__(self, folder: Path):
        self.items: dict[str, Item] = {}
        for crate in CRATES:
            item = None
            for line in (folder / f"{crate.replace('_', '-')}.txt").read_text().splitlines():
                if line.startswith("    "):
                    self._add_member(item, line.strip().removeprefix("#[non_exhaustive] "))
                else:
                    kind, path, rest = ITEM.fullmatch(line).groups()
                    item = self.items[path] = Item(kind.split()[-1], rest)

    @staticmethod
    def _add_member(item, text):
        if text.startswith("impl"):
            return
        of = OF.search(text)
        name = FUNCTION.match(text) or re.match(r"(?:(?:variant|const|type) )?(\w+)", text)
        item.members.setdefault(name[1], []).append(Member(OF.sub("", text), of and of[1]))

    def item(self, path):
        """The item that a path leads to, through re-exports."""
        item = self.items.get(path if path.split("::")[0] in CRATES else f"tinkrs::{path}")
        while item is not None and item.kind == "use":
            item = self.items.get(item.rest.removeprefix(" = "))
        return item

    def named(self, name):
        """The path of the item with this name: in the SDK, else in the crates below it."""
        for crate in CRATES:
            paths = [path for path in self.items if path.startswith(f"{crate}::") and path.split("::")[-1] == name]
            # Those are generated, and the types beside them are made from them.
            paths = [path for path in paths if not path.startswith("tinkrs_wire::proto::")]
            if paths:
                return min(paths, key=lambda path: (path.count("::"), path)).removeprefix("tinkrs::")
        return None

    def member(self, owner, name):
        """A member of `Type` or of `Type<Form>`."""
        base = re.sub(r"<.*>$", "", owner)
        item = self.item(base) or self.item(self.named(base) or base)
        if item is None and "::" in owner:
            # A member of a variant.
            variant = self.member(*owner.rsplit("::", 1))
            found = variant and re.search(rf"[{{ ]({name}: .*?)(?:, \w+: | }})", variant.text)
            return Member(found[1], None) if found else None
        for member in item.members.get(name, []) if item else []:
            if member.of in (None, owner.split("::")[-1]) or re.fullmatch(r"\w+<[A-Z]>", member.of):
                return member
        return None

    def signature(self, name):
        """The text of what `Type`, `Type::member` or `module::function` names; `None` if there is no such thing."""
        item = self.item(name)
        if item is not None:
            return item.rest
        owner, _, last = name.rpartition("::")
        member = self.member(owner, last) if owner else None
        return member and member.text

    def has(self, name):
        """Whether `Type`, `Type::member`, `module::function` or `Type::method(argument)` exists."""
        name, _, argument = name.removesuffix(")").partition("(")
        signature = self.signature(name)
        return signature is not None and (not argument or argument in arguments(signature))


def arguments(signature):
    """The names and types of a function's arguments."""
    start = depth = 0
    for at, character in enumerate(signature):
        if character == "(":
            start, depth = start or at + 1, depth + 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                pairs = re.split(r"(?:^|, )(\w+): ", signature[start:at])[1:]
                return dict(zip(pairs[::2], pairs[1::2]))
    return {}


def returned(signature):
    """The type that a function returns."""
    return signature.rpartition(" -> ")[2]


@dataclass
class CommandOption:
    takes_value: bool
    default: str | None = None


@dataclass
class Command:
    """A command of `tinkrs`: its arguments as the help writes them, and its options by name."""

    arguments: list[str] = field(default_factory=list)
    options: dict[str, CommandOption] = field(default_factory=dict)


def commands(folder: Path):
    """All commands, by their words."""
    names = {path.stem for path in folder.glob("*.txt")}
    return {words(name, names): read_help((folder / f"{name}.txt").read_text()) for name in sorted(names)}


def words(name, names):
    """`tinkrs-session-export-trace` is `session export-trace`: `session` has a page, `session-export` has none."""
    parts, found, word = name.split("-")[1:], [], []
    for at, part in enumerate(parts):
        word.append(part)
        if "-".join(["tinkrs", *parts[: at + 1]]) in names:
            found.append("-".join(word))
            word = []
    return " ".join(found)


def read_help(text):
    command, section, option = Command(), "", None
    for line in text.splitlines():
        if re.match(r"\S.*:$", line):
            section, option = line.removesuffix(":"), None
        elif section == "Arguments" and (match := re.match(r"  ([<\[].*?[>\]](?:\.\.\.)?)(?:\s|$)", line)):
            command.arguments.append(match[1])
        elif match := OPTION.match(line):
            short, long, value = match.groups()
            option = CommandOption(value is not None)
            command.options |= {name: option for name in (short, long) if name}
        if option and (match := re.search(r"\[default: (.*?)\]", line)):
            option.default = match[1]
    return command


class Ours:
    """Everything of ours that is compared."""

    def __init__(self, root: Path):
        self.api = Api(root / "docs/api")
        self.commands = commands(root / "crates/cli/tests/help")
        self.defaults = json.loads((Path(__file__).parent / "defaults.json").read_text())
        sources = [*root.glob("crates/client/src/**/*.rs"), *root.glob("crates/cli/src/**/*.rs")]
        texts = [source.read_text() for source in sources]
        self.variables = set(re.findall(r'"([A-Z][A-Z0-9]*_[A-Z0-9_]+)"', "\n".join(texts)))
