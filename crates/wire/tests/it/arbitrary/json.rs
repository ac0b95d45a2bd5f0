//! Requests that travel as JSON.

use super::{finite, finite_f32, prompt, tensor, text};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use tinkrs_types::sampling::Stop;
use tinkrs_types::training::{DimuonParams, OpenObject, OptimizerConfig, OptimizerParams};
use tinkrs_types::{AdamParams, LoraConfig, SamplingParams};
use tinkrs_wire::op::asample::SampleRequest;
use tinkrs_wire::op::create_model::CreateModelRequest;
use tinkrs_wire::op::optim_step::OptimStepRequest;

fn sampling_params() -> impl Strategy<Value = SamplingParams> {
    let stop = prop_oneof![
        Just(Stop::Never),
        text().prop_map(Stop::Text),
        vec(text(), 1..3).prop_map(Stop::AnyText),
        vec(any::<u32>(), 1..3).prop_map(Stop::AnyToken),
    ];
    let numbers = (any::<Option<u32>>(), any::<Option<i64>>(), any::<i32>());
    let parts = (numbers, option::of(stop), finite(), finite());
    parts.prop_map(
        |((max_tokens, seed, top_k), stop, temperature, top_p)| SamplingParams {
            max_tokens,
            seed,
            stop,
            temperature,
            top_k,
            top_p,
        },
    )
}

pub(crate) fn sample_request() -> impl Strategy<Value = SampleRequest> {
    let names = (option::of(text()), option::of(text()), option::of(text()));
    let counts = any::<(u32, u32, u32, u32)>();
    let options = any::<(Option<u64>, Option<bool>, Option<u32>, Option<bool>)>();
    let targets = option::of(tensor(finite_f32()));
    let parts = (prompt(), sampling_params(), names, counts, options, targets);
    parts.prop_map(
        |(prompt, sampling_params, names, counts, options, targets)| SampleRequest {
            num_samples: counts.0,
            prompt,
            sampling_params,
            sampling_session_id: names.0.map(Into::into),
            seq_id: options.0,
            base_model: names.1,
            model_path: names.2,
            prompt_logprobs: options.1,
            topk_prompt_logprobs: counts.1,
            topk_sample_logprobs: counts.2,
            target_prompt_logprobs: targets,
            prompt_alt_tokens_k: counts.3,
            prompt_logprobs_last_n: options.2,
            record_stability_info: options.3,
        },
    )
}

/// JSON that users write, a few levels deep.
fn free_form() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        finite().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(text(), inner, 0..4).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

fn members() -> impl Strategy<Value = Map<String, Value>> {
    let members = btree_map("m_[a-z]{0,4}", free_form(), 0..4);
    members.prop_map(|members: BTreeMap<_, _>| members.into_iter().collect())
}

pub(crate) fn optim_step_request() -> impl Strategy<Value = OptimStepRequest> {
    let adam = (finite(), finite(), finite(), finite(), finite(), finite());
    let params = prop_oneof![
        adam.prop_map(
            |(learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm)| {
                OptimizerParams::Adam(AdamParams {
                    learning_rate,
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                    grad_clip_norm,
                })
            }
        ),
        (finite(), finite(), finite()).prop_map(|(learning_rate, grad_clip_norm, beta1)| {
            OptimizerParams::Dimuon(DimuonParams {
                learning_rate,
                grad_clip_norm,
                beta1,
            })
        }),
        ("other_[a-z]{0,4}", members())
            .prop_map(|(kind, members)| OptimizerParams::Other(OpenObject { kind, members })),
    ];
    (text(), any::<Option<i64>>(), params).prop_map(|(id, seq_id, params)| OptimStepRequest {
        model_id: id.into(),
        seq_id,
        params,
    })
}

pub(crate) fn create_model_request() -> impl Strategy<Value = CreateModelRequest> {
    let lora = any::<(u32, Option<i64>, bool, bool, bool)>();
    let lora = lora.prop_map(
        |(rank, seed, train_unembed, train_mlp, train_attn)| LoraConfig {
            rank,
            seed,
            train_unembed,
            train_mlp,
            train_attn,
        },
    );
    let optimizer = prop_oneof![
        Just(OptimizerConfig::AdamW),
        Just(OptimizerConfig::Dimuon),
        ("other_[a-z]{0,4}", members())
            .prop_map(|(kind, members)| OptimizerConfig::Other(OpenObject { kind, members })),
    ];
    let metadata = option::of(members());
    let parts = (
        text(),
        any::<u64>(),
        text(),
        metadata,
        option::of(lora),
        optimizer,
    );
    parts.prop_map(|parts| CreateModelRequest {
        session_id: parts.0.into(),
        model_seq_id: parts.1,
        base_model: parts.2,
        user_metadata: parts.3,
        lora_config: parts.4,
        optimizer_config: parts.5,
    })
}
