"""Thousands of connections that never send a whole request."""

import socket
import time

from attack.harness import healthz

TITLE = "2,000 half-open connections"
CONNECTIONS = 2000


def attack(target):
    quick = ["--header-timeout", "2s"] if target.has_option("--header-timeout") else []
    server = target.serve(*quick)
    sockets = []
    with healthz(server) as probe:
        for _ in range(CONNECTIONS):
            connection = socket.socket()
            connection.settimeout(2)
            try:
                connection.connect(server.address)
                connection.sendall(b"POST /api/v1/asample HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n")
            except OSError:
                pass
            sockets.append(connection)
        time.sleep(4)
        open_now = sum(is_open(connection) for connection in sockets)
    for connection in sockets:
        connection.close()
    p99 = probe.percentile(0.99)
    held = open_now == 0 and not probe.failures and p99 < 1
    return f"{open_now} still open after 4 s, health p99 {1000 * p99:.0f} ms, {len(probe.failures)} failures", held


def is_open(connection):
    """Whether nobody has hung up yet."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
