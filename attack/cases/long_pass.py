"""A long pass must let the passes and samples of other keys in between."""

import time

from attack.harness import Refused

TITLE = "a pass of many seconds; another key samples 4 tokens and trains a short pass"


def attack(target):
    server = target.serve()
    one, other = server.api("tml-one"), server.api("tml-other")
    long, short = one.model(one.session(), rank=32), other.model(other.session())
    promise = one.forward_backward(long, 1, datums=2600, length=120)
    time.sleep(0.3)
    try:
        start = time.monotonic()
        sampled = other.result(other.sample([1, 5, 9], max_tokens=4), timeout=30)
        sample = time.monotonic() - start
        trained = other.result(other.forward_backward(short, 1), timeout=30)
        both = time.monotonic() - start
    except (Refused, TimeoutError) as error:
        return f"the other key: {str(error)[:60]}", False
    one.result(promise, timeout=90)
    whole = time.monotonic() - start
    seen = f"sample {sample:.2f} s, short pass {both - sample:.2f} s, the long one {whole:.1f} s"
    return seen, "error" not in sampled and "error" not in trained and both < whole / 3
