"""What the official SDK has, read by reflection from the package that is installed beside this script.

A row is something that a user of the SDK can name: a class, a method, a parameter, a field, a value of an enumeration,
an environment variable, a command or an option. Whatever the package exports becomes a row, so what a new release
adds cannot stay unseen.
"""

import ast
import enum
import importlib
import inspect
import re
import typing
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path

import click
import pydantic

REQUIRED = "required"
# What Python writes in another way than as a call.
SPECIAL = {"__enter__": "with", "__await__": "await", "__reduce__": "pickle", "__len__": "len of", "__iter__": "for … in"}


@dataclass(frozen=True)
class Row:
    name: str
    # Where it stands in the document: a class, or a group of rows.
    group: str
    kind: str
    # What is taken if nothing is given, in Python's notation; `required` if something has to be; `None` where there
    # is nothing to give.
    default: str | None = None
    # The type of what is given, or of what a function returns. It is only shown, so that a change is seen.
    type: str = ""


def rows():
    """All rows, by name."""
    import tinker
    from tinker.lib import public_interfaces
    from tinker.lib.retry_handler import RetryConfig
    from tinker.lib.telemetry import Telemetry

    found = {}

    def add(*made):
        for row in made:
            found.setdefault(row.name, row)

    seen = set()
    roots = [
        *((name, getattr(public_interfaces, name)) for name in exported(public_interfaces)),
        # Not exported, but what public methods take and return.
        ("RetryConfig", RetryConfig),
        ("Telemetry", Telemetry),
        *((name, getattr(tinker, name)) for name in exported(tinker)),
        *((name, getattr(tinker.types, name)) for name in exported(tinker.types)),
    ]
    for name, value in roots:
        if inspect.ismodule(value) or isinstance(value, str) or name in seen:
            continue
        seen.add(name)
        add(*described(name, value))
    for module in public_modules(tinker):
        add(*module)
    add(*variables(Path(tinker.__file__).parent))
    add(*commands())
    return found


def version():
    import tinker

    return tinker.__version__


def exported(module):
    """The names that a module has for its users: those of its list, else all that are not private or from elsewhere."""
    if listed := getattr(module, "__all__", None):
        return [name for name in listed if not name.startswith("_")]
    own = lambda value: getattr(value, "__module__", "").startswith("tinker") or typing.get_origin(value) is not None
    return [name for name, value in vars(module).items() if not name.startswith("_") and own(value)]


def public_modules(package):
    """Modules that are not private, with what they define if they are a single file."""
    for path in sorted(Path(package.__file__).parent.iterdir()):
        if path.name.startswith("_") or not (path.is_dir() or path.suffix == ".py"):
            continue
        yield [Row(f"tinker.{path.stem}", "Modules", "module")]
        if path.is_dir():
            continue
        module = importlib.import_module(f"tinker.{path.stem}")
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__:
                yield described(f"{path.stem}.{name}", value)


def described(name, value):
    """The rows of an exported thing."""
    if inspect.isclass(value):
        return list(of_class(name, value))
    if inspect.isfunction(value):
        return list(of_function(name, name.split(".")[0], value, method=False))
    rows = [Row(name, name, "type", type=annotation(value))]
    if typing.get_origin(value) is typing.Literal:
        rows += [Row(f'{name} "{choice}"', name, "value") for choice in typing.get_args(value)]
    return rows


def of_class(name, value):
    yield Row(name, name, "exception" if issubclass(value, BaseException) else "class")
    if issubclass(value, enum.Enum):
        for choice in value:
            yield Row(f'{name} "{choice.value}"', name, "value")
        return
    given, types = {}, {}
    if issubclass(value, pydantic.BaseModel):
        given = {key: default_of_field(field) for key, field in value.model_fields.items()}
        types = {key: field.annotation for key, field in value.model_fields.items()}
    elif is_dataclass(value):
        given = {field.name: default_of_dataclass(field) for field in fields(value) if not field.name.startswith("_")}
        types = {field.name: field.type for field in fields(value)}
    elif typing.is_typeddict(value):
        given = {key: REQUIRED if key in value.__required_keys__ else "absent" for key in value.__annotations__}
        types = value.__annotations__
    elif issubclass(value, BaseException):
        given = attributes(value)
        types = vars(value).get("__annotations__", {})
    elif "__init__" in vars(value):
        yield Row(f"{name}()", name, "constructor")
        yield from parameters(name, name, value.__init__)
    for key, default in given.items():
        yield Row(f"{name}.{key}", name, "field", default, annotation(types.get(key, "")))
    for key, word in SPECIAL.items():
        if not issubclass(value, BaseException) and any(key in vars(base) for base in own_bases(value)):
            yield Row(f"{word} {name}", name, "special")
    for key, member in methods(value):
        if key in given:
            continue
        if isinstance(member, (property, cached_property)):
            yield Row(f"{name}.{key}", name, "field")
        else:
            yield from of_function(f"{name}.{key}", name, member)


def own_bases(value):
    """A class and its bases in the package, the first base first."""
    return [base for base in reversed(value.__mro__) if base.__module__.startswith("tinker")]


def attributes(value):
    """What an exception has beyond its bases: the attributes that it declares and what it is made with."""
    own = vars(value)
    names = [key for key in own.get("__annotations__", {}) if not key.startswith("_")]
    if "__init__" in own:
        names += [key for key in inspect.signature(value.__init__).parameters if key not in ("self", *names)]
    return {key: shown(own[key]) if key in own else None for key in names}


def methods(value):
    """The public methods of a class: its own and what it inherits inside the package."""
    found, hooks = {}, set()
    if decorators := getattr(value, "__pydantic_decorators__", None):
        # Checks and conversions that pydantic calls.
        kinds = (getattr(decorators, kind.name) for kind in fields(decorators))
        hooks = {name for kind in kinds if isinstance(kind, dict) for name in kind}
    for base in own_bases(value):
        if base.__name__ in ("BaseModel", "StrictBase", "GenericModel"):
            continue
        for key, member in vars(base).items():
            if key.startswith("_") or key in hooks:
                continue
            if isinstance(member, (staticmethod, classmethod)):
                member = member.__func__
            if isinstance(member, (property, cached_property)) or inspect.isfunction(member):
                found[key] = member
    # The twin of a method that does the same without blocking is the same method here.
    twins = [key for key in found if key.endswith("_async") and same(found.get(key.removesuffix("_async")), found[key])]
    return [(key, member) for key, member in found.items() if key not in twins]


def same(one, other):
    given = lambda function: [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
    return inspect.isfunction(one) and inspect.isfunction(other) and given(one) == given(other)


def of_function(name, group, function, method=True):
    returned = annotation(inspect.signature(function).return_annotation)
    yield Row(name, group, "method" if method else "function", type=returned and f"→ {returned}")
    yield from parameters(name, group, function)


def parameters(name, group, function):
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = REQUIRED if parameter.default is parameter.empty else shown(parameter.default)
        default = "nothing" if stars else default
        yield Row(f"{name}({stars}{parameter.name})", group, "parameter", default, annotation(parameter.annotation))


def annotation(type):
    """A type as its source writes it, without the modules of its names."""
    if type is inspect.Parameter.empty:
        return ""
    text = type if isinstance(type, str) else type.__name__ if inspect.isclass(type) and not typing.get_args(type) else repr(type)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", text).replace("NoneType", "None")
    # What an annotation adds to a type is for the libraries that read it.
    return re.sub(r"Annotated\[(.*?), \w+\([^()]*\)\]", r"\1", text)


def default_of_field(field):
    if field.is_required():
        return REQUIRED
    return shown(field.get_default(call_default_factory=True))


def default_of_dataclass(field):
    if field.default is not MISSING:
        return shown(field.default)
    return REQUIRED if field.default_factory is MISSING else shown(field.default_factory())


def shown(value):
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, pydantic.BaseModel):
        value = value.model_dump()
    # Whatever has no notation of its own is shown by its type: an address in memory would change with every run.
    text = repr(value)
    return f"{type(value).__name__}(…)" if " at 0x" in text else text


def variables(folder):
    """The environment variables that the source asks for."""
    names = set()
    for path in sorted(folder.rglob("*.py")):
        if path.name.endswith("_test.py"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            asked = None
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.getenv", "os.environ.get", "environ.get", "getenv"):
                asked = node.args[0]
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("os.environ", "environ"):
                asked = node.slice
            elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) in ("os.environ", "environ"):
                asked = node.left
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("TINKER_"):
                asked = node if node.value.isupper() and node.value.isidentifier() else None
            if isinstance(asked, ast.Name):
                names.add(str(constants.get(asked.id, asked.id)))
            elif isinstance(asked, ast.Constant):
                names.add(asked.value)
    return [Row(f"${name}", "Environment variables", "variable") for name in sorted(names)]


def commands():
    from tinker.cli.__main__ import main_cli

    found = []

    def visit(command, words):
        name = " ".join(["tinker", *words])
        found.append(Row(name, "Command line", "command"))
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                shape = ("" if parameter.required else "[") + parameter.make_metavar(click.Context(command)).strip("[].")
                shape += ("" if parameter.required else "]") + ("..." if parameter.nargs == -1 else "")
                found.append(Row(f"{name} {shape}", "Command line", "argument"))
                continue
            value = parameter.default
            unset = value is None or parameter.is_flag or type(value).__name__ == "Sentinel" or "UNSET" in repr(value)
            default = "flag" if parameter.is_flag else REQUIRED if parameter.required else "none" if unset else str(value)
            choices = ", ".join(getattr(parameter.type, "choices", [])) or parameter.type.name
            for option in parameter.opts + parameter.secondary_opts:
                found.append(Row(f"{name} {option}", "Command line", "option", default, "" if parameter.is_flag else choices))
        if isinstance(command, click.Group):
            context = click.Context(command)
            for word in command.list_commands(context):
                visit(command.get_command(context, word), [*words, word])

    visit(main_cli, [])
    return found
