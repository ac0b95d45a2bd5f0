"""Bodies of `POST /forward_backward`, made by the SDK's own conversion."""

from __future__ import annotations

import math
from typing import Any

from tinker import types
from tinker.types import TensorData

from clients import MODEL, text

Case = tuple[types.ForwardBackwardRequest, bool]

PNG = bytes.fromhex("89504e47")
INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)

APPENDIX_B = {
    "appendix_b1": (
        "0a016d10011a540a0c0a0a0a08010000002c01000012280a0d7461726765745f746f6b656e7312170a102c01"
        "00000000000007000000000000001802220102121a0a0777656967687473120f0a08000000000000803f1801"
        "220102220370706f2a1d0a12636c69705f6c6f775f7468726573686f6c6411cdccccccccccec3f30013a1f0a"
        "12636c69705f6c6f775f7468726573686f6c64120909cdccccccccccec3f"
    ),
    "appendix_b2": (
        "0a016d10021a780a0f120d0a0489504e471203706e67180512510a07776569676874731246123e0a08000080"
        "3f00000040122000000000000000000100000000000000010000000000000002000000000000001a10010000"
        "000000000003000000000000001801220203041a070a050a01711805220912070a0171100218032206637573"
        "746f6d3a0f0a076c6f73735f6964120412024c31"
    ),
}


def cases() -> dict[str, Case]:
    tensors = {f"tensor_{name}": _request([_datum(x=value)]) for name, value in _tensors().items()}
    return {
        "minimal": _request([_datum(target_tokens=[2], weights=[1.0])]),
        "forward_only": _request([_datum(target_tokens=[2], weights=[1.0])], forward_only=True),
        "no_inputs": _request([_datum()]),
        "no_data": _request([]),
        "no_seq_id": _request([_datum()], seq_id=None),
        "large_seq_id": _request([_datum()], seq_id=INT32[1]),
        "several_datums": _request([_datum(target_tokens=[n]) for n in range(3)]),
        "every_chunk": _request([types.Datum(model_input=_every_chunk())]),
        "token_limits": _request([types.Datum(model_input=text(0, -1, *INT32))]),
        # Sorted by the bytes of the keys. No key is a prefix of another one: Python's
        # protobuf then writes the longer one first, which nobody should have to imitate.
        "map_order": _request([_datum(**{k: _floats(1) for k in ("b", "x1", "B", "a", "é", "z")})]),
        "importance_sampling": _request([_policy_datum()], "importance_sampling"),
        **{f"config_{name}": _request([_datum()], *loss) for name, loss in _configs().items()},
        **tensors,
        "spans": _request([_with_spans()]),
        "spans_empty": _request([_empty_spans()]),
        "appendix_b1": _appendix_b1(),
        "appendix_b2": _appendix_b2(),
    }


def _request(
    data: list[types.Datum],
    loss_fn: str = "cross_entropy",
    config: dict[str, float | str] | None = None,
    *,
    model_id: str = MODEL,
    seq_id: int | None = 1,
    forward_only: bool = False,
) -> Case:
    given: Any = types.ForwardBackwardInput(data=data, loss_fn=loss_fn, loss_fn_config=config)
    request = types.ForwardBackwardRequest(
        forward_backward_input=given, model_id=model_id, seq_id=seq_id
    )
    return request, forward_only


def _datum(**inputs: Any) -> types.Datum:
    return types.Datum(model_input=text(1), loss_fn_inputs=inputs)


def _floats(*values: float) -> TensorData:
    return TensorData(data=list(values), dtype="float32", shape=[len(values)])


def _policy_datum() -> types.Datum:
    inputs = {"target_tokens": [2, 3], "logprobs": [-0.5, -1.25], "advantages": [1.0, -2.0]}
    return types.Datum(model_input=text(1, 2), loss_fn_inputs=inputs)


def _every_chunk() -> types.ModelInput:
    return types.ModelInput(
        chunks=[
            types.EncodedTextChunk(tokens=[1, 300, 151645]),
            types.EncodedTextChunk(tokens=[]),
            types.ImageChunk(data=PNG, format="png"),
            types.ImageChunk(data=PNG, format="jpeg", expected_tokens=64),
            types.ImageChunk(data=b"", format="png", expected_tokens=0),
            types.DmelChunk(dmel=bytes.fromhex("0302880150ff")),
        ]
    )


def _configs() -> dict[str, tuple[str, dict[str, float | str]]]:
    return {
        "empty": ("ppo", {}),
        "numbers": ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
        "zero": ("dro", {"beta": 0.0}),
        "integer": ("dro", {"beta": 1}),
        "not_finite": ("dro", {"a": math.nan, "b": math.inf, "c": -math.inf, "d": -0.0}),
        "text": ("custom", {"loss_id": "loss-1"}),
        "empty_text": ("custom", {"loss_id": ""}),
        "mixed": ("stable_reinforce", {"kl_coeff": 0.01, "name": "é"}),
    }


def _tensors() -> dict[str, TensorData]:
    float_csr = {"sparse_crow_indices": [0, 1, 1, 2], "sparse_col_indices": [1, 3]}
    return {
        "float": _floats(0.0, 1.5, -2.25, 1e-3),
        "float_special": _floats(math.nan, math.inf, -math.inf, -0.0, 1e-45, 3.4028234663852886e38),
        "float_2d": TensorData(data=[1, 2, 3, 4, 5, 6], dtype="float32", shape=[3, 2]),
        "int": TensorData(data=[0, 1, -1], dtype="int64", shape=[3]),
        "int_limits": TensorData(data=list(INT64), dtype="int64", shape=[2]),
        "int_2d": TensorData(data=[1, 2, 3, 4], dtype="int64", shape=[2, 2]),
        "empty": TensorData(data=[], dtype="int64", shape=[0]),
        "without_shape": TensorData(data=[1, 2], dtype="int64"),
        # A scalar also has no shape bytes, so on the wire it looks like the one above.
        "scalar": TensorData(data=[0.5], dtype="float32", shape=[]),
        "csr_float": TensorData(data=[1.0, 2.0], dtype="float32", shape=[3, 4], **float_csr),
        "csr_int": TensorData(data=[7, -1], dtype="int64", shape=[3, 4], **float_csr),
        "csr_empty": TensorData(
            data=[],
            dtype="float32",
            shape=[2, 4],
            sparse_crow_indices=[0, 0, 0],
            sparse_col_indices=[],
        ),
    }


def _with_spans() -> types.Datum:
    prompt, sampled = types.PromptProvenanceSpan, types.SampledProvenanceSpan
    datum = types.Datum(
        model_input=text(1, 2, 3, 4), loss_fn_inputs={"target_tokens": [2, 3, 4, 5]}
    )
    return datum.with_provenance(
        model_input=[
            prompt(sequence_id="sequence-0", length=2),
            sampled(sequence_id="sequence-0", offset=0, length=2),
        ],
        loss_fn_inputs=[
            prompt(sequence_id="sequence-0", offset=1, length=1),
            sampled(sequence_id="sequence-1", offset=5_000_000_000, length=3),
            sampled(sequence_id="sequence-2", length=0),
        ],
    )


def _empty_spans() -> types.Datum:
    """Both lists are given and empty, which looks on the wire like no lists at all."""
    return types.Datum(model_input=text(), model_input_spans=[], loss_fn_input_spans=[])


def _appendix_b1() -> Case:
    datum = types.Datum(
        model_input=text(1, 300),
        loss_fn_inputs={"target_tokens": [300, 7], "weights": [0.0, 1.0]},
    )
    config: dict[str, float | str] = {"clip_low_threshold": 0.9}
    return _request([datum], "ppo", config, model_id="m", forward_only=True)


def _appendix_b2() -> Case:
    weights = _tensors()["csr_float"]
    datum = types.Datum(
        model_input=types.ModelInput(
            chunks=[types.ImageChunk(data=PNG, format="png", expected_tokens=5)]
        ),
        loss_fn_inputs={"weights": weights},
        model_input_spans=[types.PromptProvenanceSpan(sequence_id="q", length=5)],
        loss_fn_input_spans=[types.SampledProvenanceSpan(sequence_id="q", offset=2, length=3)],
    )
    return _request([datum], "custom", {"loss_id": "L1"}, model_id="m", seq_id=2)
