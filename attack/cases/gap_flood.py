"""Operations that wait for a sequence number that never comes must not take the places of other keys."""

import time

from attack.harness import Refused

TITLE = "1,024 operations behind a missing number; another key trains"


def attack(target):
    server = target.serve()
    one, other = server.api("tml-one"), server.api("tml-other")
    stuck = one.model(one.session())
    theirs = other.model(other.session())
    taken = 0
    for seq_id in range(2, 1200):
        try:
            one.optim_step(stuck, seq_id)
        except Refused as refused:
            if refused.status != 429:
                raise
            break
        taken += 1
    start = time.monotonic()
    try:
        result = other.result(other.forward_backward(theirs, 1), timeout=20)
    except (Refused, TimeoutError) as error:
        return f"{taken} wait; the other key is refused: {str(error)[:60]}", False
    waited = time.monotonic() - start
    return f"{taken} wait; the other key's pass took {waited:.2f} s", "error" not in result and taken <= 1024 and waited < 5
