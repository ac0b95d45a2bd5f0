"""Rewards short answers: reads a JSON line for each answer, writes a number."""

import json
import sys

for line in sys.stdin:
    words = json.loads(line)["completion"].split()
    print(-len(words) / 10 if words else -2.0, flush=True)
