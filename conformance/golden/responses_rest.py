"""Answers of the REST endpoints: runs, checkpoints, sessions."""

from __future__ import annotations

from typing import Any

from tinker import types

# By operation: the SDK's model and the bodies by variant.
Cases = dict[str, tuple[Any, dict[str, Any]]]

MODEL = "session-1:train:0"
TIME = "2026-01-02T03:04:05Z"
PRECISE_TIME = "2026-01-02T03:04:05.678900Z"
OFFSET_TIME = "2026-01-02T03:04:05.500000+02:00"

CHECKPOINT = {
    "checkpoint_id": "weights/step-1",
    "checkpoint_type": "training",
    "time": TIME,
    "tinker_path": f"tinker://{MODEL}/weights/step-1",
}
FULL_CHECKPOINT = {
    "checkpoint_id": "sampler_weights/step-1",
    "checkpoint_type": "sampler",
    "time": PRECISE_TIME,
    "tinker_path": f"tinker://{MODEL}/sampler_weights/step-1",
    "size_bytes": 5000000000,
    "public": True,
    "user_metadata": {"note": ""},
    "expires_at": OFFSET_TIME,
}
EXTERNAL_CHECKPOINT = {
    "checkpoint_id": "external_weights/step-1",
    "checkpoint_type": "external",
    "time": TIME,
    "tinker_path": f"tinker://{MODEL}/external_weights/step-1",
    "size_bytes": None,
    "user_metadata": None,
    "expires_at": None,
}
RUN = {
    "training_run_id": MODEL,
    "base_model": "Qwen/Qwen3-8B",
    "model_owner": "tml:organization_user:u",
    "is_lora": True,
    "last_request_time": TIME,
}
FULL_RUN = RUN | {
    "corrupted": True,
    "lora_rank": 32,
    "last_request_time": PRECISE_TIME,
    "last_checkpoint": CHECKPOINT,
    "last_sampler_checkpoint": FULL_CHECKPOINT,
    "user_metadata": {"recipe": "sft"},
}
CURSOR = {"offset": 20, "limit": 20, "total_count": 45}


def cases() -> Cases:
    return {
        "get_training_run": (types.TrainingRun, {"minimal": RUN, "full": FULL_RUN}),
        "list_training_runs": (
            types.TrainingRunsResponse,
            {
                "minimal": {"training_runs": [], "cursor": CURSOR},
                "full": {"training_runs": [RUN, FULL_RUN], "cursor": CURSOR},
            },
        ),
        "list_checkpoints": (
            types.CheckpointsListResponse,
            {
                "minimal": {"checkpoints": []},
                "nulls": {"checkpoints": [CHECKPOINT], "cursor": None},
                "full": {
                    "checkpoints": [CHECKPOINT, FULL_CHECKPOINT, EXTERNAL_CHECKPOINT],
                    "cursor": CURSOR,
                },
            },
        ),
        "get_external_weights_urls": (
            types.ExternalWeightsUrlsResponse,
            {
                "minimal": {"urls": {}, "expires": TIME},
                "full": {
                    "urls": {"adapter/config.json": "https://example.com/a?b=c"},
                    "expires": PRECISE_TIME,
                },
            },
        ),
        "get_sampler": (
            types.GetSamplerResponse,
            {
                "minimal": {"sampler_id": "session-1:sample:0", "base_model": "Qwen/Qwen3-8B"},
                "full": {
                    "sampler_id": "session-1:sample:0",
                    "base_model": "Qwen/Qwen3-8B",
                    "model_path": f"tinker://{MODEL}/sampler_weights/step-1",
                },
            },
        ),
        "list_sessions": (
            types.ListSessionsResponse,
            {"minimal": {"sessions": []}, "full": {"sessions": ["session-1", "session-2"]}},
        ),
        "get_session": (
            types.GetSessionResponse,
            {
                "minimal": {"training_run_ids": [], "sampler_ids": []},
                "full": {
                    "training_run_ids": [MODEL],
                    "sampler_ids": ["session-1:sample:0"],
                    "user_metadata": {"owner": "golden"},
                    "display_name": "Golden run",
                },
            },
        ),
        "search_sessions": (types.SessionSearchResponse, _search()),
    }


def _search() -> dict[str, Any]:
    summary = {
        "session_id": "session-1",
        "created_at": TIME,
        "owner": "tml:organization_user:u",
        "project_id": "project-1",
        "checkpoints_count": 0,
    }
    failed = {"type": "failed", "category": "user", "message": "it failed"}
    finished = {"type": "client_finished"}
    statuses: dict[str, Any] = {
        "active": {"type": "active"},
        "cancelled": {"type": "cancelled"},
        "cancelled_with_detail": {"type": "cancelled", "detail": "by hand"},
        "failed_request": failed
        | {"reason": {"type": "request", "request_id": "request-1", "request_type": "Sample"}},
        "failed_training_run": failed
        | {"category": "internal", "reason": {"type": "training_run", "training_run_id": MODEL}},
        "failed_sampling_session": failed
        | {"reason": {"type": "sampling_session", "sampling_session_id": "session-1:sample:0"}},
        "finished_success": finished | {"reason": {"type": "success"}},
        "finished_errored": finished | {"reason": {"type": "errored"}, "detail": None},
        "finished_interrupted": finished | {"reason": {"type": "interrupted"}, "detail": "ctrl-c"},
    }
    full = summary | {
        "created_at": PRECISE_TIME,
        "checkpoints_count": 3,
        "status": statuses["active"],
        "display_name": "Golden run",
        "user_metadata": {"owner": "golden"},
        "checkpoint_storage_bytes": 5000000000,
    }
    cursor = {"last_created_at": PRECISE_TIME, "last_session_id": "session-1"}
    return {
        "minimal": {"sessions": []},
        "full": {"sessions": [summary, full], "next_cursor": cursor},
        **{
            f"status_{name}": {"sessions": [summary | {"status": status}], "next_cursor": None}
            for name, status in statuses.items()
        },
    }
