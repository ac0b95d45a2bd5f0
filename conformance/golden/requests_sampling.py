"""Requests that draw samples and wait for them in bulk."""

from __future__ import annotations

from typing import Any

from tinker import types
from tinker.types.futures_retrieve_request import (
    FuturesRetrieveRequest,
    SamplingSessionFuturesTarget,
)

from clients import BASE_MODEL, SAMPLER, SAMPLER_WEIGHTS, Clients, sample_result, text
from recorder import Recorder
from requests_service import clone_of

PNG = bytes.fromhex("89504e470d0a1a0aff")
# A tensor container of shape [136, 80] with a payload that clients do not read.
DMEL = bytes.fromhex("0302880150fffe")


def record(recorder: Recorder, clients: Clients) -> None:
    _options(recorder, clients)
    _prompts(recorder, clients)
    _without_session(recorder, clients)
    _retrieve_futures(recorder, clients)
    recorder.record(
        "cancel_future",
        "minimal",
        "cancel_future",
        lambda: clients.holder.run_coroutine_threadsafe(
            clients.holder._send_cancel_request("request-1")
        ),
    )


def _options(recorder: Recorder, clients: Clients) -> None:
    path = "asample"

    def sample(variant: str, params: types.SamplingParams, **arguments: Any) -> None:
        recorder.record(
            path,
            variant,
            path,
            lambda: clients.sampling().sample(text(1, 2), 1, params, **arguments),
        )

    sample("minimal", types.SamplingParams())
    for variant, stop in {
        "stop_string": "\n\nUser:",
        "stop_strings": ["</s>", "é"],
        "stop_tokens": [151643, 151645],
        "stop_empty": [],
    }.items():
        sample(variant, types.SamplingParams(max_tokens=8, stop=stop))

    sample("greedy", types.SamplingParams(max_tokens=8, temperature=0.0))
    dense = types.TensorData(data=[5, -1, 6, 7], dtype="int64", shape=[2, 2])
    sparse = types.TensorData(
        data=[5, 7],
        dtype="int64",
        shape=[3, 4],
        sparse_crow_indices=[0, 1, 1, 2],
        sparse_col_indices=[1, 3],
    )
    sample("target_dense", types.SamplingParams(max_tokens=1), target_prompt_logprobs=dense)
    sample("target_csr", types.SamplingParams(max_tokens=1), target_prompt_logprobs=sparse)

    clients.server.results[path] = sample_result(3)
    stable = clients.sampling(record_stability_info=True)
    recorder.record(
        path,
        "full",
        path,
        lambda: stable.sample(
            text(1, 2, 151645),
            3,
            types.SamplingParams(
                max_tokens=100,
                seed=9223372036854775806,
                stop=["END"],
                temperature=0.7,
                top_k=40,
                top_p=0.95,
            ),
            include_prompt_logprobs=True,
            topk_prompt_logprobs=5,
            topk_sample_logprobs=3,
            target_prompt_logprobs=dense,
            prompt_alt_tokens_k=4,
            prompt_logprobs_last_n=2,
        ),
    )
    clients.server.results[path] = sample_result(1)
    recorder.record(
        path, "compute_logprobs", path, lambda: clients.sampling().compute_logprobs(text(1, 2))
    )
    recorder.record(
        path,
        "compute_logprobs_last_n",
        path,
        lambda: clients.sampling().compute_logprobs(text(1, 2), prompt_logprobs_last_n=1),
    )
    clone = clone_of(clients, {"sample_join_sampling_session": True})
    recorder.record(path, "clone", path, lambda: clone.sample(text(1), 1, types.SamplingParams()))


def _prompts(recorder: Recorder, clients: Clients) -> None:
    url = "https://example.com/cat.jpg"
    chunks: dict[str, list[Any]] = {
        "empty": [],
        "empty_text": [types.EncodedTextChunk(tokens=[])],
        "image": [types.ImageChunk(data=PNG, format="png")],
        "image_full": [types.ImageChunk(data=PNG, format="jpeg", expected_tokens=64)],
        "image_asset_pointer": [types.ImageAssetPointerChunk(format="jpeg", location=url)],
        "image_asset_pointer_full": [
            types.ImageAssetPointerChunk(format="png", location=url, expected_tokens=64)
        ],
        "dmel": [types.DmelChunk(dmel=DMEL)],
    }
    text_chunk = types.EncodedTextChunk(tokens=[1, 2])
    chunks["mixed"] = [text_chunk, chunks["image_full"][0], chunks["dmel"][0], text_chunk]
    for variant, prompt in chunks.items():
        recorder.record(
            "asample",
            f"prompt_{variant}",
            "asample",
            lambda: clients.sampling().sample(
                types.ModelInput(chunks=prompt), 1, types.SamplingParams(max_tokens=1)
            ),
        )


def _without_session(recorder: Recorder, clients: Clients) -> None:
    """Fields of the request that the 0.36.0 clients never fill in."""
    for variant, fields in {
        "request_minimal": {},
        "request_base_model": {"base_model": BASE_MODEL},
        "request_model_path": {"model_path": SAMPLER_WEIGHTS, "num_samples": 1},
    }.items():
        request = types.SampleRequest(
            prompt=text(1), sampling_params=types.SamplingParams(), **fields
        )
        recorder.record(
            "asample", variant, "asample", lambda: clients.low_level("sampling.asample", request)
        )


def _retrieve_futures(recorder: Recorder, clients: Clients) -> None:
    path = "retrieve_futures"
    finished = {
        "state": "finished",
        "request_id": "request-1",
        "response_payload_uncompressed_size": 10,
    }

    def answer(request: Any) -> Any:
        seen = request.json()["prev_cursor"] > 0
        return {"completions": [] if seen else [finished], "cursor": 42}

    clients.server.answers[path] = answer
    config = {"sample_use_retrieve_futures": True, "sample_join_sampling_session": True}

    def poll(variant: str, sampling: Any, cursor: int) -> None:
        since = clients.server.mark()
        recorder.record(
            path,
            variant,
            path,
            lambda: sampling.sample(text(1), 1, types.SamplingParams()),
            where=lambda request: request.json()["prev_cursor"] == cursor,
        )
        # The second poll is the last one. Wait for it, or the next case might see it.
        clients.server.wait_for(
            lambda request: request.operation == path and request.json()["prev_cursor"] == 42, since
        )

    poll("first", clients.sampling(clients.service(config)), 0)
    poll("again", clients.sampling(clients.service(config)), 42)
    poll("clone", clone_of(clients, config), 0)
    target = SamplingSessionFuturesTarget(sampling_session_id=SAMPLER)
    for variant, request in {
        "request_minimal": FuturesRetrieveRequest(target=target),
        "request_full": FuturesRetrieveRequest(
            target=SamplingSessionFuturesTarget(sampling_session_id=SAMPLER, cloned_sampler_id=3),
            prev_cursor=9007199254740993,
            timeout=12.5,
            retrieved_request_ids=["request-1", "request-2"],
        ),
    }.items():
        recorder.record(
            path, variant, path, lambda: clients.low_level("futures.retrieve_multi", request)
        )
