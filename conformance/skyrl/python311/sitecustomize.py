"""Lets the published skyrl 0.3.0 be imported by Python 3.11, which it says it supports.

It gives a `typing.TypedDict` to pydantic, which takes only that of `typing_extensions` before Python 3.12. Python runs
this file at its start if it is on the path; the package itself stays as it was published.
"""

import sys
import typing

if sys.version_info < (3, 12):
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict
