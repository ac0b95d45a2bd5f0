"""Labels of a session that are a million tiny members."""

import threading
import time

from attack.harness import healthz

TITLE = "three `user_metadata` objects of 10 MB"


def attack(target):
    server = target.serve()
    api = server.api()
    before = server.memory_mib()
    members = ",".join(f'"{number}":""' for number in range(950_000))
    body = ('{"tags":[],"sdk_version":"1","user_metadata":{' + members + "}}").encode()
    statuses = []

    def send():
        try:
            statuses.append(api.send("POST", "/api/v1/create_session", body)[0])
        except OSError as error:
            statuses.append(type(error).__name__)

    senders = [threading.Thread(target=send) for _ in range(3)]
    with healthz(server) as probe:
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(60)
        time.sleep(0.5)
    worst = probe.percentile(0.99)
    grown = server.memory_mib() - before
    held = worst < 0.5 and not probe.failures and 200 not in statuses and grown < 300
    return f"{statuses}, health p99 {1000 * worst:.0f} ms, {grown:.0f} MiB more", held
