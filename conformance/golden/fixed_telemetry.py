"""A fixed clock and fixed ids for the SDK's telemetry module, in every SDK version."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock
from uuid import UUID


def fixed(module: Any) -> contextlib.ExitStack:
    """Replaces what `tinker.lib.telemetry` takes from the machine, and switches it on.

    Time starts at 2026-01-02T03:04:05Z and moves 1.50025 seconds with each look at the
    clock; ids count up from 1.
    """
    identifiers, ticks = itertools.count(1), itertools.count()

    class Clock:
        @staticmethod
        def now(_: Any) -> datetime:
            start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
            return start + timedelta(milliseconds=1500.25) * next(ticks)

    replaced: dict[str, Any] = {
        "uuid4": lambda: UUID(int=next(identifiers), version=4),
        "datetime": Clock,
    }
    if hasattr(module, "_process_uuid"):
        replaced["_process_uuid"] = None
    stack = contextlib.ExitStack()
    for patch in (
        mock.patch.multiple(module, **replaced),
        mock.patch.object(platform, "system", lambda: "Linux"),
        mock.patch.dict(os.environ, {"TINKER_TELEMETRY": "1"}),
    ):
        stack.enter_context(patch)
    return stack


def log_every_kind(telemetry: Any) -> None:
    """Logs each kind of event; the last call sends them all in one batch."""
    telemetry.log("golden.plain", severity="DEBUG")
    telemetry.log("golden.data", {"none": None, "list": [1, 2.5, "é"], "map": {"flag": True}})
    telemetry._log(telemetry._exception_event(ValueError("no traceback"), "WARNING"))
    try:
        raise RuntimeError("with a traceback")
    except RuntimeError as error:
        # Adds UNHANDLED_EXCEPTION and SESSION_END.
        telemetry.log_fatal_exception_sync(error, "CRITICAL")


def hide_traceback(body: Any) -> Any:
    """A traceback names files and lines of this machine."""
    for event in body["events"]:
        if event.get("traceback") is not None:
            assert event["traceback"].endswith("RuntimeError: with a traceback\n")
            event["traceback"] = "<traceback>"
    return body
