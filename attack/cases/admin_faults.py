"""Any caller on the machine can switch on failures for everybody."""

TITLE = "another user's key injects faults for everybody"


def attack(target):
    server = target.serve()
    api = server.api()
    status, _ = api.send("PUT", "/admin/faults", {"rules": [{"endpoint": "get_server_capabilities", "fault": 503}]})
    victim, _ = server.api("tml-victim").send("GET", "/api/v1/get_server_capabilities")
    return f"{status}, and then {victim} for another owner", victim == 200
