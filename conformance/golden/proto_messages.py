"""Messages on their own: the parts of requests and results, and the unused ones."""

from __future__ import annotations

from google.protobuf.message import Message
from tinker.proto import tinker_public_pb2 as pb

from proto_results import alt_tokens, batched, csr, dense, f32, i32, i64, record, sequence, topk

PNG = bytes.fromhex("89504e47")
# The two headers of the specification's appendix B.5, each followed by a payload.
DMEL = bytes.fromhex("0302880150") + b"payload"
DMEL_CONSTANT = bytes.fromhex("fe000105") + b"\x07"


def messages() -> dict[str, Message]:
    """Vectors by name, `<Message>.<variant>`."""
    return _tensors() | _chunks() | _provenance() | _loss_config() | _sampling_params()


def _tensors() -> dict[str, Message]:
    return {
        "SampledSequence.minimal": sequence(),
        "SampledSequence.full": sequence(
            5,
            stop_reason=pb.STOP_REASON_LENGTH,
            logprobs=f32(-0.5),
            topk_sampled_logprobs=topk([(5, -0.5)]),
        ),
        "TopkLogprobs.minimal": pb.TopkLogprobs(),
        "TopkLogprobs.full": topk([(5, -0.5), (9, -2.0)], [(0, -99999.0), (0, -99999.0)]),
        "PromptAltTokens.minimal": pb.PromptAltTokens(),
        "PromptAltTokens.full": alt_tokens(),
        "SparseCsr.minimal": pb.SparseCsr(),
        "SparseCsr.full": csr(pb.DTYPE_INT64, i64(7, -1)).sparse_csr,
        "Tensor.minimal": pb.Tensor(),
        "Tensor.dense_float": dense(pb.DTYPE_FLOAT32, f32(1.5, -2.5), 2),
        "Tensor.dense_int": dense(pb.DTYPE_INT64, i64(2**63 - 1, -(2**63)), 1, 2),
        # An empty payload still names the dense arm.
        "Tensor.dense_empty": dense(pb.DTYPE_FLOAT32, b"", 0),
        "Tensor.csr": csr(pb.DTYPE_FLOAT32, f32(1.0, 2.0)),
        "Tensor.csr_empty": pb.Tensor(sparse_csr=pb.SparseCsr(), dtype=pb.DTYPE_INT64),
        "Tensor.large_shape": pb.Tensor(dtype=pb.DTYPE_BFLOAT16, shape=[0, 127, 128, 2**40, -1]),
        "BatchedTensor.minimal": pb.BatchedTensor(),
        "BatchedTensor.full": batched(pb.DTYPE_INT32, i32(1, 2), i32(3, 4, 5, 6), trailing=(2,)),
        "ArrayRecord.minimal": pb.ArrayRecord(),
        "ArrayRecord.full": record(
            2,
            "mod:TorchLossReturn",
            logprobs=batched(pb.DTYPE_FLOAT32, f32(-1), f32(-2)),
            elementwise_loss=batched(pb.DTYPE_FLOAT32, f32(1), f32(2)),
        ),
    }


def _chunks() -> dict[str, Message]:
    image = pb.ImageChunk(data=PNG, format="png")
    full = pb.ImageChunk(
        data=PNG,
        format="jpeg",
        expected_tokens=64,
        override_dimensions=pb.ImageDimensions(width=640, height=480),
    )
    return {
        "EncodedTextChunk.minimal": pb.EncodedTextChunk(),
        "EncodedTextChunk.full": pb.EncodedTextChunk(tokens=i32(0, -1, 2**31 - 1)),
        "ImageChunk.minimal": image,
        "ImageChunk.zero_tokens": pb.ImageChunk(data=PNG, format="png", expected_tokens=0),
        "ImageChunk.full": full,
        "ImageDimensions.minimal": pb.ImageDimensions(),
        "ImageDimensions.full": pb.ImageDimensions(width=2**32 - 1, height=1),
        "DmelChunk.minimal": pb.DmelChunk(),
        "DmelChunk.shape": pb.DmelChunk(dmel=DMEL),
        "DmelChunk.constant": pb.DmelChunk(dmel=DMEL_CONSTANT),
        "Chunk.minimal": pb.Chunk(),
        "Chunk.encoded_text": pb.Chunk(encoded_text=pb.EncodedTextChunk(tokens=i32(1, 2))),
        # An empty message still names its arm.
        "Chunk.encoded_text_empty": pb.Chunk(encoded_text=pb.EncodedTextChunk()),
        "Chunk.image": pb.Chunk(image=full),
        "Chunk.dmel": pb.Chunk(dmel=pb.DmelChunk(dmel=DMEL)),
    }


def _provenance() -> dict[str, Message]:
    prompt = pb.PromptProvenanceSpan(sequence_id="sequence-0", offset=3, length=2**40)
    sampled = pb.SampledProvenanceSpan(sequence_id="sequence-0", offset=3, length=2**40)
    return {
        "PromptProvenanceSpan.minimal": pb.PromptProvenanceSpan(),
        "PromptProvenanceSpan.full": prompt,
        "SampledProvenanceSpan.minimal": pb.SampledProvenanceSpan(),
        "SampledProvenanceSpan.full": sampled,
        "ProvenanceSpan.minimal": pb.ProvenanceSpan(),
        "ProvenanceSpan.prompt_tokens": pb.ProvenanceSpan(prompt_tokens=prompt),
        "ProvenanceSpan.sampled_tokens": pb.ProvenanceSpan(sampled_tokens=sampled),
        "Datum.minimal": pb.Datum(),
        "Datum.full": pb.Datum(
            model_input=[pb.Chunk(encoded_text=pb.EncodedTextChunk(tokens=i32(1, 2)))],
            loss_fn_inputs={
                "weights": dense(pb.DTYPE_FLOAT32, f32(0, 1), 2),
                "target_tokens": dense(pb.DTYPE_INT64, i64(2, 3), 2),
            },
            model_input_spans=[pb.ProvenanceSpan(prompt_tokens=prompt)],
            loss_fn_input_spans=[pb.ProvenanceSpan(sampled_tokens=sampled)],
        ),
    }


def _loss_config() -> dict[str, Message]:
    value = pb.LossConfigValue
    return {
        "LossConfigValue.minimal": value(),
        "LossConfigValue.number": value(number=0.9),
        "LossConfigValue.number_zero": value(number=0.0),
        "LossConfigValue.number_nan": value(number=float("nan")),
        "LossConfigValue.text": value(text="loss-1"),
        "LossConfigValue.text_empty": value(text=""),
    }


def _sampling_params() -> dict[str, Message]:
    params = pb.SamplingParams
    strings = pb.StopStrings(values=["</s>", "", "é"])
    tokens = pb.StopTokens(values=[0, 151645, -1])
    return {
        "StopStrings.minimal": pb.StopStrings(),
        "StopStrings.full": strings,
        "StopTokens.minimal": pb.StopTokens(),
        "StopTokens.full": tokens,
        "SamplingParams.minimal": params(),
        "SamplingParams.zeros": params(max_tokens=0, seed=0, temperature=0, top_k=0, top_p=0),
        "SamplingParams.stop_strings": params(max_tokens=8, stop_strs=strings),
        "SamplingParams.stop_strings_empty": params(stop_strs=pb.StopStrings()),
        "SamplingParams.stop_tokens": params(max_tokens=8, stop_tokens=tokens),
        "SamplingParams.stop_tokens_empty": params(stop_tokens=pb.StopTokens()),
        "SamplingParams.full": params(
            max_tokens=-1,
            seed=2**64 - 1,
            temperature=0.7,
            top_k=-1,
            top_p=0.95,
            stop_strs=strings,
        ),
    }
