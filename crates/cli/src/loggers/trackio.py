# Reads lines of JSON about a run, and tells trackio.
import contextlib, json, os, sys

import trackio

line = sys.stdin.readline()
if not line:
    sys.exit()
first = json.loads(line)
with contextlib.redirect_stdout(sys.stderr):
    trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", "tinkrs"),
        name=first["name"],
        config=first["config"],
        embed=False,
        # A run that goes on after it was stopped is the same one.
        resume="allow",
    )
    for line in sys.stdin:
        event = json.loads(line)
        trackio.log(event["metrics"], step=event["step"])
    trackio.finish()
