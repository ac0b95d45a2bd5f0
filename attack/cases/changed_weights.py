"""One bit is flipped in a checkpoint's state, in a sampler's adapter and in all snapshots of a run."""

from attack.harness import NANO

TITLE = "a bit flipped in `state.safetensors`, an adapter, a snapshot"


def flip(path):
    found = bytearray(path.read_bytes())
    found[len(found) // 2] ^= 1
    path.write_bytes(found)


def failed(call):
    try:
        return "damaged" in str(call().get("error"))
    except Exception as refused:  # a run that is closed is refused at once, with the reason
        return "damaged" in str(getattr(refused, "body", b""))


def attack(target):
    # An older binary takes a snapshot after 64 operations.
    options, steps = (["--snapshot-operations", "2"], 4) if target.has_option("--snapshot-operations") else ([], 33)
    server = target.serve(*options)
    api = server.api()
    session = api.session()
    model = api.model(session)
    for step in range(steps):
        api.result(api.forward_backward(model, 2 * step + 1))
        api.result(api.optim_step(model, 2 * step + 2))
    state = api.result(api.post("save_weights", {"model_id": model, "seq_id": 2 * steps + 1, "path": "a"}))["path"]
    adapter = api.result(api.post("save_weights_for_sampler", {"model_id": model, "seq_id": 2 * steps + 2, "path": "b"}))["path"]
    server.stop()
    for path in server.data.rglob("*.safetensors"):
        flip(path)
    again = target.serve(*options)
    if not again.is_listening:
        return "the server does not start", False
    api = again.api()
    other = api.model(api.session())
    sampler = api.post("create_sampling_session", {"session_id": api.session(), "sampling_session_seq_id": 0,
                                                   "base_model": NANO, "model_path": adapter})["sampling_session_id"]
    found = {
        "state": failed(lambda: api.result(api.post("load_weights", {"model_id": other, "seq_id": 1, "path": state,
                                                                     "optimizer": True}))),
        "adapter": failed(lambda: api.result(api.sample([1, 2, 3], sampler=sampler, seq_id=0))),
        "snapshot": failed(lambda: api.result(api.forward_backward(model, 2 * steps + 3))),
    }
    goes_on = "error" not in api.result(api.forward_backward(other, 2))
    text = ", ".join(f"{name} {'is an error by name' if ok else 'is used'}" for name, ok in found.items())
    return f"{text}; another run {'goes on' if goes_on else 'fails'}", all(found.values()) and goes_on
