"""The official SDK with its samples drawn through the Rust client: the same names and types, at a fraction of the CPU.

    from tinkrs.sdk import ServiceClient        # instead of: from tinker import ServiceClient

Everything but ``SamplingClient.sample`` and ``sample_async`` is the official SDK's own code, and so are the types that go in and
come out. A loop that draws thousands of samples at once spends its time elsewhere then; ``docs/decisions/python-extension.md`` of the
repository has the figures. What a sample may ask for and the Rust side does not carry (top-k log-probabilities, chosen tokens,
alternatives, parts of the prompt's log-probabilities, images, stability info) goes through the official code, unnoticed.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import httpx
import numpy as np
import tinker
from tinker import types

from . import _native

__all__ = ["SamplingClient", "ServiceClient", "TrainingClient"]

# What the Rust side is told of a sampler, and its server.
if not all(hasattr(tinker.SamplingClient, name) for name in ("get_sampler_handle", "_pickle_state")):
    raise ImportError(f"tinkrs.sdk needs tinker 0.33 or later, and {tinker.__version__} is installed")


class SamplingClient(tinker.SamplingClient):
    """A ``tinker.SamplingClient`` whose samples are drawn by the Rust client."""

    def sample(  # noqa: D102
        self,
        prompt: types.ModelInput,
        num_samples: int,
        sampling_params: types.SamplingParams,
        include_prompt_logprobs: bool = False,
        *others: Any,
        **more: Any,
    ) -> Future[types.SampleResponse]:
        plain = all(type(chunk) is types.EncodedTextChunk for chunk in prompt.chunks)
        if any(others) or any(more.values()) or not plain or self._needs_official():
            return super().sample(prompt, num_samples, sampling_params, include_prompt_logprobs, *others, **more)
        drawing = self.__dict__.get("_tinkrs_drawing")
        if drawing is None or drawing.pid != os.getpid():
            drawing = _open(self)
        return drawing.submit(prompt, num_samples, sampling_params, include_prompt_logprobs)

    def _needs_official(self) -> bool:
        return bool(self.__dict__.get("_tinkrs_official_only"))


class TrainingClient(tinker.TrainingClient):
    """A ``tinker.TrainingClient`` whose samplers are :class:`SamplingClient`."""

    def create_sampling_client(self, *args: Any, **kwargs: Any) -> SamplingClient:  # noqa: D102
        return _fast(super().create_sampling_client(*args, **kwargs), kwargs)

    async def create_sampling_client_async(self, *args: Any, **kwargs: Any) -> SamplingClient:  # noqa: D102
        return _fast(await super().create_sampling_client_async(*args, **kwargs), kwargs)

    def save_weights_and_get_sampling_client(self, *args: Any, **kwargs: Any) -> SamplingClient:  # noqa: D102
        return _fast(super().save_weights_and_get_sampling_client(*args, **kwargs), kwargs)

    async def save_weights_and_get_sampling_client_async(self, *args: Any, **kwargs: Any) -> SamplingClient:  # noqa: D102
        return _fast(await super().save_weights_and_get_sampling_client_async(*args, **kwargs), kwargs)


class ServiceClient(tinker.ServiceClient):
    """A ``tinker.ServiceClient`` whose samplers are :class:`SamplingClient`."""

    def create_sampling_client(self, *args: Any, **kwargs: Any) -> SamplingClient:  # noqa: D102
        return _fast(super().create_sampling_client(*args, **kwargs), kwargs)

    async def create_sampling_client_async(self, *args: Any, **kwargs: Any) -> SamplingClient:  # noqa: D102
        return _fast(await super().create_sampling_client_async(*args, **kwargs), kwargs)

    def create_lora_training_client(self, *args: Any, **kwargs: Any) -> TrainingClient:  # noqa: D102
        return _of_training(super().create_lora_training_client(*args, **kwargs))

    async def create_lora_training_client_async(self, *args: Any, **kwargs: Any) -> TrainingClient:  # noqa: D102
        return _of_training(await super().create_lora_training_client_async(*args, **kwargs))

    def create_training_client_from_state(self, *args: Any, **kwargs: Any) -> TrainingClient:  # noqa: D102
        return _of_training(super().create_training_client_from_state(*args, **kwargs))

    async def create_training_client_from_state_async(self, *args: Any, **kwargs: Any) -> TrainingClient:  # noqa: D102
        return _of_training(await super().create_training_client_from_state_async(*args, **kwargs))

    def create_training_client_from_state_with_optimizer(self, *args: Any, **kwargs: Any) -> TrainingClient:  # noqa: D102
        return _of_training(super().create_training_client_from_state_with_optimizer(*args, **kwargs))

    async def create_training_client_from_state_with_optimizer_async(self, *args: Any, **kwargs: Any) -> TrainingClient:  # noqa: D102
        return _of_training(await super().create_training_client_from_state_with_optimizer_async(*args, **kwargs))


def _fast(client: tinker.SamplingClient, asked: dict[str, Any]) -> SamplingClient:
    # The official clients are made by coroutines of the SDK's own that name their classes, so the class is changed afterwards: state and
    # all other methods stay what they are.
    client.__class__ = SamplingClient
    if asked.get("record_stability_info") or asked.get("retry_config") is not None:
        vars(client)["_tinkrs_official_only"] = True
    return client  # type: ignore[return-value]


def _of_training(client: tinker.TrainingClient) -> TrainingClient:
    client.__class__ = TrainingClient
    return client  # type: ignore[return-value]


_opening = threading.Lock()
_drawings: weakref.WeakSet[_Drawing] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """Ends the threads that wait in Rust before the interpreter ends: it could not end them there."""
    own = [drawing for drawing in _drawings if drawing.pid == os.getpid()]
    for drawing in own:
        drawing.native.abandon()
    for drawing in own:
        drawing.thread.join(10)


def _open(client: SamplingClient) -> _Drawing:
    """Opens the Rust side of a client; in a forked child, one of its own."""
    with _opening:
        drawing = client.__dict__.get("_tinkrs_drawing")
        if drawing is None or drawing.pid != os.getpid():
            drawing = _Drawing(client)
            vars(client)["_tinkrs_drawing"] = drawing
            _drawings.add(drawing)
            # At the end of the program `_end_threads` does more.
            weakref.finalize(client, drawing.close).atexit = False
        return drawing


class _Drawing:
    """Samples under way, and the thread that resolves their futures."""

    def __init__(self, client: tinker.SamplingClient) -> None:
        holder = client._pickle_state().holder
        self.pid = os.getpid()
        self.url = holder.base_url
        self.native = _native.open(client.get_sampler_handle(), holder.api_key)
        self.tickets = itertools.count()
        self.waiting: dict[int, Future[types.SampleResponse]] = {}
        self.thread = threading.Thread(target=self._resolve, name="tinkrs-samples", daemon=True)
        self.thread.start()

    def submit(
        self, prompt: types.ModelInput, num_samples: int, params: types.SamplingParams, prompt_logprobs: bool
    ) -> Future[types.SampleResponse]:
        ticket = next(self.tickets)
        future: Future[types.SampleResponse] = Future()
        self.waiting[ticket] = future
        first = prompt.chunks[0] if len(prompt.chunks) == 1 else None
        # Only text comes here. One chunk is passed on as it is: `to_ints` copies.
        tokens = first.tokens if isinstance(first, types.EncodedTextChunk) else prompt.to_ints()
        stop = list(params.stop) if isinstance(params.stop, tuple) else params.stop
        try:
            self.native.submit(
                ticket, tokens, num_samples, params.max_tokens, params.seed, stop,
                params.temperature, params.top_k, params.top_p, prompt_logprobs,
            )
        except BaseException:
            del self.waiting[ticket]
            raise
        return future

    def close(self) -> None:
        # A forked child has a copy, and its threads are the parent's.
        if self.pid == os.getpid():
            self.native.close()

    def _resolve(self) -> None:
        while (finished := self.native.take()) is not None:
            for ticket, output, failure in finished:
                future = self.waiting.pop(ticket)
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    if failure is not None:
                        raise _error(self.url, *failure)
                    assert output is not None
                    future.set_result(_response(*output))
                except Exception as error:  # noqa: BLE001: whatever it is, somebody waits for it
                    future.set_exception(error)
        for future in list(self.waiting.values()):
            future.cancel()


def _response(sequences: tuple[Any, ...], prompt: bytes | None, cached: int) -> types.SampleResponse:
    return types.SampleResponse(
        sequences=[
            types.SampledSequence(
                stop_reason=reason,
                sequence_id=sequence_id,
                tokens_np=np.frombuffer(tokens, np.int32),
                logprobs_np=None if logprobs is None else np.frombuffer(logprobs, np.float32),
            )
            for reason, sequence_id, tokens, logprobs in sequences
        ],
        prompt_logprobs_np=None if prompt is None else np.frombuffer(prompt, np.float32),
        prompt_cache_hit_tokens=cached,
    )


_BY_STATUS: dict[int, type[tinker.APIStatusError]] = {
    400: tinker.BadRequestError,
    401: tinker.AuthenticationError,
    403: tinker.PermissionDeniedError,
    404: tinker.NotFoundError,
    409: tinker.ConflictError,
    422: tinker.UnprocessableEntityError,
    429: tinker.RateLimitError,
}


def _error(url: str, status: int | None, request_id: str | None, user: bool, message: str) -> Exception:
    """The exception that the official SDK raises in this case."""
    request = httpx.Request("POST", f"{url.rstrip('/')}/api/v1/asample")
    if status is not None:
        of_status = tinker.InternalServerError if status >= 500 else tinker.APIStatusError
        response = httpx.Response(status, request=request)
        return _BY_STATUS.get(status, of_status)(message, response=response, body=None)
    if request_id is not None:
        category = types.RequestErrorCategory.User if user else types.RequestErrorCategory.Server
        return tinker.RequestFailedError(message, request_id, category)
    if user:
        return ValueError(message)
    return tinker.APIConnectionError(request=request, message=message)
