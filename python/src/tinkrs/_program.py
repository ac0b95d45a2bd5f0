"""Where the ``tinkrs`` program is."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def find_program() -> str:
    """Returns the path of the ``tinkrs`` program.

    It is the one that ``TINKRS_PROGRAM`` names, else the one that was installed with this package, else one on ``PATH``.
    """
    named = os.environ.get("TINKRS_PROGRAM")
    if named:
        if not os.path.isfile(named) or not os.access(named, os.X_OK):
            raise FileNotFoundError(f"TINKRS_PROGRAM is {named!r}, which is not a program")
        return os.path.abspath(named)
    name = "tinkrs" + (sysconfig.get_config_var("EXE") or "")
    user_scheme = sysconfig.get_preferred_scheme("user")
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", scheme=user_scheme),
        # With `pip install --target` the folder of scripts lies beside the package.
        str(Path(__file__).resolve().parent.parent / "bin"),
        os.path.dirname(sys.executable),
    ]
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    on_path = shutil.which(name)
    if on_path is None:
        raise FileNotFoundError(
            f"no `{name}` in {', '.join(folders)} or on PATH: install the package again, or name the program in TINKRS_PROGRAM"
        )
    return on_path
