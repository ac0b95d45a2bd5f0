"""Requests of the REST and admin clients: runs, checkpoints, sessions, billing."""

from __future__ import annotations

from datetime import date, datetime, timezone
from typing import Any

from tinker import types

from clients import (
    EXTERNAL_WEIGHTS,
    MODEL,
    SAMPLER,
    SAMPLER_WEIGHTS,
    SESSION,
    WEIGHTS,
    Clients,
)
from recorder import Recorder

RUN = f"training_runs/{MODEL}"
PROJECT = "project 1&2"


def record(recorder: Recorder, clients: Clients) -> None:
    _answers(clients.server.answers)
    _training_runs(recorder, clients.rest())
    _checkpoints(recorder, clients.rest())
    _copy_weights(recorder, clients)
    _sessions(recorder, clients.rest())
    recorder.record(
        "get_sampler",
        "by_sampling_client",
        f"samplers/{SAMPLER}",
        lambda: clients.sampling().get_base_model() and None,
    )
    _search(recorder, clients.rest())
    _admin(recorder, clients.admin())


def _answers(answers: dict[str, Any]) -> None:
    run = {
        "training_run_id": MODEL,
        "base_model": "b",
        "model_owner": "o",
        "is_lora": True,
        "last_request_time": "2026-01-02T03:04:05Z",
    }
    cursor = {"offset": 0, "limit": 20, "total_count": 0}
    urls = {"urls": {}, "expires": "2026-01-02T03:04:05Z"}
    answers |= {
        "training_runs": {"training_runs": [], "cursor": cursor},
        RUN: run,
        f"{RUN}/checkpoints": {"checkpoints": []},
        f"{RUN}/checkpoints/external_weights/step-1/external_weights_urls": urls,
        "checkpoints": {"checkpoints": []},
        "copy_weights": {"tinker_path": WEIGHTS},
        f"samplers/{SAMPLER}": {"sampler_id": SAMPLER, "base_model": "b"},
        "sessions": {"sessions": []},
        f"sessions/{SESSION}": {"training_run_ids": [], "sampler_ids": []},
        f"sessions/{SESSION}/trace_export": {"status": "ready", "url": "https://example.com/t"},
        "sessions/search": {"sessions": []},
        "audit": {"entries": []},
        "billing/usage/events": {"data": []},
        "billing/usage/checkpoints/current": {"data": []},
    }


def _training_runs(recorder: Recorder, rest: Any) -> None:
    for variant, arguments in {
        "minimal": {},
        "full": {"limit": 5, "offset": 10, "access_scope": "accessible", "project_id": PROJECT},
    }.items():
        recorder.record(
            "list_training_runs",
            variant,
            "training_runs",
            lambda: rest.list_training_runs(**arguments),
        )
    recorder.record("get_training_run", "minimal", RUN, lambda: rest.get_training_run(MODEL))
    recorder.record(
        "get_training_run",
        "full",
        RUN,
        lambda: rest.get_training_run(MODEL, access_scope="accessible"),
    )
    recorder.record(
        "get_training_run",
        "by_tinker_path",
        RUN,
        lambda: rest.get_training_run_by_tinker_path(WEIGHTS),
    )


def _checkpoints(recorder: Recorder, rest: Any) -> None:
    weights, sampler = (
        f"{RUN}/checkpoints/weights/step-1",
        f"{RUN}/checkpoints/sampler_weights/step-1",
    )
    external = f"{RUN}/checkpoints/external_weights/step-1"
    ttl = rest.set_checkpoint_ttl_from_tinker_path
    cases: list[tuple[str, str, str, Any]] = [
        ("list_checkpoints", "minimal", f"{RUN}/checkpoints", lambda: rest.list_checkpoints(MODEL)),
        ("list_user_checkpoints", "minimal", "checkpoints", lambda: rest.list_user_checkpoints()),
        (
            "list_user_checkpoints",
            "full",
            "checkpoints",
            lambda: rest.list_user_checkpoints(limit=5, offset=10),
        ),
        (
            "delete_checkpoint",
            "minimal",
            weights,
            lambda: rest.delete_checkpoint(MODEL, "weights/step-1"),
        ),
        (
            "delete_checkpoint",
            "by_tinker_path",
            sampler,
            lambda: rest.delete_checkpoint_from_tinker_path(SAMPLER_WEIGHTS),
        ),
        (
            "publish_checkpoint",
            "minimal",
            f"{weights}/publish",
            lambda: rest.publish_checkpoint_from_tinker_path(WEIGHTS),
        ),
        (
            "unpublish_checkpoint",
            "minimal",
            f"{weights}/publish",
            lambda: rest.unpublish_checkpoint_from_tinker_path(WEIGHTS),
        ),
        ("set_checkpoint_ttl", "set", f"{weights}/ttl", lambda: ttl(WEIGHTS, 86400)),
        ("set_checkpoint_ttl", "clear", f"{weights}/ttl", lambda: ttl(WEIGHTS, None)),
        (
            "get_external_weights_urls",
            "minimal",
            f"{external}/external_weights_urls",
            lambda: rest.get_external_weights_urls(EXTERNAL_WEIGHTS),
        ),
        (
            "weights_info",
            "minimal",
            "weights_info",
            lambda: rest.get_weights_info_by_tinker_path(WEIGHTS),
        ),
    ]
    for case in cases:
        recorder.record(*case)


def _copy_weights(recorder: Recorder, clients: Clients) -> None:
    path, rest = "copy_weights", clients.rest()
    recorder.record(path, "minimal", path, lambda: rest.copy_weights(WEIGHTS, "project-1"))
    recorder.record(
        path,
        "full",
        path,
        lambda: rest.copy_weights(
            SAMPLER_WEIGHTS, "project-1", ttl_seconds=3600, weights_access_token="tml-other-account"
        ),
    )
    request = types.CopyWeightsRequest(
        source_path=WEIGHTS,
        session_id=SESSION,
        model_seq_id=2,
        weights_access_token="tml-other-account",
    )
    recorder.record(
        path, "request_by_session", path, lambda: clients.low_level("models.copy_weights", request)
    )


def _sessions(recorder: Recorder, rest: Any) -> None:
    session = f"sessions/{SESSION}"
    cases: list[tuple[str, str, str, Any]] = [
        ("list_sessions", "minimal", "sessions", lambda: rest.list_sessions()),
        (
            "list_sessions",
            "full",
            "sessions",
            lambda: rest.list_sessions(limit=5, offset=10, access_scope="accessible"),
        ),
        ("get_session", "minimal", session, lambda: rest.get_session(SESSION)),
        (
            "get_session",
            "full",
            session,
            lambda: rest.get_session(SESSION, access_scope="accessible"),
        ),
        (
            "assign_session_project",
            "minimal",
            f"{session}/project",
            lambda: rest.assign_session_project(SESSION, "project-1"),
        ),
        (
            "export_session_trace",
            "minimal",
            f"{session}/trace_export",
            lambda: rest.export_session_trace(SESSION),
        ),
        ("get_sampler", "minimal", f"samplers/{SAMPLER}", lambda: rest.get_sampler(SAMPLER)),
    ]
    for case in cases:
        recorder.record(*case)


def _search(recorder: Recorder, rest: Any) -> None:
    finished = types.ClientFinishedSessionStatusQuery
    cursor = types.SessionSearchCursor(
        last_created_at=datetime(2026, 1, 2, 3, 4, 5, 678900, timezone.utc),
        last_session_id=SESSION,
    )
    users = types.UserSearchOwner(owner_urns=["tml:organization_user:a", "tml:organization_user:b"])
    variants: dict[str, dict[str, Any]] = {
        "minimal": {},
        "owner_own": {"owner": types.OwnSearchOwner()},
        "owner_accessible": {"owner": types.AccessibleSearchOwner()},
        "owner_user": {"owner": users},
        "status_active": {"statuses": [types.ActiveSessionStatusQuery()]},
        "status_cancelled": {"statuses": [types.CancelledSessionStatusQuery()]},
        "status_failed": {"statuses": [types.FailedSessionStatusQuery()]},
        "status_client_finished": {"statuses": [finished()]},
        "cursor": {"cursor": cursor},
        "full": {
            "session_id": SESSION,
            "project_ids": ["project-1", "project-2"],
            "user_metadata": {"owner": "golden"},
            "display_name": "nightly sweep",
            "owner": users,
            "statuses": [
                types.ActiveSessionStatusQuery(),
                finished(reasons=["success", "errored", "interrupted"]),
            ],
            "limit": 200,
            "cursor": cursor,
        },
    }
    for variant, fields in variants.items():
        request = types.SessionSearchRequest(**fields)
        recorder.record(
            "search_sessions", variant, "sessions/search", lambda: rest.search_sessions(request)
        )


def _admin(recorder: Recorder, admin: Any) -> None:
    recorder.record("get_audit_log", "minimal", "audit", lambda: admin.get_audit_log())
    recorder.record(
        "get_audit_log",
        "full",
        "audit",
        lambda: admin.get_audit_log("checkpoints", day=date(2026, 1, 2)),
    )
    path = "billing/usage/events"
    recorder.record(
        "get_billing_usage",
        "datetimes",
        path,
        lambda: admin.get_billing_usage(
            datetime(2026, 1, 2, 3, tzinfo=timezone.utc),
            datetime(2026, 1, 3, tzinfo=timezone.utc),
        ),
    )
    recorder.record(
        "get_billing_usage",
        "strings",
        path,
        lambda: admin.get_billing_usage("2026-01-02T03:00:00+02:00", "2026-01-03T00:00:00Z"),
    )
    path = "billing/usage/checkpoints/current"
    storage = admin.get_current_checkpoint_storage_usage
    recorder.record("get_current_checkpoint_storage_usage", "minimal", path, lambda: storage())
    recorder.record("get_current_checkpoint_storage_usage", "full", path, lambda: storage(PROJECT))
