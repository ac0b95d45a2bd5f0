"""The database is removed, loses its write-ahead log, or has a bit flipped, and the server is started again."""

from attack.harness import NANO

TITLE = "the database removed, its `-wal` removed, or a bit of it flipped"


def remove(data):
    for path in data.glob("tinkrs.db*"):
        path.unlink()


def remove_log(data):
    (data / "tinkrs.db-wal").unlink(missing_ok=True)


def flip(data):
    path = data / "tinkrs.db"
    found = bytearray(path.read_bytes())
    # A page of the tables, where a whole byte of its header decides what it is.
    place = 4096 * (len(found) // 4096 // 2)
    found[place] ^= 0x40
    path.write_bytes(found)


def weights(data):
    return sum(1 for path in data.rglob("*.safetensors") if "partial" not in path.parts)


def attack(target):
    seen, held = [], True
    for lose in (remove, remove_log, flip):
        server = target.serve(data=lose.__name__)
        api = server.api()
        model = api.model(api.session())
        saved = api.result(api.post("save_weights_for_sampler", {"model_id": model, "seq_id": 1, "path": "a"}))
        api.result(api.post("save_weights", {"model_id": model, "seq_id": 2, "path": "a"}))
        # With the log emptied into the file, or left behind.
        server.kill() if lose is remove_log else server.stop()
        before = weights(server.data)
        lose(server.data)
        again = target.serve(data=lose.__name__)
        started = again.is_listening
        again.stop()
        after = weights(server.data)
        code, _ = target.tinkrs("data", "repair", server.data)
        last = target.serve(data=lose.__name__)
        listed = 0
        if last.is_listening:
            api = last.api()
            status, _ = api.send("GET", f"/api/v1/training_runs/{model}/checkpoints")
            made = api.post("create_sampling_session", {"session_id": api.session(), "sampling_session_seq_id": 0,
                                                        "base_model": NANO, "model_path": saved["path"]}) if status == 200 else {}
            if made.get("sampling_session_id"):
                drawn = api.result(api.sample([1, 2, 3], sampler=made["sampling_session_id"], seq_id=0))
                listed = int("error" not in drawn)
        seen.append(f"{lose.__name__}: {'started' if started else 'refused'}, {before} → {after} files, "
                    f"{'sampled after repair' if listed else 'gone'}")
        held &= after >= before and code == 0 and listed == 1
    return "; ".join(seen), held
