"""Servers that clients should not trust: each is a function that gets a connection, on a port of 127.0.0.1."""

import contextlib
import json
import socket
import threading
import time

CHUNK = b"x" * 65536


@contextlib.contextmanager
def hostile(handle):
    """Listens on a free port and calls `handle(connection)` for each connection. Gives the URL.

    At the end it waits for what is under way: a handler may still write down what it saw when its client has ended.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    serving = []

    def serve(connection):
        with contextlib.suppress(OSError), connection:
            handle(connection)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                thread = threading.Thread(target=serve, args=(connection,), daemon=True)
                thread.start()
                serving.append(thread)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        deadline = time.monotonic() + 10
        for thread in serving:
            thread.join(max(0, deadline - time.monotonic()))


def closed_port():
    """A URL where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def request(connection):
    """Reads a request. Returns its path, or None at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while length and len(body) < length[0]:
        body += connection.recv(65536)
    return head.split()[1].decode()


def answer(connection, body):
    data = json.dumps(body).encode()
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data)


def silent(connection):
    """Takes everything and never answers."""
    while connection.recv(65536):
        pass


def dripping(connection):
    """Answers with a byte a second."""
    request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(1)


def endless(connection, head=b"", most=3 << 30):
    """Sends a body without a length and without an end: a string that is never closed. Returns how much of it was taken."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n" + head)
    sent = 0
    with contextlib.suppress(OSError):
        while sent < most:
            connection.sendall(CHUNK)
            sent += len(CHUNK)
    return sent
