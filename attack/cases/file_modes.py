"""Other users of the machine read the data folder and the key file."""

TITLE = "other users read the data folder and a key file"


def open_to_others(folder):
    return [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


def attack(target):
    keys = target.path("keys")
    keys.write_text("tml-attacked\n")
    keys.chmod(0o644)
    server = target.serve("--api-key-file", keys)
    server.api().session()
    warned = "chmod 600" in server.log()
    # Not only a server has such a folder.
    local = target.path("local")
    target.tinkrs("sample", "Who are you?", "--max-tokens", "1", "--local", "--data-dir", local)
    served, sampled = len(open_to_others(server.data)), len(open_to_others(local))
    held = not served and not sampled and warned and (local / "tinkrs.db").exists()
    return (
        f"{served} files and folders open with `serve`, {sampled} with `sample`, "
        f"{'a' if warned else 'no'} warning for the key file",
        held,
    )
