"""A data folder comes from a stranger: a link in it, or a row of its database, leads to the files of the one who starts a server on it."""

import sqlite3
import time

TITLE = "a link or a path `../..` in a data folder leads out of it"


def link(data, outside):
    (data / "checkpoints" / "x").symlink_to(outside)


def top_link(data, outside):
    """The folder itself is a link; what is there looks like what a server left half-written."""
    (data / "partial").rmdir()
    (data / "partial").symlink_to(outside)


def row(data, outside):
    """A checkpoint whose time is over, so that its folder is removed."""
    with sqlite3.connect(data / "tinkrs.db") as database:
        database.execute("UPDATE checkpoints SET record = json_set(record, '$.folder', ?, '$.checkpoint.expires_at', '2020-01-01T00:00:00Z')",
                         (f"../{outside.name}",))


def attack(target):
    seen, held = [], True
    for lure in (link, top_link, row):
        server = target.serve(data=lure.__name__)
        api = server.api()
        model = api.model(api.session())
        api.result(api.post("save_weights", {"model_id": model, "seq_id": 1, "path": "a"}))
        server.stop()
        outside = target.path(f"{lure.__name__}-outside")
        (outside / "a" / "b").mkdir(parents=True)
        (outside / "a" / "b" / "mine").write_text("mine")
        lure(server.data, outside)
        again = target.serve(data=lure.__name__)
        started = again.is_listening
        if started:
            again.api().session()
            # Housekeeping comes once a second.
            for _ in range(30):
                if not (outside / "a" / "b" / "mine").exists():
                    break
                again.api().send("GET", "/api/v1/checkpoints")
                time.sleep(0.1)
        again.stop()
        target.tinkrs("data", "repair", server.data)
        kept = (outside / "a" / "b" / "mine").exists()
        seen.append(f"{lure.__name__}: {'started' if started else 'refused'}, files outside {'kept' if kept else 'gone'}")
        held &= kept
    return "; ".join(seen), held
