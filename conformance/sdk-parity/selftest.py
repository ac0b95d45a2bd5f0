"""The comparison fails where it should: each case changes one thing and expects the row by its name."""

import copy
import sys
import tomllib

import official
from official import Row
from ours import Ours
from parity import HERE, ROOT, Comparison, changes, document

CLOSE = "ServiceClient.close(urgent)"
RANK = "ServiceClient.create_lora_training_client(rank)"


class Case:
    """Everything that is compared, to be changed."""

    def __init__(self, rows, ours, table):
        self.rows, self.ours, self.table = dict(rows), copy.deepcopy(ours), copy.deepcopy(table)

    def add(self, name, kind, default=None):
        self.rows[name] = Row(name, "ServiceClient", kind, default)

    def set_default(self, name, default):
        self.rows[name] = Row(name, self.rows[name].group, self.rows[name].kind, default)

    def forget_member(self, owner, name):
        del self.ours.api.item(owner).members[name]


CASES = {
    "a new parameter": (CLOSE, lambda case: case.add(CLOSE, "parameter", "False")),
    "a new method": ("ServiceClient.fly", lambda case: case.add("ServiceClient.fly", "method")),
    "a new class": ("FlyingClient", lambda case: case.add("FlyingClient", "class")),
    "a new value": ('StopReason "bored"', lambda case: case.add('StopReason "bored"', "value")),
    "a new variable": ("$TINKER_FLY", lambda case: case.add("$TINKER_FLY", "variable")),
    "a new command": ("tinker fly", lambda case: case.add("tinker fly", "command")),
    "a new option": ("tinker run list --fly", lambda case: case.add("tinker run list --fly", "option", "flag")),
    "a new argument": ("tinker version NAME", lambda case: case.add("tinker version NAME", "argument")),
    "a row that went away": ("ServiceClient.copy_weights", lambda case: case.rows.pop("ServiceClient.copy_weights")),
    "a parameter that got a default": ("ServiceClient.close(status)", lambda case: case.set_default("ServiceClient.close(status)", "'success'")),
    "another default": (RANK, lambda case: case.set_default(RANK, "64")),
    "another default of an option": ("tinker run list --limit", lambda case: case.set_default("tinker run list --limit", "50")),
    "another default of ours": (RANK, lambda case: case.ours.defaults.update({"training::operation::CreateLoraTrainingClient::rank": 16})),
    "a default of ours that nothing checks": (RANK, lambda case: case.ours.defaults.pop("training::operation::CreateLoraTrainingClient::rank")),
    "another default of our option": (
        "tinker checkpoint list --limit",
        lambda case: setattr(case.ours.commands["checkpoint list"].options["--limit"], "default", "7"),
    ),
    "a method that we lost": ("TrainingClient.get_info", lambda case: case.forget_member("TrainingClient", "get_info")),
    "a setter that we lost": ("RestClient.list_training_runs(project_id)", lambda case: case.forget_member("rest::ListTrainingRuns", "project_id")),
    "a field that we lost": ("TrainingRun.corrupted", lambda case: case.forget_member("rest::TrainingRun", "corrupted")),
    "an item of the table that we lost": ("APIStatusError.body", lambda case: case.forget_member("Error", "body")),
    "an option that we lost": ("tinker checkpoint delete --before", lambda case: case.ours.commands["checkpoint delete"].options.pop("--before")),
    "a variable that we lost": ("$TINKER_TAGS", lambda case: case.ours.variables.remove("TINKER_TAGS")),
    "an exception without a reason": ("ExperimentalWarning", lambda case: case.table["ExperimentalWarning"].pop("reason")),
    "a word that the table does not know": ("APIFuture", lambda case: case.table["APIFuture"].update({"because": "…"})),
}


def main():
    rows, ours, table = official.rows(), Ours(ROOT), tomllib.loads((HERE / "table.toml").read_text())
    base = Comparison(rows, ours, table)
    known = set(base.problems)
    failed = []
    for what, (name, change) in CASES.items():
        case = Case(rows, ours, table)
        change(case)
        problems = Comparison(case.rows, case.ours, case.table).problems
        if not any(problem[0] == name and problem not in known for problem in problems):
            failed.append(f"{what}: `{name}` does not fail")
    # A row of the SDK that finds its counterpart here by its name is new all the same: the document says so.
    case = Case(rows, ours, table)
    case.add("TrainingClient.model_id", "field")
    del case.rows["TrainingClient.get_info"]
    fresh = Comparison(case.rows, case.ours, case.table)
    listed = list(changes(document(rows, base.found), document(case.rows, fresh.found)))
    for name in ("`TrainingClient.model_id`: is new", "`TrainingClient.get_info`: is in docs/sdk-parity.md"):
        if not any(line.startswith(name) for line in listed):
            failed.append(f"the document does not show {name}")
    for line in failed:
        print(f"self-test: {line}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
