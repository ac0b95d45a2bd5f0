"""The files of one run are copied over those of another, with their manifests: of a checkpoint, and of all snapshots."""

import shutil

TITLE = "a checkpoint and the snapshots of one run copied over another's"


def outcome(call):
    try:
        return call()
    except Exception as refused:  # a run that is closed is refused at once, with the reason
        return {"error": str(refused)}


def attack(target):
    # An older binary takes a snapshot after 64 operations.
    options, steps = (["--snapshot-operations", "2"], 4) if target.has_option("--snapshot-operations") else ([], 33)
    server = target.serve(*options)
    api = server.api()
    session = api.session()
    models = [api.model(session, seq_id=number) for number in range(2)]
    end = 2 * steps + 1
    for model, rate in zip(models, (1e-3, 1e-2)):
        for step in range(steps):
            api.result(api.forward_backward(model, 2 * step + 1))
            api.result(api.optim_step(model, 2 * step + 2, rate))
        api.result(api.post("save_weights", {"model_id": model, "seq_id": end, "path": "a"}))
    # A pass changes nothing, so the next one has the same result.
    before = api.result(api.forward_backward(models[0], end + 1))
    server.stop()
    names = [model.replace(":", ".") for model in models]
    one, other = (next(server.data.glob(f"checkpoints/{name}/weights/*")) for name in names)
    shutil.copytree(other, one, dirs_exist_ok=True)
    one, other = (server.data / "snapshots" / name for name in names)
    last = max(other.glob("*.safetensors"), key=lambda path: int(path.stem))
    for path in one.glob("*.safetensors"):
        for ending in (".safetensors", ".manifest.jsonl"):
            if last.with_suffix(ending).exists():
                shutil.copy(last.with_suffix(ending), path.with_suffix(ending))
    api = target.serve(*options).api()
    after = outcome(lambda: api.result(api.forward_backward(models[0], end + 2)))
    loader = api.model(api.session())
    loaded = outcome(lambda: api.result(api.post("load_weights", {
        "model_id": loader, "seq_id": 1, "path": f"tinker://{models[0]}/weights/a", "optimizer": True})))
    used = {"snapshot": "error" not in after and after != before, "checkpoint": "error" not in loaded}
    return ", ".join(f"{name} {'is used' if wrong else 'is not used'}" for name, wrong in used.items()), not any(used.values())
