"""Requests of the service itself: start-up, sessions, sampling sessions, custom losses."""

from __future__ import annotations

import base64
import json
import os
from typing import Any
from unittest import mock

import httpx
import tinker
from tinker import types
from tinker.cli.auth_api import TinkerAuthApi
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

from clients import API_KEY, BASE_MODEL, SAMPLER, SAMPLER_WEIGHTS, SESSION, Clients
from custom_loss import encoded_graph, minimal_graph
from recorder import Recorder


def record(recorder: Recorder, clients: Clients) -> None:
    _start_up(recorder, clients)
    _sessions(recorder, clients)
    _sampling_sessions(recorder, clients)
    _custom_losses(recorder, clients)
    _key_self_service(recorder, clients)


def _start_up(recorder: Recorder, clients: Clients) -> None:
    recorder.record("client_config", "minimal", "client/config", lambda: clients.service() and None)
    recorder.record(
        "client_dynamic_config",
        "minimal",
        "client/dynamic_config",
        lambda: clients.service() and None,
    )
    clients.server.answers["auth/token"] = {"jwt": _token()}
    # Only this one request is kept: the clients behind it send the JWT as their key.
    recorder.record(
        "auth_token",
        "minimal",
        "auth/token",
        lambda: clients.service(config={"pjwt_auth_enabled": True}) and None,
    )
    clients.server.answers["healthz"] = {"status": "ok"}
    recorder.record("healthz", "minimal", "healthz", lambda: _health(clients))
    clients.server.answers["get_server_capabilities"] = {"supported_models": []}
    recorder.record(
        "get_server_capabilities",
        "minimal",
        "get_server_capabilities",
        lambda: clients.service().get_server_capabilities() and None,
    )


def _sessions(recorder: Recorder, clients: Clients) -> None:
    path = "create_session"
    recorder.record(path, "minimal", path, lambda: clients.service() and None)

    def with_tags(tags: str, **arguments: Any) -> None:
        with mock.patch.dict(os.environ, {"TINKER_TAGS": tags}):
            clients.service(**arguments)

    def sorted_tags(body: Any) -> Any:
        # The SDK keeps the tags in a set, so their order differs from run to run.
        return body | {"tags": sorted(body["tags"])}

    recorder.record(
        path,
        "full",
        path,
        lambda: with_tags(
            "nightly,sweep",
            user_metadata={"owner": "golden", "note": ""},
            project_id="project-1",
            display_name="Golden run é",
        ),
        edit=sorted_tags,
    )
    recorder.record(path, "empty_tag", path, lambda: with_tags(""))

    async def heartbeat() -> None:
        # The arguments of the SDK's own heartbeat loop, without its ten seconds of sleep.
        with clients.holder.aclient(ClientConnectionPoolType.SESSION) as client:
            await client.service.session_heartbeat(session_id=SESSION, max_retries=0, timeout=10)

    recorder.record(
        "session_heartbeat",
        "minimal",
        "session_heartbeat",
        lambda: clients.holder.run_coroutine_threadsafe(heartbeat()),
    )
    clients.server.answers["session_heartbeat"] = {}
    for status in ("success", "errored", "interrupted"):
        for detail in (None, f"{status}: because"):
            recorder.record(
                "finish_session",
                status if detail is None else f"{status}_with_detail",
                f"sessions/{SESSION}/finish",
                lambda s=status, d=detail: clients.service().close(s, d),
            )


def _sampling_sessions(recorder: Recorder, clients: Clients) -> None:
    path = "create_sampling_session"

    def create(**arguments: str) -> None:
        clients.service().create_sampling_client(**arguments)

    recorder.record(path, "base_model", path, lambda: create(base_model=BASE_MODEL))
    recorder.record(path, "model_path", path, lambda: create(model_path=SAMPLER_WEIGHTS))
    recorder.record(
        path, "full", path, lambda: create(base_model=BASE_MODEL, model_path=SAMPLER_WEIGHTS)
    )
    recorder.record(
        path,
        "minimal",
        path,
        lambda: clients.low_level(
            "service.create_sampling_session",
            types.CreateSamplingSessionRequest(session_id=SESSION, sampling_session_seq_id=0),
        ),
    )
    clients.server.answers["join_sampling_session"] = {"client_counter": 7}
    clone = clone_of(clients, {"sample_join_sampling_session": True})
    request = types.ModelInput.from_ints([1])
    recorder.record(
        "join_sampling_session",
        "minimal",
        "join_sampling_session",
        lambda: clone.sample(request, 1, types.SamplingParams()),
    )


def clone_of(clients: Clients, config: dict[str, Any]) -> tinker.SamplingClient:
    """A sampling client rebuilt from the handle of another one, as in a second process."""
    original = tinker.SamplingClient(clients.service(config).holder, sampling_session_id=SAMPLER)
    return tinker.SamplingClient.from_sampler_handle(original.get_sampler_handle(), api_key=API_KEY)


def _custom_losses(recorder: Recorder, clients: Clients) -> None:
    for variant, (name, inputs, graph) in {
        "minimal": minimal_graph(),
        "full": encoded_graph(),
    }.items():
        holder = clients.service().holder
        recorder.record(
            "create_custom_loss",
            variant,
            "create_custom_loss",
            lambda: holder.run_coroutine_threadsafe(
                holder._create_custom_loss(name, inputs, graph)
            ),
        )


def _key_self_service(recorder: Recorder, clients: Clients) -> None:
    """The login tool's own calls: plain HTTP, none of the SDK's headers."""
    clients.server.answers["auth/apikey/me"] = {
        "key_id": 1,
        "name": "golden",
        "note": "",
        "details": {"org_details": {"name": "Org"}, "user_details": {"email": "a@example.com"}},
    }
    with httpx.Client(timeout=30) as plain:
        api = TinkerAuthApi(plain, base_url=clients.server.url)
        for operation, call in {
            "get_api_key": api.get_self_api_key,
            "delete_api_key": api.delete_self_api_key,
        }.items():
            request = recorder.run("auth/apikey/me", lambda: call(API_KEY) and None)
            recorder.note_http(operation, "minimal", request, common=False)


def _health(clients: Clients) -> Any:
    async def call() -> None:
        with clients.holder.aclient(ClientConnectionPoolType.SESSION) as client:
            await client.service.health_check()

    return clients.holder.run_coroutine_threadsafe(call())


def _token() -> str:
    """An unsigned JWT that does not expire before the year 2100."""
    claims = {"sub": "user", "org_id": "org", "email": "", "exp": 4102444800, "iss": "passport-x"}
    parts = ({"alg": "none"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join([*encoded, "signature"])
