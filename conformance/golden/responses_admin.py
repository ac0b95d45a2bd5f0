"""Answers of the admin endpoints: audit log and billing."""

from __future__ import annotations

from typing import Any

from tinker import types

from responses_rest import MODEL, PRECISE_TIME, TIME, Cases


def cases() -> Cases:
    item = {"checkpoint_count": 2, "size_bytes": 5000000000, "size_gigabytes": 5.0}
    return {
        "get_audit_log": (
            types.AuditLogResponse,
            {
                "minimal": {"entries": []},
                "minimal_entry": {"entries": [{"timestamp": TIME, "event": "checkpoint_read"}]},
                "full": {
                    "entries": [
                        {
                            "timestamp": PRECISE_TIME,
                            "event": "project_create",
                            "event_details": {"list": [1, None], "name": "project-1"},
                            "model_id": MODEL,
                            "tinker_path": f"tinker://{MODEL}/weights/step-1",
                            "purpose": "download",
                        }
                    ]
                },
            },
        ),
        "get_billing_usage": (types.BillingUsageResponse, _billing()),
        "get_current_checkpoint_storage_usage": (
            types.CurrentCheckpointStorageUsageResponse,
            {
                "minimal": {"data": []},
                "minimal_item": {"data": [item]},
                "full": {
                    "effective_rate_usd_per_gigabyte_month": 0.25,
                    "data": [
                        item
                        | {
                            "project_id": "project-1",
                            "org_user_urn": "tml:organization_user:u",
                            "user_email": "user@example.com",
                            "user_name": "User",
                            "estimated_monthly_cost_usd": 1.25,
                        }
                    ],
                },
            },
        ),
    }


def _billing() -> dict[str, Any]:
    event = {"bucket_start": "2026-01-02T03:00:00Z", "bucket_end": "2026-01-02T04:00:00Z"}
    payloads: dict[str, dict[str, Any]] = {
        "training": {"token_count": 5000000000},
        "sampling_prefill": {"cached": True, "token_count": 1},
        "sampling_sample": {"token_count": 0},
        "checkpoint": {"count": 2},
        "storage": {"gigabyte_hours": 1.5},
    }
    arms = {name: payload | {"type": name} for name, payload in payloads.items()}
    full = event | {
        "base_model": "Qwen/Qwen3-8B",
        "user_id": "u",
        "user_name": "User",
        "session_id": "session-1",
        "project_id": "project-1",
        "estimated_cost_usd": 0.5,
        "effective_rate_usd_per_million_tokens": 0.1,
        "effective_rate_usd_per_gigabyte_month": None,
        "event_info": arms["training"],
    }
    return {
        "minimal": {"data": []},
        **{f"event_{name}": {"data": [event | {"event_info": arm}]} for name, arm in arms.items()},
        "full": {
            "data": [full],
            "sessions": {"session-1": {"user_metadata": {"owner": "golden"}}, "session-2": {}},
            "cost_data_through": TIME,
        },
    }
