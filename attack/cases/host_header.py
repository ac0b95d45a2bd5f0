"""A page in a browser on this machine can be made to call a loopback server under its own name (DNS rebinding)."""

TITLE = "a foreign `Host` (a web page that rebinds its name to 127.0.0.1)"


def attack(target):
    api = target.serve().api()
    status, _ = api.send("GET", "/api/v1/get_server_capabilities", headers={"host": "evil.example:8000"})
    ours, _ = api.send("GET", "/api/v1/get_server_capabilities", headers={"host": "localhost:8000"})
    return f"{status}, and {ours} for localhost", status in (400, 403, 421) and ours == 200
