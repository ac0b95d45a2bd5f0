"""Other users of the machine read the data folder and the key file."""

TITLE = "other users read the data folder and a key file"


def attack(target):
    keys = target.path("keys")
    keys.write_text("tml-attacked\n")
    keys.chmod(0o644)
    server = target.serve("--api-key-file", keys)
    server.api().session()
    modes = {server.data.stat().st_mode & 0o777}
    files = [path for path in server.data.iterdir() if path.is_file()]
    opened = [path.name for path in files if path.stat().st_mode & 0o077]
    warned = "chmod 600" in server.log()
    folder = max(modes)
    held = folder == 0o700 and not opened and warned
    return f"folder {folder:o}, {len(opened)} of {len(files)} files open, {'a' if warned else 'no'} warning for the key file", held
