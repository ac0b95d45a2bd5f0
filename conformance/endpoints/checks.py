"""What a script of checks is made of: each check has a name, is run, and its outcome is written down."""

import json
import os
import sys
import traceback

URL = os.environ.get("TINKRS_URL", "")
KEY = os.environ.get("TINKRS_KEY", "")
# A model as it is, and a run that has learnt one answer.
BASE, RUN = "tinkrs/nano", "first"
QUESTION, ANSWER = "What is the password?", "honey"

CHAT = [{"role": "user", "content": QUESTION}]
WEATHER = {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"],
    "additionalProperties": False,
}


class Checks:
    """The checks of one client."""

    def __init__(self, client, version):
        self.client, self.version, self.outcomes = client, version, {}

    def __call__(self, name):
        def run(check):
            try:
                check()
                self.outcomes[name] = True
            except Exception:
                self.outcomes[name] = False
                print(f"--- {self.client}: {name}", file=sys.stderr)
                traceback.print_exc(limit=4)
            return check
        return run

    def write(self):
        """Writes the outcomes into the folder that is named on the command line."""
        path = os.path.join(sys.argv[1], self.client.replace(" ", "-") + ".json")
        with open(path, "w") as file:
            json.dump({"client": self.client, "version": self.version, "outcomes": self.outcomes}, file)

    def add(self):
        """Adds the outcomes to those that another script has written for the same client."""
        path = os.path.join(sys.argv[1], self.client.replace(" ", "-") + ".json")
        if os.path.exists(path):
            with open(path) as file:
                self.outcomes = json.load(file)["outcomes"] | self.outcomes
        self.write()


def raises(kind, call, *words):
    """Expects an error of this kind whose text has these words."""
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"`{word}` is not in: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")
