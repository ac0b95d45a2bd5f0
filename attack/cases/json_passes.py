"""A large update as old clients send it: many passes of 3.3 MB JSON at once, beside heartbeats."""

import json
import threading

from attack.harness import Probe, healthz

TITLE = "208 JSON passes of 3.3 MB at once, beside heartbeats, with 512 MiB of memory"
PASSES = 208
MEMORY_MIB = 512


def attack(target):
    limit = ["--memory", f"{MEMORY_MIB}MiB"] if target.has_option("--memory") else []
    server = target.serve("--log", "warn", *limit)
    api = server.api()
    session = api.session()
    model = api.model(session)
    length = 1024
    tokens = [number % 500 + 1 for number in range(length)]
    datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
             "loss_fn_inputs": {"target_tokens": {"data": tokens, "dtype": "int64", "shape": [length]},
                                "weights": {"data": [0.123456789] * length, "dtype": "float32", "shape": [length]}}}
    body = {"model_id": model, "seq_id": 0, "forward_backward_input": {"data": [datum] * 140, "loss_fn": "cross_entropy"}}
    text = json.dumps(body)
    statuses = []

    def send(seq_id):
        # Number 1 never comes, so nothing is computed.
        try:
            sent = text.replace('"seq_id": 0', f'"seq_id": {seq_id}').encode()
            statuses.append(api.send("POST", "/api/v1/forward_backward", sent)[0])
        except OSError as error:
            statuses.append(type(error).__name__)

    def heartbeat():
        api.post("session_heartbeat", {"session_id": session}, timeout=20)

    senders = [threading.Thread(target=send, args=[seq_id]) for seq_id in range(2, PASSES + 2)]
    with healthz(server) as probe, Probe(heartbeat) as heartbeats:
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(90)
    health, beat = probe.percentile(0.99), heartbeats.percentile(0.99)
    taken = statuses.count(200)
    others = sorted({str(status) for status in statuses if status != 200})
    stopped, memory = "was stopped" in server.log(), server.memory_mib()
    held = health < 0.5 and beat < 0.5 and taken == PASSES and not stopped and not probe.failures + heartbeats.failures and memory < MEMORY_MIB
    return (f"{taken} taken{', others: ' + ', '.join(others) if others else ''}, {len(text) / 1e6:.1f} MB each; p99 of health {1000 * health:.0f} ms, of heartbeats {1000 * beat:.0f} ms; "
            f"{memory:.0f} MiB at most"), held
