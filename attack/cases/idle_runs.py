"""Runs that nobody uses, in sessions that are kept open."""

import time

TITLE = "200 idle runs of rank 8"


def attack(target):
    server = target.serve(*(["--keep-idle-runs", "1s"] if target.has_option("--keep-idle-runs") else []))
    api = server.api()
    session = api.session()
    api.model(session)
    before = server.memory_mib("VmRSS")
    models = [api.model(session, seq_id=number) for number in range(1, 201)]
    for model in models:
        promises = api.forward_backward(model, 1), api.optim_step(model, 2)
    for promise in promises:
        api.result(promise)
    end = time.monotonic() + 20
    while (grown := server.memory_mib("VmRSS") - before) > 60 and time.monotonic() < end:
        time.sleep(0.2)
    works = "error" not in api.result(api.forward_backward(models[0], 3))
    return f"{grown / 200:.1f} MiB each{'' if works else ', and they do not come back'}", grown <= 90 and works
