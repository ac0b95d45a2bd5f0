"""Bodies that come a byte at a time, and a response that nobody reads, beside an honest slow upload."""

import threading
import time

TITLE = "bodies that never end and responses that nobody takes"


def attack(target):
    quick = ["--body-timeout", "2s", "--write-timeout", "2s"] if target.has_option("--body-timeout") else []
    server = target.serve(*quick)
    api = server.api()
    session = api.session()
    head = ("POST /api/v1/session_heartbeat HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: tml-attacked\r\n"
            "content-type: application/json\r\ncontent-length: {}\r\n\r\n")
    drips = []
    for _ in range(50):
        connection = server.connect()
        connection.sendall(head.format(60000).encode())
        drips.append(connection)
    # 300 KB at 100 KB/s, as a sample with a long prompt.
    honest = {}

    def upload():
        body = b'{"session_id": "%s"%s}' % (session.encode(), b" " * 100_000)
        connection = server.connect(timeout=30)
        connection.sendall(head.format(len(body)).encode())
        for start in range(0, len(body), 10_000):
            connection.sendall(body[start:start + 10_000])
            time.sleep(0.1)
        honest["status"] = connection.recv(12)

    uploading = threading.Thread(target=upload)
    uploading.start()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        for connection in drips:
            try:
                connection.sendall(b" ")
            except OSError:
                pass
        time.sleep(0.25)
    uploading.join(30)
    ended = 0
    for connection in drips:
        connection.settimeout(0.05)
        try:
            ended += connection.recv(12) in (b"", b"HTTP/1.1 408")
        except TimeoutError:
            pass
        except OSError:
            ended += 1
    status = honest.get("status", b"").decode()
    return f"{ended} of 50 ended after 5 s; {status or 'no response'} for a slow honest upload", ended == 50 and status.endswith("200")
