"""Nobody should wait for minutes to hear that a server is not there, or that it never answers."""

import threading
import time

from attack.hostile import closed_port, dripping, hostile, silent

TITLE = "no server: a closed port, a name that nobody has, one that is silent, one that drips (`model list`)"
LIMIT_SECONDS = 45
CAUSES = {"closed": "refused", "name": "lookup", "silent": "no response", "drips": "no response"}


def attack(target):
    found = {}

    def ask(name, url):
        start = time.monotonic()
        code, text = target.tinkrs("model", "list", timeout=LIMIT_SECONDS, env={"TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-x"})
        found[name] = code, text.lower(), time.monotonic() - start

    with hostile(silent) as silence, hostile(dripping) as drips:
        urls = {"closed": closed_port(), "name": "http://nobody.invalid", "silent": silence, "drips": drips}
        asked = [threading.Thread(target=ask, args=item) for item in urls.items()]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()
    late = [name for name, (code, _, _) in found.items() if code is None]
    if late:
        return f"{', '.join(sorted(late))}: still waiting after {LIMIT_SECONDS} s", False
    vague = [name for name, (code, text, _) in found.items() if code != 1 or CAUSES[name] not in text or "retrying for" not in text]
    if vague:
        return f"{', '.join(sorted(vague))}: no cause in {found[vague[0]][1][:200]!r}", False
    times = ", ".join(f"{name} {seconds:.0f} s" for name, (_, _, seconds) in sorted(found.items()))
    return f"an error with its cause: {times}", True
