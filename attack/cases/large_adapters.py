"""Sixteen adapters of the largest rank, in a process that may not have that much memory."""

from attack.harness import Refused

TITLE = "sixteen adapters of rank 1024 under a limit of 3 GB"


def attack(target):
    server = target.serve(address_space=3_000_000_000)
    api = server.api()
    session = api.session()
    model, refusals = api.model(session), []
    promises = [api.post("create_model", {"session_id": session, "model_seq_id": number, "base_model": "tinkrs/nano",
                                          "lora_config": {"rank": 1024}}) for number in range(1, 17)]
    try:
        refusals = [made["error"] for made in map(api.result, promises) if "error" in made]
        api.result(api.forward_backward(model, 1))
    except (OSError, Refused):
        pass
    lived = server.is_alive()
    server.kill()
    again = target.serve(address_space=3_000_000_000)
    works = False
    try:
        works = again.is_listening and "error" not in again.api().result(again.api().forward_backward(model, 2))
    except (OSError, Refused, TimeoutError):
        pass
    made = f"{16 - len(refusals)} created, {len(refusals)} refused with numbers" if lived else "the process died"
    restarted = "goes on after a restart" if works else "does not go on after a restart"
    told = all("MiB needed" in error and "MiB free" in error for error in refusals)
    return f"{made}; {restarted}", lived and works and bool(refusals) and told
