"""What a protobuf message says, as plain JSON.

`fields` shows a message as the schema has it: bytes in hex, enums by name, and null for
a field that has presence and is not set. The other functions show what the SDK makes of
a message, which is what its users see.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tinker import types
from tinker.proto.response_conv import (
    deserialize_forward_backward_output,
    deserialize_sample_response,
)


def fields(message: Message) -> dict[str, Any]:
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        item = field.message_type.fields_by_name["value"]
        return {key: _value(item, value[key]) for key in value}
    if field.is_repeated:
        return [_value(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(field, value)


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return fields(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return field.enum_type.values_by_number[value].name
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value.hex()
    return value


def sample_response(data: bytes) -> dict[str, Any]:
    response = deserialize_sample_response(data)
    draws = response.prompt_alt_tokens
    return {
        "sequences": [
            {
                "stop_reason": sequence.stop_reason,
                "tokens": sequence.tokens,
                "logprobs": sequence.logprobs,
                "topk_logprobs": sequence.topk_logprobs,
            }
            for sequence in response.sequences
        ],
        "prompt_logprobs": response.prompt_logprobs,
        "topk_prompt_logprobs": response.topk_prompt_logprobs,
        "target_prompt_logprobs": tensor(response.target_prompt_logprobs),
        "prompt_alt_tokens": draws
        and {"tokens": tensor(draws.tokens), "logprobs": tensor(draws.logprobs)},
        "prompt_cache_hit_tokens": response.prompt_cache_hit_tokens,
    }


def forward_backward_output(data: bytes) -> dict[str, Any]:
    output = deserialize_forward_backward_output(data)
    return {
        "loss_fn_output_type": output.loss_fn_output_type,
        "loss_fn_outputs": [
            {name: tensor(value) for name, value in datum.items()}
            for datum in output.loss_fn_outputs
        ],
        "metrics": output.metrics,
    }


def forward_backward_request(
    request: types.ForwardBackwardRequest, forward_only: bool
) -> dict[str, Any]:
    """What the user of the SDK asked for."""
    given = request.forward_backward_input
    return {
        "model_id": request.model_id,
        "seq_id": request.seq_id,
        "loss_fn": given.loss_fn,
        "loss_fn_config": given.loss_fn_config,
        "forward_only": forward_only,
        "data": [
            {
                "model_input": [
                    chunk.model_dump(mode="json") for chunk in datum.model_input.chunks
                ],
                "loss_fn_inputs": {
                    name: tensor(value) for name, value in datum.loss_fn_inputs.items()
                },
                "model_input_spans": _spans(datum.model_input_spans),
                "loss_fn_input_spans": _spans(datum.loss_fn_input_spans),
            }
            for datum in given.data
        ],
    }


def tensor(value: types.TensorData | None) -> dict[str, Any] | None:
    return value and {
        "data": value.data,
        "dtype": value.dtype,
        "shape": value.shape,
        "sparse_crow_indices": value.sparse_crow_indices,
        "sparse_col_indices": value.sparse_col_indices,
    }


def _spans(spans: types.ProvenanceSpans | None) -> list[dict[str, Any]] | None:
    if spans is None:
        return None
    return [
        {
            "kind": "sampled" if isinstance(span, types.SampledProvenanceSpan) else "prompt",
            "sequence_id": span.sequence_id,
            "offset": span.offset,
            "length": span.length,
        }
        for span in spans
    ]
