"""Measures what a training client in Rust could save a Python caller, before there is one.

usage: crossing_python.py DATUMS TOKENS TURNS

The least that such a client does is to read the lists of the official `Datum` out of Python; `array` does that in C, without
conversion to anything else. Prints nanoseconds of CPU a token for that, with the SDK's own work to compare it to: its
conversions alone (`client_python.py wire`), or a whole step (`client_python.py train`). The fastest turn counts.
"""

import array
import json
import sys
import time

from client_python import supervised


def crossing(batch):
    """Copies what a datum holds, as the Rust client would be handed it."""
    copied = 0
    for datum in batch:
        for chunk in datum.model_input.chunks:
            copied += len(array.array("I", chunk.tokens))
        for name, tensor in datum.loss_fn_inputs.items():
            copied += len(array.array("I" if name == "target_tokens" else "f", tensor.data))
    return copied


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    datums, tokens, turns = map(int, sys.argv[1:])
    # Datums of their own: one that is repeated would stay in the caches.
    batch = [supervised(tokens) for _ in range(datums)]
    fastest = None
    for _ in range(turns):
        start = time.process_time()
        assert crossing(batch) == 3 * datums * tokens
        took = time.process_time() - start
        fastest = took if fastest is None else min(fastest, took)
    print(json.dumps({"mode": "crossing", "cpu_ns_per_token": round(fastest / datums / tokens * 1e9, 2)}))
