"""Telemetry batches with every kind of event."""

from __future__ import annotations

import asyncio

from tinker.lib import telemetry as module

from clients import Clients
from fixed_telemetry import fixed, hide_traceback, log_every_kind
from recorder import Recorder


def record(recorder: Recorder, clients: Clients) -> None:
    clients.server.answers["telemetry"] = {"status": "accepted"}

    def session() -> None:
        with fixed(module):
            telemetry = clients.service().get_telemetry()
            _wait_until_started(clients)
            log_every_kind(telemetry)

    def sessionless() -> None:
        with fixed(module):
            telemetry = module.Telemetry(clients.holder, session_id=None)
            _wait_until_started(clients)
            telemetry.log("golden.sessionless")
            telemetry.log_fatal_exception_sync(ValueError("no traceback"))
            telemetry.stop()

    recorder.record("telemetry", "session", "telemetry", session, edit=hide_traceback)
    recorder.record("telemetry", "sessionless", "telemetry", sessionless)


def _wait_until_started(clients: Clients) -> None:
    """Events logged before the sender runs would wait for its ten-second timer."""
    clients.holder.run_coroutine_threadsafe(asyncio.sleep(0)).result()
