"""A long pass must let the passes and samples of other keys in between."""

import time

from attack.harness import Refused

TITLE = "a pass of many seconds; another key samples 4 tokens and trains a short pass"


def attack(target):
    server = target.serve(*["--poll-timeout", "0.2s"] if target.has_option("--poll-timeout") else [])
    one, other = server.api("tml-one"), server.api("tml-other")
    long, short = one.model(one.session(), rank=32), other.model(other.session())
    promise = one.forward_backward(long, 1, datums=2600, length=120)
    time.sleep(0.3)
    try:
        start = time.monotonic()
        sampled = other.result(other.sample([1, 5, 9], max_tokens=4), timeout=45)
        sample = time.monotonic() - start
        trained = other.result(other.forward_backward(short, 1), timeout=45)
        both = time.monotonic() - start
    except (Refused, TimeoutError) as error:
        return f"the other key: {str(error)[:60]}", False
    status, _ = one.send("POST", "/api/v1/retrieve_future", {"request_id": promise["request_id"]})
    is_under_way = status == 408
    seen = f"sample {sample:.2f} s, short pass {both - sample:.2f} s, {'before' if is_under_way else 'after'} the end of the long one"
    return seen, is_under_way and "error" not in sampled and "error" not in trained and both < 20
