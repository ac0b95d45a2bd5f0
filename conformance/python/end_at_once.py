"""Runs a script, or a module with -m, and ends the process when it is done.

The SDK's threads are still alive when the interpreter takes itself down, and once in a while that aborts a process whose
work was done and right. What is left of it then says nothing about the server.
"""

import os
import runpy
import sys
import traceback


def main():
    is_module = sys.argv[1] == "-m"
    name = sys.argv[2] if is_module else sys.argv[1]
    sys.argv = sys.argv[2:] if is_module else sys.argv[1:]
    run = runpy.run_module if is_module else runpy.run_path
    try:
        run(name, run_name="__main__")
    except SystemExit as ended:
        return ended.code
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


code = main()
if code is not None and not isinstance(code, int):
    print(code, file=sys.stderr)
    code = 1
sys.stdout.flush()
sys.stderr.flush()
os._exit(code or 0)
