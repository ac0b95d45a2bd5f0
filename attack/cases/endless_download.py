"""A file that never ends must not fill the disk."""

from attack.hostile import answer, endless, hostile, request

TITLE = "an endless file (`checkpoint download`)"
LIMIT_MIB = 400


def attack(target):
    taken, urls = [], {}

    def handle(connection):
        while path := request(connection):
            if path.startswith("/file"):
                taken.append(endless(connection, most=1 << 30))
                return
            if path.endswith("external_weights_urls"):
                answer(connection, {"urls": {"adapter_model.safetensors": urls["here"] + "/file"}, "expires": "2999-01-01T00:00:00Z"})
            else:
                answer(connection, {"pjwt_auth_enabled": False} if path.endswith("client/config") else {})

    with hostile(handle) as urls["here"]:
        command = ["checkpoint", "download", "tinker://r:train:0/external_weights/x", "-o", target.path("out")]
        code, text = target.tinkrs(*command, timeout=60, env={"TINKER_BASE_URL": urls["here"], "TINKER_API_KEY": "tml-x"})
    most = max(taken, default=0) / 2**20
    seen = f"{most:.0f} MiB taken, {'still waiting' if code is None else f'exit code {code}'}"
    return seen, code == 1 and 0 < most < LIMIT_MIB and "which is the limit" in text
