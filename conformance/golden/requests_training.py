"""Requests about a model in training: creation, steps, checkpoints."""

from __future__ import annotations

from typing import Any

import zstandard
from tinker import types
from tinker.types.optimizer import OptimizerConfigBase, OptimParamsBase

from capture import Answer
from clients import BASE_MODEL, MODEL, SESSION, WEIGHTS, Clients, text
from proto_vectors import request_message
from recorder import Recorder

VIA_LOAD = {"create_model_via_load_weights": True}
METADATA = {"recipe": "sft", "note": ""}
DIMUON = types.DimuonOptimizerConfig()


def record(recorder: Recorder, clients: Clients) -> None:
    _create_model(recorder, clients)
    _optim_step(recorder, clients)
    _load_weights(recorder, clients)
    _save(recorder, clients)
    _get_info(recorder, clients)
    _forward_backward(recorder, clients)
    _polls(recorder, clients)


def _create_model(recorder: Recorder, clients: Clients) -> None:
    path = "create_model"

    def create(**arguments: Any) -> None:
        clients.service().create_lora_training_client(base_model=BASE_MODEL, **arguments)

    recorder.record(path, "minimal", path, create)
    recorder.record(
        path,
        "full",
        path,
        lambda: create(
            rank=8,
            seed=1234567890123,
            train_mlp=False,
            train_attn=True,
            train_unembed=False,
            user_metadata=METADATA,
            optimizer=types.AdamOptimizerConfig(),
        ),
    )
    recorder.record(path, "dimuon", path, lambda: create(optimizer=DIMUON))
    recorder.record(
        path,
        "other_optimizer",
        path,
        lambda: create(optimizer=OptimizerConfigBase(type="lion", momentum=0.5, note=None)),
    )
    recorder.record(
        path,
        "without_lora_config",
        path,
        lambda: clients.low_level(
            "models.create",
            types.CreateModelRequest(session_id=SESSION, model_seq_id=0, base_model=BASE_MODEL),
        ),
    )
    recorder.record(
        path,
        "nested_metadata",
        path,
        lambda: clients.low_level(
            "models.create",
            types.CreateModelRequest(
                session_id=SESSION,
                model_seq_id=3,
                base_model=BASE_MODEL,
                user_metadata={"list": [1, 2.5, None], "map": {"none": None}, "flag": True},
            ),
        ),
    )


def _optim_step(recorder: Recorder, clients: Clients) -> None:
    path = "optim_step"
    variants: dict[str, Any] = {
        "minimal": types.AdamParams(),
        "full": types.AdamParams(
            learning_rate=3e-5,
            beta1=0.8,
            beta2=0.99,
            eps=1e-8,
            weight_decay=0.01,
            grad_clip_norm=1.5,
        ),
        "dimuon": types.DimuonParams(learning_rate=0.02),
        "dimuon_full": types.DimuonParams(learning_rate=0.02, grad_clip_norm=1.0, beta1=0.5),
        "other_optimizer": OptimParamsBase(type="lion", learning_rate=0.5, note=None),
    }
    for variant, params in variants.items():
        recorder.record(path, variant, path, lambda: clients.training().optim_step(params))


def _load_weights(recorder: Recorder, clients: Clients) -> None:
    path = "load_weights"
    token = "tml-other-account"
    clients.server.answers["weights_info"] = {
        "base_model": BASE_MODEL,
        "is_lora": True,
        "lora_rank": 8,
    }

    def resume(config: dict[str, Any] | None, optimizer_state: bool, **arguments: Any) -> None:
        service = clients.service(config)
        if optimizer_state:
            service.create_training_client_from_state_with_optimizer(WEIGHTS, **arguments)
        else:
            service.create_training_client_from_state(WEIGHTS, **arguments)

    recorder.record(path, "legacy", path, lambda: resume(None, False))
    recorder.record(path, "legacy_with_optimizer", path, lambda: resume(None, True))
    recorder.record(
        path,
        "legacy_full",
        path,
        lambda: resume(None, True, base_model=BASE_MODEL, weights_access_token=token),
    )
    recorder.record(path, "create", path, lambda: resume(VIA_LOAD, False))
    recorder.record(path, "create_with_optimizer", path, lambda: resume(VIA_LOAD, True))
    recorder.record(
        path,
        "create_full",
        path,
        lambda: resume(
            VIA_LOAD,
            False,
            base_model=f"{BASE_MODEL}:peft:131072",
            user_metadata=METADATA,
            weights_access_token=token,
            optimizer=DIMUON,
        ),
    )


def _save(recorder: Recorder, clients: Clients) -> None:
    path = "save_weights"
    recorder.record(path, "minimal", path, lambda: clients.training().save_state("step-1"))
    recorder.record(
        path,
        "full",
        path,
        lambda: clients.training().save_state(
            "step-1", ttl_seconds=3600, overwrite=True, user_metadata=METADATA
        ),
    )

    path = "save_weights_for_sampler"
    ephemeral = {"path": None, "sampling_session_id": "session-1:sample:0"}
    named = {"path": f"tinker://{MODEL}/sampler_weights/step-1"}
    clients.server.results[path] = named
    recorder.record(
        path, "named", path, lambda: clients.training().save_weights_for_sampler("step-1")
    )
    recorder.record(
        path,
        "named_full",
        path,
        lambda: clients.training().save_weights_for_sampler(
            "step-1", ttl_seconds=3600, user_metadata=METADATA
        ),
    )
    clients.server.results[path] = ephemeral
    recorder.record(
        path,
        "ephemeral",
        path,
        lambda: clients.training(clients.service()).save_weights_and_get_sampling_client() and None,
    )

    path = "save_weights_external"
    recorder.record(
        path, "minimal", path, lambda: clients.training().save_weights_external("step-1")
    )
    recorder.record(
        path,
        "full",
        path,
        lambda: clients.training().save_weights_external(
            "step-1", ttl_seconds=3600, age_encryption_recipients=["age1abc", "ssh-ed25519 AAAA"]
        ),
    )


def _get_info(recorder: Recorder, clients: Clients) -> None:
    clients.server.answers["get_info"] = {"model_id": MODEL, "model_data": {}}
    recorder.record(
        "get_info", "minimal", "get_info", lambda: clients.training().get_info() and None
    )


def _forward_backward(recorder: Recorder, clients: Clients) -> None:
    """Only the headers; the bodies are the vectors `proto/ForwardBackwardRequest.*`."""
    path = "forward_backward"
    datum = types.Datum(model_input=text(1), loss_fn_inputs={"target_tokens": [2]})
    compressing = clients.service({"proto_compress_fwdbwd": True})
    for variant, training, forward_only in (
        ("plain", clients.training(), False),
        ("forward_only", clients.training(), True),
        ("compressed", clients.training(compressing), False),
    ):
        call = training.forward if forward_only else training.forward_backward
        sent = recorder.record(path, variant, path, lambda: call([datum], "cross_entropy"))
        body = sent.body
        if variant == "compressed":
            body = zstandard.ZstdDecompressor().decompress(body)
        # Those vectors are built without HTTP, so make sure that it adds nothing.
        expected = types.ForwardBackwardRequest(
            forward_backward_input=types.ForwardBackwardInput(
                data=[datum], loss_fn="cross_entropy"
            ),
            model_id=MODEL,
            seq_id=1,
        )
        assert type(built := request_message(expected, forward_only)).FromString(body) == built


def _polls(recorder: Recorder, clients: Clients) -> None:
    """`retrieve_future`: the header names the operation, the body is always the same."""
    data = [types.Datum(model_input=text(1), loss_fn_inputs={"target_tokens": [2]})]
    holder = clients.holder

    def custom_loss() -> Any:
        from tinker.lib.api_future_impl import _APIFuture

        # The poll of `create_custom_loss`, whose caller would need torch to get here.
        async def poll() -> Any:
            promise = await holder._create_custom_loss("loss", [], types.CustomLossGraph(nodes=[]))
            return await _APIFuture(
                types.CreateCustomLossResponse,
                holder,
                promise,
                request_start_time=0.0,
                request_type="CreateCustomLoss",
            )

        return holder.run_coroutine_threadsafe(poll())

    operations: dict[str, Any] = {
        "create_model": lambda: clients.service().create_lora_training_client(BASE_MODEL) and None,
        "forward": lambda: clients.training().forward(data, "cross_entropy"),
        "forward_backward": lambda: clients.training().forward_backward(data, "cross_entropy"),
        "optim_step": lambda: clients.training().optim_step(types.AdamParams()),
        "save_weights": lambda: clients.training().save_state("step-1"),
        "load_weights": lambda: clients.training()._load_state_impl(WEIGHTS, True, None),
        "save_weights_for_sampler": lambda: clients.training()._save_weights_for_sampler_impl(
            None, None, None
        ),
        "save_weights_external": lambda: clients.training().save_weights_external("step-1"),
        "create_custom_loss": custom_loss,
        "sample": lambda: clients.sampling().sample(text(1), 1, types.SamplingParams()),
    }
    for operation, call in operations.items():
        request = recorder.run("retrieve_future", call)
        recorder.note_http("retrieve_future", operation, request)

    path, sample = "retrieve_future", operations["sample"]
    recorder.record(path, "first", path, sample)
    pending = {"type": "try_again", "request_id": "request-1", "queue_state": "active"}
    second = lambda request: request.headers["x-tinker-request-iteration"] == "1"  # noqa: E731
    clients.server.future_answers.append(Answer.of(pending, status=408))
    recorder.record(path, "again", path, sample, where=second)
    large = {"status": "complete_metadata", "response_payload_size": 4}
    clients.server.future_answers.append(Answer.of(large))
    recorder.record(path, "after_metadata", path, sample, where=second)
