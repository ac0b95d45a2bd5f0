# Reads lines of JSON about a run, and tells trackio.
import contextlib, json, os, sys

import trackio

first = json.loads(sys.stdin.readline())
with contextlib.redirect_stdout(sys.stderr):
    trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", "tinkrs"),
        name=first["name"],
        config=first["config"],
        embed=False,
    )
    for line in sys.stdin:
        event = json.loads(line)
        trackio.log(event["metrics"], step=event["step"])
    trackio.finish()
