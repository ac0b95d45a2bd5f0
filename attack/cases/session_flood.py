"""Sessions without end, each with as many labels as it may have. None of them is ever finished."""

import threading

from attack.harness import healthz

TITLE = "3,000 open sessions with 110 KB of labels each"
SESSIONS, THREADS = 3000, 12


def attack(target):
    server = target.serve()
    api, other = server.api(), server.api(key="tml-another")
    before = server.memory_mib()
    body = {"tags": ["x" * 55_000], "user_metadata": {"name": "y" * 55_000}, "sdk_version": "0.36.0"}
    statuses, details = [], set()

    def send():
        for _ in range(SESSIONS // THREADS):
            try:
                status, answer = api.send("POST", "/api/v1/create_session", body)
            except OSError as error:
                status, answer = type(error).__name__, b""
            statuses.append(status)
            if status != 200:
                details.add(answer[:120])

    senders = [threading.Thread(target=send) for _ in range(THREADS)]
    with healthz(server) as probe:
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(60)
    taken, grown = statuses.count(200), server.memory_mib() - before
    works = bool(other.model(other.session()))
    told = all(b"open sessions" in detail for detail in details)
    held = taken < SESSIONS and told and grown < 250 and works and probe.percentile(0.99) < 0.5
    return f"{taken} taken, {grown:.0f} MiB more, another key {'works' if works else 'does not work'}", held
