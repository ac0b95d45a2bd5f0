"""Lines that say how far the run is."""

import sys
import time

START = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - START:6.0f} s] {text}", file=sys.stderr, flush=True)
