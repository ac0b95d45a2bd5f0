"""JSON answers that the SDK accepts, with what its own model makes of each.

`parsed` shows the defaults: every field is there, null where the SDK shows None.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tinker import types
from tinker._models import validate_type
from tinker.cli.auth_api import SelfApiKeyResponse
from tinker.lib.public_interfaces.rest_client import (
    _SessionTraceExportPollResponse,
    _whoami_response_from_jwt,
)
from tinker.types.request_failed_response import RequestFailedResponse
from tinker.types.try_again_response import TryAgainResponse

import responses_admin
import responses_rest
from output import write_json
from responses_rest import Cases

ADAMW = {"type": "adamw"}
DIMUON = {"type": "dimuon", "version": 1}
MODEL = "session-1:train:0"


def write(folder: Path) -> None:
    groups = (_service(), _futures(), _training(), responses_rest.cases(), responses_admin.cases())
    for group in groups:
        for operation, (model, variants) in group.items():
            for variant, body in variants.items():
                # The check that the SDK's HTTP client applies to every answer.
                parsed = validate_type(type_=model, value=body)
                _write(folder, operation, variant, model.__name__, body, parsed)
    for variant, claims in _claims().items():
        parsed = _whoami_response_from_jwt(_token(claims))
        _write(folder, "whoami", variant, type(parsed).__name__, claims, parsed)


def _write(folder: Path, operation: str, variant: str, model: str, body: Any, parsed: Any) -> None:
    value = {"model": model, "body": body, "parsed": parsed.model_dump(mode="json")}
    write_json(folder / f"{operation}.{variant}.json", value)


def _service() -> Cases:
    key = {
        "key_id": 1234,
        "name": "tinker-cli-laptop",
        "note": "",
        "details": {
            "org_details": {"name": "Example Org"},
            "user_details": {"email": "user@example.com"},
        },
    }
    model = {
        "model_name": "Qwen/Qwen3-8B",
        "max_context_length": 32768,
        "trainable": True,
        "sampleable": False,
    }
    return {
        "healthz": (types.HealthResponse, {"minimal": {"status": "ok"}}),
        "auth_token": (types.AuthTokenResponse, {"minimal": {"jwt": "eyJ.eyJ.x"}}),
        "get_api_key": (SelfApiKeyResponse, {"minimal": key}),
        "client_config": (
            types.ClientConfigResponse,
            {
                "minimal": {},
                "unknown_member": {"grpc_target": "example.com:443", "pjwt_auth_enabled": True},
                "full": {
                    "pjwt_auth_enabled": True,
                    "credential_default_source": "credential_cmd",
                    "sample_dispatch_bytes_semaphore_size": 1,
                    "inflight_response_bytes_semaphore_size": 2,
                    "parallel_fwdbwd_chunks": False,
                    "proto_compress_fwdbwd": True,
                    "fwdbwd_max_chunk_len": 3,
                    "fwdbwd_max_chunk_bytes_count": 4,
                    "fwdbwd_dispatch_bytes_semaphore_size": 5,
                    "billing_exception_max_pause_duration_sec": 6,
                    "sample_no_retries": True,
                    "sample_enable_stuck_detection": False,
                    "sample_max_concurrent_requests": 7,
                    "use_pyqwest_transport": False,
                    "create_model_via_load_weights": True,
                    "sample_use_retrieve_futures": True,
                    "custom_loss_server_side": True,
                    "sample_join_sampling_session": True,
                },
            },
        ),
        "client_dynamic_config": (
            types.ClientDynamicConfigResponse,
            {
                "minimal": {},
                "full": {
                    "refresh_interval_sec": 30,
                    "sample_cancel_enabled": True,
                    "sample_cancel_max_batch_size": 8,
                },
            },
        ),
        "get_server_capabilities": (
            types.GetServerCapabilitiesResponse,
            {
                "minimal": {"supported_models": []},
                "empty_model": {"supported_models": [{}]},
                "full": {"supported_models": [model, {"model_name": None}]},
            },
        ),
        "create_session": (
            types.CreateSessionResponse,
            {
                "minimal": {"session_id": "session-1"},
                "full": {
                    "session_id": "session-1",
                    "info_message": "info",
                    "warning_message": "warning",
                    "error_message": "error",
                    "type": "create_session",
                },
            },
        ),
        "session_heartbeat": (
            types.SessionHeartbeatResponse,
            {"minimal": {}, "full": {"type": "session_heartbeat"}},
        ),
        "create_sampling_session": (
            types.CreateSamplingSessionResponse,
            {
                "minimal": {"sampling_session_id": "session-1:sample:0"},
                "full": {
                    "sampling_session_id": "session-1:sample:0",
                    "type": "create_sampling_session",
                },
            },
        ),
        "join_sampling_session": (
            types.JoinSamplingSessionResponse,
            {
                "minimal": {"client_counter": 1},
                "full": {"client_counter": 999999999, "type": "join_sampling_session"},
            },
        ),
        "telemetry": (types.TelemetryResponse, {"minimal": {"status": "accepted"}}),
    }


def _futures() -> Cases:
    pending = {"request_id": "request-1", "queue_state": "active"}
    finished = {"state": "finished", "request_id": "request-1"}
    return {
        "promise": (
            types.UntypedAPIFuture,
            {
                "minimal": {"request_id": "request-1"},
                "nulls": {"request_id": "request-1", "model_id": None, "sample_sequence_ids": None},
                "full": {
                    "request_id": "request-1",
                    "model_id": MODEL,
                    "sample_sequence_ids": ["sequence-0", "sequence-1"],
                },
            },
        ),
        "try_again": (
            TryAgainResponse,
            {
                "minimal": pending,
                "paused_capacity": pending | {"queue_state": "paused_capacity"},
                "paused_rate_limit": pending
                | {
                    "type": "try_again",
                    "queue_state": "paused_rate_limit",
                    "queue_state_reason": "the client reads this member by hand",
                },
            },
        ),
        "request_failed": (
            RequestFailedResponse,
            {
                category: {"error": "it failed", "category": category}
                for category in ("unknown", "server", "user")
            },
        ),
        "retrieve_futures": (
            types.FuturesRetrieveResponse,
            {
                "minimal": {"completions": [], "cursor": 0},
                "full": {
                    "completions": [
                        finished,
                        finished | {"response_payload_uncompressed_size": 5000000000},
                        {"state": "failed", "request_id": "request-2"},
                    ],
                    "cursor": 9007199254740993,
                },
            },
        ),
        "create_custom_loss": (
            types.CreateCustomLossResponse,
            {
                "minimal": {"loss_id": "loss-1"},
                "full": {"loss_id": "loss-1", "type": "create_custom_loss"},
            },
        ),
    }


def _training() -> Cases:
    weights = f"tinker://{MODEL}/weights/step-1"
    sampler = f"tinker://{MODEL}/sampler_weights/step-1"
    external = f"tinker://{MODEL}/external_weights/step-1"
    lora = {
        "base_model": "Qwen/Qwen3-8B",
        "is_lora": True,
    }
    data = {"arch": "qwen3", "model_name": "Qwen/Qwen3-8B", "tokenizer_id": "Qwen/Qwen3-8B"}
    return {
        "create_model": (
            types.CreateModelResponse,
            {"minimal": {"model_id": MODEL}, "full": {"model_id": MODEL, "type": "create_model"}},
        ),
        "unload_model": (
            types.UnloadModelResponse,
            {"minimal": {"model_id": MODEL}, "full": {"model_id": MODEL, "type": "unload_model"}},
        ),
        "get_info": (
            types.GetInfoResponse,
            {
                "minimal": {"model_id": MODEL, "model_data": {}},
                "other_optimizer": {
                    "model_id": MODEL,
                    "model_data": {},
                    "optimizer_config": {"type": "lion", "momentum": 0.5},
                },
                "full": {
                    "model_id": MODEL,
                    "model_data": data,
                    "optimizer_config": DIMUON,
                    "is_lora": True,
                    "lora_rank": 32,
                    "model_name": "Qwen/Qwen3-8B",
                    "type": "get_info",
                },
            },
        ),
        "optim_step": (
            types.OptimStepResponse,
            {
                "minimal": {},
                "nulls": {"metrics": None},
                "no_metrics": {"metrics": {}},
                "full": {"metrics": {"grad_norm": 1.5, "steps": 3}},
            },
        ),
        "load_weights": (
            types.LoadWeightsResponse,
            {
                "minimal": {},
                "full": {"path": weights, "model_id": MODEL, "type": "load_weights"},
            },
        ),
        "save_weights": (
            types.SaveWeightsResponse,
            {"minimal": {"path": weights}, "full": {"path": weights, "type": "save_weights"}},
        ),
        "save_weights_for_sampler": (
            types.SaveWeightsForSamplerResponseInternal,
            {
                "minimal": {},
                "named": {"path": sampler},
                "ephemeral": {"path": None, "sampling_session_id": "session-1:sample:0"},
                "full": {
                    "path": sampler,
                    "sampling_session_id": "session-1:sample:0",
                    "type": "save_weights_for_sampler",
                },
            },
        ),
        "save_weights_external": (
            types.SaveWeightsExternalResponseInternal,
            {
                "minimal": {"path": external},
                "full": {
                    "path": external,
                    "size_bytes": 5000000000,
                    "type": "save_weights_external",
                },
            },
        ),
        "weights_info": (
            types.WeightsInfoResponse,
            {
                "minimal": lora,
                "full": lora
                | {
                    "optimizer_config": ADAMW,
                    "lora_rank": 8,
                    "train_unembed": False,
                    "train_mlp": True,
                    "train_attn": False,
                },
                "dimuon": lora | {"optimizer_config": DIMUON, "lora_rank": None},
            },
        ),
        "copy_weights": (types.CopyWeightsResponse, {"minimal": {"tinker_path": weights}}),
        "export_session_trace": (
            _SessionTraceExportPollResponse,
            {
                "pending": {"status": "pending"},
                "ready": {"status": "ready", "url": "https://example.com/trace", "error": None},
                "failed": {"status": "failed", "url": None, "error": "too large"},
            },
        ),
    }


def _claims() -> dict[str, dict[str, Any]]:
    """The claims of a JWT, from which the SDK answers `whoami` by itself."""
    claims = {"sub": "tml:organization_user:u", "org_id": "o"}
    return {
        "minimal": claims,
        "empty_email": claims | {"email": ""},
        "full": claims | {"email": "user@example.com", "exp": 4102444800, "iss": "passport-x"},
    }


def _token(claims: dict[str, Any]) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJub25lIn0.{payload}.signature"
