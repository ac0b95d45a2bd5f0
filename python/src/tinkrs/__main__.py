"""``python -m tinkrs`` is the ``tinkrs`` command."""

import os
import subprocess
import sys

from . import find_program


def main() -> int:
    command = [find_program(), *sys.argv[1:]]
    if os.name == "posix":
        os.execv(command[0], command)
    return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main())
