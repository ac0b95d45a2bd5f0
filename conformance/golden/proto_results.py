"""Results that a server sends: `SampleResponse` and `ForwardBackwardOutput`."""

from __future__ import annotations

import math
import struct
from typing import Any

from tinker.proto import tinker_public_pb2 as pb

FILLER = (0, -99999.0)

APPENDIX_B = {
    "SampleResponse": (
        "0a300801120805000000060000001a08000000bf000080bf22180a0805000000000000001208000000bf804f"
        "c3c71801200212080000c07f000000c02003"
    ),
    "ForwardBackwardOutput": (
        "0a136d6f643a546f7263684c6f737352657475726e123a12360a086c6f6770726f6273122a0a0c000080bf00"
        "0000c0000040c01218000000000000000004000000000000000c00000000000000180118021a130a086c6f73"
        "733a73756d11000000000000f83f"
    ),
}


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def i32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def i64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def bf16(*values: float) -> bytes:
    """The upper half of each float; every value here fits without rounding."""
    return b"".join(f32(value)[2:] for value in values)


def topk(*rows: list[tuple[int, float]]) -> pb.TopkLogprobs:
    cells = [cell for row in rows for cell in row]
    return pb.TopkLogprobs(
        token_ids=i32(*(token for token, _ in cells)),
        logprobs=f32(*(logprob for _, logprob in cells)),
        k=len(rows[0]),
        length=len(rows),
    )


def dense(dtype: int, data: bytes, *shape: int) -> pb.Tensor:
    return pb.Tensor(dense=data, dtype=dtype, shape=shape)


def csr(dtype: int, values: bytes) -> pb.Tensor:
    """Two values in a 3 x 4 tensor."""
    sparse = pb.SparseCsr(values=values, crow_indices=i64(0, 1, 1, 2), col_indices=i64(1, 3))
    return pb.Tensor(sparse_csr=sparse, dtype=dtype, shape=[3, 4])


def sequence(*tokens: int, **fields: Any) -> pb.SampledSequence:
    return pb.SampledSequence(tokens=i32(*tokens), **fields)


def sample_responses() -> dict[str, pb.SampleResponse]:
    one = [sequence(5, 6, logprobs=f32(-0.5, -1.0))]
    row, none = [(5, -0.5), (9, -2.0)], [FILLER, FILLER]
    return {
        "empty": pb.SampleResponse(),
        "minimal": pb.SampleResponse(sequences=[sequence(5)]),
        "no_tokens": pb.SampleResponse(sequences=[sequence()]),
        "length": pb.SampleResponse(
            sequences=[sequence(5, stop_reason=pb.STOP_REASON_LENGTH, logprobs=f32(-0.5))]
        ),
        "several_sequences": pb.SampleResponse(
            sequences=[*one, sequence(2**31 - 1, stop_reason=pb.STOP_REASON_LENGTH), sequence(0)]
        ),
        "empty_logprobs": pb.SampleResponse(
            sequences=[sequence(5, logprobs=b"")], prompt_logprobs=b""
        ),
        "not_finite_logprobs": pb.SampleResponse(
            sequences=[sequence(1, 2, 3, logprobs=f32(math.nan, -math.inf, math.inf))]
        ),
        "prompt_logprobs": pb.SampleResponse(
            sequences=one, prompt_logprobs=f32(math.nan, -2.0, math.nan, -math.inf, 0.0)
        ),
        "topk_prompt": pb.SampleResponse(
            sequences=one, topk_prompt_logprobs=topk(none, row, [(0, -0.25), FILLER], none)
        ),
        # Only fillers at the end of a row are dropped, and only (0, -99999) is a filler.
        "topk_prompt_inner_filler": pb.SampleResponse(
            sequences=one,
            topk_prompt_logprobs=topk(
                [(5, -0.5), FILLER, (7, -3.0)], [(0, -1.0), (3, -99999.0), FILLER]
            ),
        ),
        "topk_prompt_length_zero": pb.SampleResponse(
            sequences=one, topk_prompt_logprobs=pb.TopkLogprobs(k=2)
        ),
        "topk_prompt_k_zero": pb.SampleResponse(
            sequences=one, topk_prompt_logprobs=pb.TopkLogprobs(length=2)
        ),
        "topk_sampled": pb.SampleResponse(
            sequences=[
                sequence(5, 6, topk_sampled_logprobs=topk(row, none)),
                sequence(5, topk_sampled_logprobs=topk([(5, -0.5)])),
            ]
        ),
        "target_dense": pb.SampleResponse(
            sequences=one,
            target_prompt_logprobs=dense(pb.DTYPE_FLOAT32, f32(-0.5, 0.0, -1.5, -2.5), 2, 2),
        ),
        "target_csr": pb.SampleResponse(
            sequences=one, target_prompt_logprobs=csr(pb.DTYPE_FLOAT32, f32(-0.5, -2.5))
        ),
        "alt_tokens_int32": pb.SampleResponse(sequences=one, prompt_alt_tokens=alt_tokens()),
        "alt_tokens_int64": pb.SampleResponse(
            sequences=one,
            prompt_alt_tokens=pb.PromptAltTokens(
                tokens=dense(pb.DTYPE_INT64, i64(5, 6), 2, 1),
                logprobs=dense(pb.DTYPE_FLOAT32, f32(-0.5, -1.5), 2, 1),
            ),
        ),
        "full": pb.SampleResponse(
            sequences=[
                sequence(
                    5,
                    6,
                    stop_reason=pb.STOP_REASON_LENGTH,
                    logprobs=f32(-0.5, -1.0),
                    topk_sampled_logprobs=topk(row, none),
                )
            ],
            prompt_logprobs=f32(math.nan, -2.0, -3.0),
            topk_prompt_logprobs=topk(none, row, row),
            prompt_cache_hit_tokens=2**31 - 1,
            target_prompt_logprobs=dense(pb.DTYPE_FLOAT32, f32(-0.5, -1.5), 2, 1),
            prompt_alt_tokens=alt_tokens(),
        ),
        "appendix_b3": pb.SampleResponse(
            sequences=[
                sequence(
                    5,
                    6,
                    stop_reason=pb.STOP_REASON_LENGTH,
                    logprobs=f32(-0.5, -1.0),
                    topk_sampled_logprobs=topk([(5, -0.5)], [FILLER]),
                )
            ],
            prompt_logprobs=f32(math.nan, -2.0),
            prompt_cache_hit_tokens=3,
        ),
    }


def alt_tokens() -> pb.PromptAltTokens:
    return pb.PromptAltTokens(
        tokens=dense(pb.DTYPE_INT32, i32(5, 6, 7, 8), 2, 2),
        logprobs=dense(pb.DTYPE_FLOAT32, f32(-0.5, -1.5, -2.5, -3.5), 2, 2),
    )


def batched(dtype: int, *datums: bytes, trailing: tuple[int, ...] = ()) -> pb.BatchedTensor:
    """The datums' bytes one after the other, with byte offsets around them."""
    offsets = [sum(len(datum) for datum in datums[:i]) for i in range(len(datums) + 1)]
    return pb.BatchedTensor(
        data=b"".join(datums), offsets=i64(*offsets), dtype=dtype, trailing_shape=trailing
    )


def record(num_datums: int, type_tag: str = "", **fields: pb.BatchedTensor) -> pb.ArrayRecord:
    return pb.ArrayRecord(num_datums=num_datums, type_tag=type_tag, fields=fields)


def forward_backward_outputs() -> dict[str, pb.ForwardBackwardOutput]:
    output = pb.ForwardBackwardOutput
    logprobs = batched(pb.DTYPE_FLOAT32, f32(-1), f32(-2, -3))
    wide = batched(pb.DTYPE_FLOAT32, f32(1, 2, 3, 4, 5, 6), trailing=(2,))
    return {
        "empty": output(),
        "no_outputs": output(loss_fn_output_type="a:B", metrics={"loss:sum": 0.0}),
        "minimal": output(
            loss_fn_output_type="scalar", loss_fn_outputs=[record(2, logprobs=logprobs)]
        ),
        "no_type": output(loss_fn_outputs=[record(2, logprobs=logprobs)]),
        "type_with_colons": output(
            loss_fn_output_type="a.b:C:D", loss_fn_outputs=[record(2, logprobs=logprobs)]
        ),
        "int64": output(
            loss_fn_outputs=[record(1, x=batched(pb.DTYPE_INT64, i64(-(2**63), 2**63 - 1)))]
        ),
        "int32": output(
            loss_fn_outputs=[record(2, x=batched(pb.DTYPE_INT32, i32(-(2**31)), i32(1, 2)))]
        ),
        "bfloat16": output(
            loss_fn_outputs=[
                record(2, x=batched(pb.DTYPE_BFLOAT16, bf16(1.0, -2.5), bf16(math.inf, math.nan)))
            ]
        ),
        "trailing_shape": output(loss_fn_outputs=[record(1, x=wide)]),
        "trailing_shape_3d": output(
            loss_fn_outputs=[
                record(
                    2, x=batched(pb.DTYPE_INT32, i32(*range(6)), i32(*range(12)), trailing=(2, 3))
                )
            ]
        ),
        "empty_datum": output(
            loss_fn_outputs=[record(3, x=batched(pb.DTYPE_FLOAT32, f32(1), b"", f32(2)))]
        ),
        "no_fields": output(loss_fn_outputs=[record(2)], metrics={"loss:sum": 1.0}),
        # Servers that predate `num_datums` leave it out; the first field then counts.
        "no_num_datums": output(loss_fn_outputs=[record(0, logprobs=logprobs)]),
        "several_fields": output(
            loss_fn_outputs=[
                record(
                    2,
                    logprobs=logprobs,
                    elementwise_loss=batched(pb.DTYPE_FLOAT32, f32(1), f32(2, 3)),
                    tokens=batched(pb.DTYPE_INT64, i64(1), i64(2, 3)),
                )
            ]
        ),
        # Records concatenate, and each one has its own element type and shape.
        "several_records": output(
            loss_fn_output_type="tinker:ArrayRecord",
            loss_fn_outputs=[
                record(2, "first", logprobs=logprobs),
                record(1, "second", logprobs=wide),
                record(1, "third", logprobs=batched(pb.DTYPE_BFLOAT16, bf16(0.5, -0.5))),
            ],
            metrics={"loss:sum": 1.5},
        ),
        "metrics": output(
            metrics={
                "loss:sum": -1.5,
                "a:mean": math.nan,
                "b:max": math.inf,
                "c:min": -math.inf,
                "tokens:sum": 1e300,
            }
        ),
        "appendix_b4": output(
            loss_fn_output_type="mod:TorchLossReturn",
            loss_fn_outputs=[record(2, logprobs=logprobs)],
            metrics={"loss:sum": 1.5},
        ),
    }
