//! Strategies for any value that our types can hold and the wire can carry.
//!
//! What the wire normalises is left out, and each place says so.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use tinkrs_types::input::{Chunk, Dmel, Image, ImageAssetPointer, ImageFormat};
use tinkrs_types::sampling::{PromptAltTokens, SampledSequence, StopReason, TopkLogprobs};
use tinkrs_types::tensor::{CsrIndices, TensorValues};
use tinkrs_types::training::{
    BatchedTensor, ClipBounds, LossConfigValue, OutputRecord, Provenance, ProvenanceSpan,
};
use tinkrs_types::{Datum, ForwardBackwardOutput, LossFn, ModelInput, SampleOutput, TensorData};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;

mod json;

pub(crate) use json::{create_model_request, optim_step_request, sample_request};

/// Any `float32`, with all NaNs, infinities, zeros and subnormal numbers.
pub(crate) fn any_f32() -> BoxedStrategy<f32> {
    prop_oneof![any::<u32>().prop_map(f32::from_bits), Just(f32::NAN)].boxed()
}

/// Any `float32` that JSON has a form for.
pub(crate) fn finite_f32() -> BoxedStrategy<f32> {
    any_f32()
        .prop_filter("JSON has no form for it", |number| number.is_finite())
        .boxed()
}

/// Any `float64`, likewise.
pub(crate) fn any_f64() -> impl Strategy<Value = f64> {
    any::<u64>().prop_map(f64::from_bits)
}

/// A number that JSON has a form for.
fn finite() -> impl Strategy<Value = f64> {
    any_f64().prop_filter("JSON has no form for it", |number| number.is_finite())
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,8}"
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    vec(0..=i32::MAX as u32, 0..6)
}

/// Any tensor. A scalar's empty shape is left out: protobuf has no form for it.
pub(crate) fn tensor(number: BoxedStrategy<f32>) -> impl Strategy<Value = TensorData> {
    let shape = vec(0..4_usize, 1..4);
    prop_oneof![
        values(0..8, number.clone()).prop_map(TensorData::without_shape),
        shape.prop_flat_map({
            let number = number.clone();
            move |shape| {
                let cells = shape.iter().product::<usize>();
                values(cells..cells + 1, number.clone()).prop_map(move |values| {
                    TensorData::with_shape(values, shape.clone()).expect("as many as cells")
                })
            }
        }),
        sparse(number),
    ]
}

fn values(
    count: std::ops::Range<usize>,
    number: BoxedStrategy<f32>,
) -> impl Strategy<Value = TensorValues> {
    prop_oneof![
        vec(number, count.clone()).prop_map(TensorValues::F32),
        vec(any::<i64>(), count).prop_map(TensorValues::I64),
    ]
}

fn sparse(number: BoxedStrategy<f32>) -> impl Strategy<Value = TensorData> {
    let rows = vec(vec(0..5_i64, 0..3), 0..4);
    rows.prop_flat_map(move |rows| {
        let col: Vec<i64> = rows.concat();
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.len() as i64;
            Some(*end)
        });
        let crow: Vec<i64> = std::iter::once(0).chain(ends).collect();
        let shape = [rows.len(), 5];
        values(col.len()..col.len() + 1, number.clone()).prop_map(move |values| {
            let (crow, col) = (crow.clone(), col.clone());
            TensorData::sparse(values, CsrIndices { crow, col }, shape).expect("they fit")
        })
    })
}

/// Any chunk that can be trained on.
fn chunk() -> impl Strategy<Value = Chunk> {
    let format = prop_oneof![Just(ImageFormat::Png), Just(ImageFormat::Jpeg)];
    let count = option::of(0..=i32::MAX as u32);
    let image = (vec(any::<u8>(), 0..6), format, count);
    let dmel = (0..8_u8, any::<bool>(), 0..128_u8, vec(any::<u8>(), 0..4));
    prop_oneof![
        tokens().prop_map(Chunk::Text),
        image.prop_map(|(data, format, expected_tokens)| {
            Chunk::Image(Image {
                data,
                format,
                expected_tokens,
            })
        }),
        dmel.prop_map(|(dtype, constant, length, payload)| {
            let marker: &[u8] = if constant { &[254] } else { &[] };
            let container = [marker, &[dtype, 1, length], &payload].concat();
            Chunk::Dmel(Dmel::new(container).expect("a header of one dimension"))
        }),
    ]
}

/// Any input that can be trained on.
pub(crate) fn model_input() -> impl Strategy<Value = ModelInput> {
    vec(chunk(), 0..4).prop_map(ModelInput::from_chunks)
}

/// Any input that can be sampled from.
pub(crate) fn prompt() -> impl Strategy<Value = ModelInput> {
    let pointer = (text(), any::<bool>(), option::of(any::<u32>()));
    let pointer = pointer.prop_map(|(location, is_png, expected_tokens)| {
        Chunk::ImageAssetPointer(ImageAssetPointer {
            location,
            format: if is_png {
                ImageFormat::Png
            } else {
                ImageFormat::Jpeg
            },
            expected_tokens,
        })
    });
    vec(prop_oneof![chunk(), pointer], 0..4).prop_map(ModelInput::from_chunks)
}

/// A datum of a custom loss, whose tensors may have any names, types and shapes; or one of a
/// built-in loss with provenance.
fn datum() -> impl Strategy<Value = Datum> {
    let free = (
        model_input(),
        btree_map("x_[a-zé]{0,4}", tensor(any_f32()), 0..4),
    );
    let free = free.prop_map(|(input, tensors)| Datum::new(input, tensors).expect("own names"));
    let policy = (1..5_usize, any::<u32>(), any::<bool>()).prop_map(|(length, bits, spans)| {
        let (targets, numbers) = (vec![7_i64; length], vec![f32::from_bits(bits); length]);
        let tokens = vec![bits >> 1; length];
        let datum = Datum::reinforcement(tokens, targets, numbers.clone(), numbers);
        let datum = datum.expect("equal lengths");
        if !spans {
            return datum;
        }
        let all = |source: fn(_, _, _) -> Result<ProvenanceSpan, _>| {
            vec![source("q".into(), u64::from(bits), length as u64).expect("a sequence")]
        };
        let provenance = Provenance {
            model_input: all(ProvenanceSpan::prompt),
            loss_fn_inputs: all(ProvenanceSpan::sampled),
        };
        datum.with_provenance(provenance).expect("both are covered")
    });
    prop_oneof![free, policy]
}

fn loss_fn() -> impl Strategy<Value = LossFn> {
    let number = || option::of(any_f64());
    let clip = || (number(), number()).prop_map(|(low, high)| ClipBounds { low, high });
    let option = prop_oneof![
        any_f64().prop_map(LossConfigValue::Number),
        text().prop_map(LossConfigValue::Text),
    ];
    prop_oneof![
        Just(LossFn::CrossEntropy),
        Just(LossFn::ImportanceSampling),
        clip().prop_map(LossFn::Ppo),
        clip().prop_map(LossFn::Cispo),
        clip().prop_map(LossFn::Gspo),
        number().prop_map(|beta| LossFn::Dro { beta }),
        number().prop_map(|kl_coeff| LossFn::StableReinforce { kl_coeff }),
        text().prop_map(|id| LossFn::Custom { loss_id: id.into() }),
        ("other_[a-z]{0,4}", btree_map(text(), option, 0..4))
            .prop_map(|(name, config)| LossFn::Other { name, config }),
    ]
}

pub(crate) fn forward_backward_request() -> impl Strategy<Value = ForwardBackwardRequest> {
    let parts = (
        text(),
        any::<i32>(),
        vec(datum(), 0..4),
        loss_fn(),
        any::<bool>(),
    );
    parts.prop_map(
        |(id, seq_id, data, loss_fn, forward_only)| ForwardBackwardRequest {
            model_id: id.into(),
            seq_id,
            data,
            loss_fn,
            forward_only,
        },
    )
}

fn batched(datums: usize) -> impl Strategy<Value = BatchedTensor> {
    let lengths = vec(0..4_usize, datums);
    (lengths, vec(1..3_usize, 0..3)).prop_flat_map(|(lengths, trailing)| {
        let row: usize = trailing.iter().product();
        let offsets: Vec<usize> = std::iter::once(0)
            .chain(lengths.iter().scan(0, |end, length| {
                *end += length * row;
                Some(*end)
            }))
            .collect();
        let end = offsets[offsets.len() - 1];
        values(end..end + 1, any_f32()).prop_map(move |values| {
            BatchedTensor::new(values, offsets.clone(), trailing.clone()).expect("whole rows")
        })
    })
}

/// Any output. Its type has no module, which decoding cuts off, and is not empty, for which
/// decoding may put a default.
pub(crate) fn forward_backward_output() -> impl Strategy<Value = ForwardBackwardOutput> {
    let record = (1..4_usize).prop_flat_map(|datums| {
        btree_map("[a-z]{0,4}", batched(datums), 0..3)
            .prop_map(move |fields| OutputRecord::new(datums, fields).expect("all of them"))
    });
    let parts = (
        "[A-Za-z]{1,8}",
        vec(record, 0..3),
        btree_map(text(), any_f64(), 0..4),
    );
    parts.prop_map(|(output_type, records, metrics)| {
        ForwardBackwardOutput::new(output_type, records, metrics)
    })
}

/// A table of at least one row and column: one without is read as none.
fn topk(rows: usize) -> impl Strategy<Value = TopkLogprobs> {
    (1..4_usize).prop_flat_map(move |k| {
        let cells = (vec(0..=i32::MAX as u32, rows * k), vec(any_f32(), rows * k));
        cells.prop_map(move |(ids, logprobs)| TopkLogprobs::new(k, ids, logprobs).expect("equal"))
    })
}

/// Any sequence. Log-probabilities of no tokens are left out: they are read as none.
fn sequence() -> impl Strategy<Value = SampledSequence> {
    tokens().prop_flat_map(|tokens| {
        let count = tokens.len();
        let logprobs = option::of(vec(any_f32(), count));
        let parts = (logprobs, option::of(topk(count.max(1))), any::<bool>());
        parts.prop_map(move |(logprobs, topk, stopped)| {
            let reason = if stopped {
                StopReason::Stop
            } else {
                StopReason::Length
            };
            let mut sequence = SampledSequence::new(tokens.clone(), reason);
            sequence.logprobs = logprobs.filter(|logprobs| !logprobs.is_empty());
            sequence.topk_logprobs = topk;
            sequence
        })
    })
}

pub(crate) fn sample_output() -> impl Strategy<Value = SampleOutput> {
    let draws = (tensor(any_f32()), tensor(any_f32()));
    let draws = draws.prop_map(|(tokens, logprobs)| PromptAltTokens::new(tokens, logprobs));
    let parts = (
        vec(sequence(), 0..4),
        option::of(vec(any_f32(), 1..6)),
        option::of((1..4_usize).prop_flat_map(topk)),
        0..=i32::MAX as u32,
        option::of(tensor(any_f32())),
        option::of(draws),
    );
    parts.prop_map(|(sequences, prompt, topk, cached, targets, draws)| {
        let mut output = SampleOutput::default();
        output.sequences = sequences;
        output.prompt_logprobs = prompt;
        output.topk_prompt_logprobs = topk;
        output.prompt_cache_hit_tokens = cached;
        output.target_prompt_logprobs = targets;
        output.prompt_alt_tokens = draws;
        output
    })
}
