"""SDK clients that talk to the capture server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import tinker
from tinker import types
from tinker.proto import tinker_public_pb2 as pb

from capture import CaptureServer

API_KEY = "tml-golden"
SESSION = "session-1"
MODEL = "session-1:train:0"
SAMPLER = "session-1:sample:0"
BASE_MODEL = "Qwen/Qwen3-8B"
WEIGHTS = f"tinker://{MODEL}/weights/step-1"
SAMPLER_WEIGHTS = f"tinker://{MODEL}/sampler_weights/step-1"
EXTERNAL_WEIGHTS = f"tinker://{MODEL}/external_weights/step-1"


def isolate_environment() -> None:
    """Makes the SDK ignore the machine's own settings. Call it before using a client."""
    for name in list(os.environ):
        if name.startswith(("TINKER_", "CLOUDFLARE_ACCESS_")):
            del os.environ[name]
    os.environ["TINKER_TELEMETRY"] = "0"


@dataclass
class Clients:
    """Makes clients in a known state, one for each case, so that counters start anew."""

    server: CaptureServer

    def __post_init__(self) -> None:
        self.server.answers["create_session"] = {"session_id": SESSION}
        self.server.answers["create_sampling_session"] = {"sampling_session_id": SAMPLER}
        self.server.results["forward_backward"] = pb.ForwardBackwardOutput(
            loss_fn_output_type="ArrayRecord"
        ).SerializeToString()
        self.server.results["asample"] = sample_result(1)
        self._shared = self.service()

    def service(
        self,
        config: dict[str, Any] | None = None,
        dynamic_config: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> tinker.ServiceClient:
        """A service client under the given server flags; its session starts at once."""
        self.server.answers["client/config"] = config or {}
        self.server.answers["client/dynamic_config"] = dynamic_config or {}
        service = tinker.ServiceClient(base_url=self.server.url, api_key=API_KEY, **arguments)
        service._get_session_holder()
        return service

    @property
    def holder(self) -> Any:
        """What the high-level clients share: connections, session and counters."""
        return self._shared.holder

    def training(self, service: tinker.ServiceClient | None = None) -> tinker.TrainingClient:
        """A training client whose next request has `seq_id` 1."""
        holder = (service or self._shared).holder
        return tinker.TrainingClient(holder, model_seq_id=0, model_id=MODEL)

    def sampling(
        self, service: tinker.ServiceClient | None = None, **arguments: Any
    ) -> tinker.SamplingClient:
        """A sampling client whose next request has `seq_id` 0."""
        holder = (service or self._shared).holder
        return tinker.SamplingClient(holder, sampling_session_id=SAMPLER, **arguments)

    def rest(self) -> tinker.RestClient:
        return tinker.RestClient(base_url=self.server.url, api_key=API_KEY)

    def admin(self) -> tinker.AdminClient:
        return tinker.AdminClient(base_url=self.server.url, api_key=API_KEY)

    def low_level(self, method: str, request: Any) -> Any:
        """Calls a resource of the SDK's HTTP client, such as `models.create`.

        For requests that the SDK defines but that no high-level method builds.
        """
        resource, name = method.split(".")

        async def call() -> Any:
            pool = tinker.lib.client_connection_pool_type.ClientConnectionPoolType.TRAIN
            with self.holder.aclient(pool) as client:
                return await getattr(getattr(client, resource), name)(request=request)

        return self.holder.run_coroutine_threadsafe(call())


def sample_result(num_samples: int) -> bytes:
    """A result that passes every check of the sampling client."""
    result = pb.SampleResponse()
    for _ in range(num_samples):
        result.sequences.add(stop_reason=pb.STOP_REASON_LENGTH, tokens=b"\x01\0\0\0")
    for tensor in (result.prompt_alt_tokens.tokens, result.prompt_alt_tokens.logprobs):
        tensor.dtype = pb.DTYPE_FLOAT32
        tensor.shape.extend([0, 1])
        tensor.dense = b""
    return result.SerializeToString()


def text(*tokens: int) -> types.ModelInput:
    return types.ModelInput.from_ints(list(tokens))
