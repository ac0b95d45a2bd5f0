"""Every protobuf message of the protocol, as bytes and as plain JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zstandard
from google.protobuf.message import Message
from tinker import types
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.request_conv import forward_backward_request_to_proto

import proto_messages
import proto_requests
import proto_results
import proto_views
from output import write_bytes, write_json


def write(folder: Path) -> None:
    written: dict[str, bytes] = {}

    def add(name: str, message: Message, sdk: Any = None) -> bytes:
        data = written[name] = encode(message)
        view = {"message": message.DESCRIPTOR.full_name, "fields": proto_views.fields(message)}
        if sdk is not None:
            view["sdk"] = sdk(data)
        write_bytes(folder / f"{name}.bin", data)
        write_json(folder / f"{name}.json", view)
        return data

    for variant, (request, forward_only) in proto_requests.cases().items():
        view = proto_views.forward_backward_request(request, forward_only)
        message = request_message(request, forward_only)
        add(f"ForwardBackwardRequest.{variant}", message, lambda _: view)
    for variant, response in proto_results.sample_responses().items():
        add(f"SampleResponse.{variant}", response, proto_views.sample_response)
    for variant, output in proto_results.forward_backward_outputs().items():
        add(f"ForwardBackwardOutput.{variant}", output, proto_views.forward_backward_output)
    for name, message in proto_messages.messages().items():
        is_dmel = isinstance(message, pb.DmelChunk) and message.dmel
        add(name, message, (lambda _: _dmel(message.dmel)) if is_dmel else None)

    # What the SDK does to a body when the server asks for compression.
    body = written["ForwardBackwardRequest.several_datums"]
    compressed = zstandard.ZstdCompressor().compress(body)
    write_bytes(folder / "ForwardBackwardRequest.several_datums.bin.zst", compressed)
    _check(written)


def request_message(
    request: types.ForwardBackwardRequest, forward_only: bool
) -> pb.ForwardBackwardRequest:
    """The two steps of the SDK's `training.forward_backward` resource."""
    message = forward_backward_request_to_proto(request)
    message.forward_only = forward_only
    return message


def encode(message: Message) -> bytes:
    """Ascending fields and sorted map keys; the SDK itself leaves map order open."""
    data = message.SerializeToString(deterministic=True)
    again = type(message).FromString(data).SerializeToString(deterministic=True)
    assert again == data, f"{message.DESCRIPTOR.name} does not survive a round trip"
    return data


def _dmel(data: bytes) -> dict[str, Any]:
    return {"length": types.DmelChunk(dmel=data).length}


def _check(written: dict[str, bytes]) -> None:
    """The bytes of the specification's appendix B, and at least one vector per message."""
    expected = {
        **{f"ForwardBackwardRequest.{k}": v for k, v in proto_requests.APPENDIX_B.items()},
        "SampleResponse.appendix_b3": proto_results.APPENDIX_B["SampleResponse"],
        "ForwardBackwardOutput.appendix_b4": proto_results.APPENDIX_B["ForwardBackwardOutput"],
    }
    for name, text in expected.items():
        assert written[name].hex() == text, f"{name} is not what the specification says"
    missing = set(pb.DESCRIPTOR.message_types_by_name) - {name.split(".")[0] for name in written}
    assert not missing, f"no vector for {missing}"
