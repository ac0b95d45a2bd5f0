"""Hundreds of streams of one key, most of them never read and then dropped, beside another key's chat."""

import json
import socket
import time

from attack.harness import NANO, Refused

TITLE = "400 streams of 128 answers each that nobody reads, then hang-ups; another key chats"
STREAMS = 400


def streams(server, count):
    body = json.dumps({"model": NANO, "messages": [{"role": "user", "content": "hi"}], "n": 128, "max_tokens": 300, "ignore_eos": True,
                       "logprobs": True, "top_logprobs": 20, "stream": True}).encode()
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer tml-one\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n").encode()
    opened = []
    for _ in range(count):
        connection = server.connect()
        # Nothing fits into a window that small: the server has to hold what is not taken, or stop.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head + body)
        opened.append(connection)
    return opened


def waiting(api):
    """How many bytes of requests the server holds."""
    _, metrics = api.send("GET", "/metrics")
    lines = [line for line in metrics.decode().splitlines() if line.startswith("tinkrs_memory_bytes") and 'kind="waiting"' in line]
    return float(lines[0].rsplit(" ", 1)[1]) if lines else float("nan")


def attack(target):
    server = target.serve("--memory", "1GiB") if target.has_option("--memory") else target.serve()
    one, other = server.api("tml-one"), server.api("tml-other")
    before = server.memory_mib("VmRSS")
    opened = streams(server, STREAMS)
    times = []
    for _ in range(3):
        start = time.monotonic()
        status, answer = other.send("POST", "/v1/chat/completions", {
            "model": NANO, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}, timeout=30)
        if status != 200:
            raise Refused(status, answer)
        times.append(time.monotonic() - start)
    time.sleep(3)
    grown = server.memory_mib() - before
    for connection in opened:
        connection.close()
    # Generation stops at the next step: what the requests held is given back.
    end = time.monotonic() + 20
    while time.monotonic() < end and (left := waiting(one)) > 0:
        time.sleep(0.1)
    took = 20 - (end - time.monotonic())
    held = max(times) < 10 and grown < 600 and left == 0 and server.is_alive()
    return (f"{grown:.0f} MiB more; the other key's chats took {max(times):.2f} s at most; "
            f"{'all' if left == 0 else 'not all'} ended {took:.1f} s after the hang-ups"), held
