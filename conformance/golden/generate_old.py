"""Writes the golden vectors of an old SDK, 0.3.0 or 0.16.1, under its own Python environment.

    python generate_old.py <folder>

The file names and their shape are those of `generate.py`, plus the member `version`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable
from unittest import mock

from capture import API, Answer, CaptureServer
from fixed_telemetry import fixed, hide_traceback, log_every_kind
from output import write_json

try:
    import torch  # noqa: F401
except ImportError:
    # 0.3.0 imports torch on load and then needs it for custom losses only.
    sys.modules["torch"] = ModuleType("torch")
    sys.modules["torch"].Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]

import numpy as np
import tinker
from tinker import types
from tinker.lib import telemetry as telemetry_module
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

VERSION = tinker.__version__
IS_0_3 = VERSION == "0.3.0"
SESSION, MODEL, SAMPLER = "session-1", "session-1:train:0", "session-1:sample:0"
BASE_MODEL = "Qwen/Qwen3-8B"
WEIGHTS = f"tinker://{MODEL}/weights/step-1"
SAMPLER_WEIGHTS = f"tinker://{MODEL}/sampler_weights/step-1"
PNG = bytes.fromhex("89504e470d0a1a0aff")
URL = "https://example.com/cat.jpg"


class Old:
    """Runs one SDK call at a time and writes the body that it sent."""

    def __init__(self, server: CaptureServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.holder = self.service().holder

    def service(self, **arguments: Any) -> Any:
        return tinker.ServiceClient(base_url=self.server.url, api_key="tml-golden", **arguments)

    def training(self) -> Any:
        return tinker.TrainingClient(self.holder, model_seq_id=0, model_id=MODEL)

    def sampling(self) -> Any:
        return tinker.SamplingClient(self.holder, sampling_session_id=SAMPLER)

    def low_level(self, call: Callable[[Any], Any]) -> Any:
        async def run() -> Any:
            with self.holder.aclient(ClientConnectionPoolType.TRAIN) as client:
                return await call(client)

        return self.holder.run_coroutine_threadsafe(run())

    def record(
        self,
        operation: str,
        variant: str,
        call: Callable[[], Any],
        *,
        where: Callable[[Any], bool] = lambda _: True,
        edit: Callable[[Any], Any] = lambda body: body,
    ) -> None:
        self.server.forget_promises()
        since = self.server.mark()
        outcome = call()
        if hasattr(outcome, "result"):
            outcome.result()
        request = self.server.wait_for(lambda r: r.path == f"{API}/{operation}" and where(r), since)
        vector = {
            "version": VERSION,
            "operation": operation,
            "variant": variant,
            "method": request.method,
            "path": request.target,
            "body": edit(request.json()),
        }
        write_json(self.folder / f"{operation}.{variant}.json", vector)


def main(folder: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("TINKER_", "CLOUDFLARE_ACCESS_")):
            del os.environ[name]
    os.environ["TINKER_TELEMETRY"] = "0"
    logging.disable(logging.CRITICAL)
    with CaptureServer() as server:
        server.answers |= {
            "create_session": {"session_id": SESSION},
            "create_sampling_session": {"sampling_session_id": SAMPLER},
            "get_info": {"model_id": MODEL, "model_data": {}},
            "telemetry": {"status": "accepted"},
        }
        old = Old(server, folder)
        for group in (_service, _training, _passes, _weights, _sampling, _futures, _telemetry):
            group(old)
    _results(folder / "results")


def _service(old: Old) -> None:
    full = {} if IS_0_3 else {"project_id": "project-1"}

    def with_tags() -> None:
        with mock.patch.dict(os.environ, {"TINKER_TAGS": "nightly,sweep"}):
            old.service(user_metadata={"owner": "golden"}, **full)

    old.record("create_session", "minimal", lambda: old.service() and None)
    old.record(
        "create_session",
        "full",
        with_tags,
        # The SDK keeps the tags in a set, so their order differs from run to run.
        edit=lambda body: body | {"tags": sorted(body["tags"])},
    )

    async def heartbeat(client: Any) -> Any:
        return await client.service.session_heartbeat(session_id=SESSION, max_retries=0, timeout=10)

    old.record("session_heartbeat", "minimal", lambda: old.low_level(heartbeat))
    for name, value in {"base_model": BASE_MODEL, "model_path": SAMPLER_WEIGHTS}.items():
        old.record(
            "create_sampling_session",
            name,
            lambda: old.service().create_sampling_client(**{name: value}) and None,
        )


def _training(old: Old) -> None:
    def create(**arguments: Any) -> None:
        old.service().create_lora_training_client(base_model=BASE_MODEL, **arguments)

    old.record("create_model", "minimal", create)
    old.record(
        "create_model",
        "full",
        lambda: create(
            rank=8,
            seed=1234567890123,
            train_mlp=False,
            train_attn=True,
            train_unembed=False,
            user_metadata={"recipe": "sft"},
        ),
    )
    old.record("get_info", "minimal", lambda: old.training().get_info() and None)
    request = types.UnloadModelRequest(model_id=MODEL)
    old.record(
        "unload_model", "minimal", lambda: old.low_level(lambda c: c.models.unload(request=request))
    )
    adam = {"learning_rate": 3e-5, "beta1": 0.8, "beta2": 0.99, "eps": 1e-8}
    if not IS_0_3:
        adam |= {"weight_decay": 0.01, "grad_clip_norm": 1.5}
    for variant, params in {
        "minimal": {},
        "learning_rate": {"learning_rate": 0.001},
        "full": adam,
    }.items():
        step = types.AdamParams(**params)
        old.record("optim_step", variant, lambda: old.training().optim_step(step))


def _image_chunks() -> dict[str, Any]:
    """Up to 0.4 an image states its size and its tokens, all three required."""
    size = {"height": 480, "width": 640, "tokens": 64} if IS_0_3 else {"expected_tokens": 64}
    chunks: dict[str, Any] = {
        "image": types.ImageChunk(data=PNG, format="png", **size),
        "image_asset_pointer": types.ImageAssetPointerChunk(format="jpeg", location=URL, **size),
    }
    if not IS_0_3:
        chunks["image_without_tokens"] = types.ImageChunk(data=PNG, format="jpeg")
    return chunks


def _passes(old: Old) -> None:
    text = types.ModelInput.from_ints([1, 2])
    supervised = types.Datum(
        model_input=text, loss_fn_inputs={"target_tokens": [2, 3], "weights": [1.0, 0.5]}
    )
    policy = {"target_tokens": [2, 3], "logprobs": [-0.5, -1.25], "advantages": [1.0, -2.0]}
    rl = types.Datum(model_input=text, loss_fn_inputs=policy)
    arrays = types.Datum(
        model_input=text,
        loss_fn_inputs={
            "target_tokens": np.array([[2, 3], [4, 5]], dtype=np.int64),
            "weights": np.array([[1.0, 0.5], [0.0, -2.0]], dtype=np.float32),
            "logprobs": types.TensorData(data=[-0.5], dtype="float32"),
        },
    )
    ppo = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    cases: dict[str, tuple[list[Any], str, Any]] = {
        "minimal": ([supervised], "cross_entropy", None),
        "config": ([rl, rl], "ppo", ppo),
        "importance_sampling": ([rl], "importance_sampling", None),
        "arrays": ([arrays], "cross_entropy", {}),
    }
    if not IS_0_3:
        cases["cispo"] = ([rl], "cispo", ppo)
        cases["dro"] = ([rl], "dro", {"beta": 0.05})
    for name, chunk in _image_chunks().items():
        # The SDK needs the length of a datum, which an image without tokens does not have.
        if name != "image_without_tokens":
            mixed = types.ModelInput(chunks=[*text.chunks, chunk, *text.chunks])
            datum = types.Datum(model_input=mixed, loss_fn_inputs={"target_tokens": [2]})
            cases[name] = ([datum], "cross_entropy", None)
    for operation in ("forward_backward", "forward"):
        for variant, (data, loss_fn, config) in cases.items():
            call = getattr(old.training(), operation)
            old.record(operation, variant, lambda: call(data, loss_fn, config))


def _weights(old: Old) -> None:
    named = {"path": SAMPLER_WEIGHTS}
    ephemeral = {"path": None, "sampling_session_id": SAMPLER}
    old.record("save_weights", "minimal", lambda: old.training().save_state("step-1"))
    old.server.results["save_weights_for_sampler"] = named
    old.record(
        "save_weights_for_sampler",
        "named",
        lambda: old.training().save_weights_for_sampler("step-1"),
    )
    old.record("load_weights", "minimal", lambda: old.training().load_state(WEIGHTS))
    if not IS_0_3:
        old.record("save_weights", "full", lambda: old.training().save_state("step-1", 3600))
        old.record(
            "save_weights_for_sampler",
            "named_full",
            lambda: old.training().save_weights_for_sampler("step-1", 3600),
        )
        old.record(
            "load_weights",
            "with_optimizer",
            lambda: old.training().load_state_with_optimizer(WEIGHTS),
        )
    old.server.results["save_weights_for_sampler"] = ephemeral

    def ephemeral_save() -> Any:
        # A service of its own, so that its sampling sessions count from 0.
        holder = old.service().holder
        training = tinker.TrainingClient(holder, model_seq_id=0, model_id=MODEL)
        return training.save_weights_and_get_sampling_client_submit()

    old.record("save_weights_for_sampler", "ephemeral", ephemeral_save)


def _sampling(old: Old) -> None:
    text = types.ModelInput.from_ints([1, 2])

    def sample(variant: str, params: dict[str, Any], prompt: Any = text, **arguments: Any) -> None:
        settings = types.SamplingParams(**params)
        old.record(
            "asample", variant, lambda: old.sampling().sample(prompt, 1, settings, **arguments)
        )

    sample("minimal", {})
    for variant, stop in {
        "stop_none": None,
        "stop_string": "\n\nUser:",
        "stop_strings": ["</s>", "é"],
        "stop_tokens": [151643, 151645],
        "stop_empty": [],
    }.items():
        sample(variant, {"max_tokens": 8, "stop": stop})
    every = {"max_tokens": 100, "seed": 42, "stop": ["END"]}
    sample(
        "full",
        every | {"temperature": 0.7, "top_k": 40, "top_p": 0.95},
        include_prompt_logprobs=True,
        topk_prompt_logprobs=5,
    )
    for name, chunk in _image_chunks().items():
        prompt = types.ModelInput(chunks=[*text.chunks, chunk])
        sample(f"prompt_{name}", {"max_tokens": 1}, prompt)
    sample("prompt_empty", {"max_tokens": 1}, types.ModelInput.empty())
    old.record("asample", "compute_logprobs", lambda: old.sampling().compute_logprobs(text))


def _futures(old: Old) -> None:
    sample = lambda: old.sampling().sample(  # noqa: E731
        types.ModelInput.from_ints([1]), 1, types.SamplingParams()
    )
    old.record("retrieve_future", "first", sample)
    if not IS_0_3:
        large = {"status": "complete_metadata", "response_payload_size": 4}
        old.server.future_answers.append(Answer.of(large))
        old.record(
            "retrieve_future",
            "after_metadata",
            sample,
            where=lambda request: request.headers["x-tinker-request-iteration"] == "1",
        )


def _telemetry(old: Old) -> None:
    def session() -> None:
        with fixed(telemetry_module):
            service = old.service()
            # Until the sender runs, events would wait for its ten-second timer.
            service.holder.run_coroutine_threadsafe(asyncio.sleep(0)).result()
            log_every_kind(service.get_telemetry())

    old.record("telemetry", "session", session, edit=hide_traceback)


def _results(folder: Path) -> None:
    """JSON results that these clients read where newer ones read protobuf."""
    tensor = {"data": [-1.0, -2.0], "dtype": "float32", "shape": [2]}
    sequence = {"stop_reason": "length", "tokens": [1, 2]}
    output = {"loss_fn_output_type": "scalar", "loss_fn_outputs": [], "metrics": {}}
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "forward_backward": (
            types.ForwardBackwardOutput,
            {
                "minimal": output,
                "full": {
                    "loss_fn_output_type": "TorchLossReturn",
                    "loss_fn_outputs": [
                        {"logprobs": tensor},
                        {"logprobs": {"data": [3, 4], "dtype": "int64"}},
                    ],
                    "metrics": {"loss:sum": 3.0, "tokens:sum": 2},
                },
            },
        ),
        "asample": (
            types.SampleResponse,
            {
                "minimal": {"sequences": [sequence]},
                "full": {
                    "sequences": [
                        sequence | {"logprobs": [-0.1, -0.2]},
                        {"stop_reason": "stop", "tokens": [], "logprobs": None},
                    ],
                    "prompt_logprobs": [None, -0.5],
                    "topk_prompt_logprobs": [None, [[5, -0.1], [9, -2.0]]],
                    "type": "sample",
                },
            },
        ),
    }
    for operation, (model, variants) in cases.items():
        for variant, body in variants.items():
            parsed = model.model_validate(body).model_dump(mode="json")
            value = {"version": VERSION, "model": model.__name__, "body": body, "parsed": parsed}
            write_json(folder / f"{operation}.{variant}.json", value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
