"""A run's name that turns the text around it, in a listing and in the log."""

from attack.harness import KEY, NANO

TITLE = "bidirectional control characters in names of others"
OVERRIDE = "\u202e"


def attack(target):
    server = target.serve("--log", "info")
    api = server.api()
    name = f"run {OVERRIDE}gpj.exe"
    session = api.post("create_session", {"tags": [name], "user_metadata": {"name": name}, "sdk_version": "0.36.0"})["session_id"]
    promise = api.post("create_model", {"session_id": session, "model_seq_id": 0, "base_model": NANO, "lora_config": {"rank": 8},
                                        "user_metadata": {"name": name}})
    model = api.result(promise)["model_id"]
    api.send("GET", "/api/v1/sessions/x%E2%80%AEy")
    status, _ = api.send("POST", f"/api/v1/training_runs/x{model}/nothing", {"name": name})
    env = {"TINKER_BASE_URL": server.url, "TINKER_API_KEY": KEY}
    reached = []
    for command in (["run", "list"], ["run", "info", model], ["session", "info", session], ["run", "info", f"x{OVERRIDE}"]):
        _, printed = target.tinkrs(*command, env=env)
        if OVERRIDE in printed:
            reached.append(" ".join(command[:2]))
    if OVERRIDE in server.log():
        reached.append("the log")
    return (f"printed by {', '.join(reached)}" if reached else "replaced everywhere"), not reached
