"""A server that sends more than was asked for must not fill the memory of its clients."""

from attack.hostile import endless, hostile, request

TITLE = "an endless JSON response (`model list`)"
LIMIT_MIB = 200


def attack(target):
    taken = []

    def handle(connection):
        request(connection)
        taken.append(endless(connection, b'{"supported_models": "'))

    with hostile(handle) as url:
        code, text = target.tinkrs("model", "list", timeout=60, env={"TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-x"})
    most = max(taken, default=0) / 2**20
    seen = f"{most:.0f} MiB taken, {'still waiting' if code is None else f'exit code {code}'}"
    return seen, code == 1 and most < LIMIT_MIB and "longer than" in text
