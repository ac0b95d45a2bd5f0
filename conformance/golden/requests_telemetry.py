"""Telemetry batches with every kind of event.

The SDK's clock and random ids are replaced by counters inside its telemetry module. The
traceback text names files and lines of this machine, so it becomes a placeholder.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import platform
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock
from uuid import UUID

from tinker.lib import telemetry as module

from clients import Clients
from recorder import Recorder


def record(recorder: Recorder, clients: Clients) -> None:
    clients.server.answers["telemetry"] = {"status": "accepted"}
    recorder.record("telemetry", "session", "telemetry", lambda: _session(clients), edit=_edit)
    recorder.record("telemetry", "sessionless", "telemetry", lambda: _sessionless(clients))


def _session(clients: Clients) -> None:
    with _fixed():
        telemetry = clients.service().get_telemetry()
        _wait_until_started(clients)
        telemetry.log("golden.plain", severity="DEBUG")
        telemetry.log("golden.data", {"none": None, "list": [1, 2.5, "é"], "map": {"flag": True}})
        telemetry._log(telemetry._exception_event(ValueError("no traceback"), "WARNING"))
        try:
            raise RuntimeError("with a traceback")
        except RuntimeError as error:
            # Adds UNHANDLED_EXCEPTION and SESSION_END, then sends the whole batch.
            telemetry.log_fatal_exception_sync(error, "CRITICAL")


def _sessionless(clients: Clients) -> None:
    with _fixed():
        holder = clients.holder
        telemetry = module.Telemetry(holder, session_id=None)
        _wait_until_started(clients)
        telemetry.log("golden.sessionless")
        telemetry.log_fatal_exception_sync(ValueError("no traceback"))
        telemetry.stop()


def _wait_until_started(clients: Clients) -> None:
    """Events logged before the sender runs would wait for its ten-second timer."""
    clients.holder.run_coroutine_threadsafe(asyncio.sleep(0)).result()


def _fixed() -> contextlib.ExitStack:
    identifiers, ticks = itertools.count(1), itertools.count()

    class Clock:
        @staticmethod
        def now(_: Any) -> datetime:
            start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
            return start + timedelta(milliseconds=1500.25) * next(ticks)

    stack = contextlib.ExitStack()
    for patch in (
        mock.patch.multiple(
            module,
            uuid4=lambda: UUID(int=next(identifiers), version=4),
            datetime=Clock,
            _process_uuid=None,
        ),
        mock.patch.object(platform, "system", lambda: "Linux"),
        mock.patch.dict(os.environ, {"TINKER_TELEMETRY": "1"}),
    ):
        stack.enter_context(patch)
    return stack


def _edit(body: Any) -> Any:
    for event in body["events"]:
        if "traceback" in event:
            assert event["traceback"].endswith("RuntimeError: with a traceback\n")
            event["traceback"] = "<traceback>"
    return body
