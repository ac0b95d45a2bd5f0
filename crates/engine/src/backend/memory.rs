//! How much memory something takes, from the shapes of what it holds.

use tinkrs_backend::Need;
use tinkrs_types::LoraConfig;

use crate::kernels::LANES;
use crate::train::batch;
use crate::{KvCache, Model, ModelConfig, TrainingRun};

/// Logits that the head holds at once: 16 MiB.
const LOGITS: usize = 16 << 20;

pub(super) fn bytes(model: &Model, need: &Need) -> u64 {
    let config = &model.config;
    let bytes = match need {
        Need::Run { lora } => {
            // Weights, sums of gradients, and two moments; then the weights packed for the kernels.
            4 * parameters(model, lora) * FLOAT + packed_bytes(model, lora)
        }
        Need::Pass {
            lora,
            tokens,
            longest,
            backward,
        } => {
            let rows = batch::group_tokens(model, *tokens).max(*longest);
            if *backward {
                // The sums of gradients are the pass's own until it is done.
                let sums = parameters(model, lora) * FLOAT;
                let kept = model.kept_bytes_per_token() + inner_bytes(model, lora);
                sums + rows * (kept + scratch_bytes(config)) + LOGITS
            } else {
                // Only one block's activations exist at a time.
                let kept = model.kept_bytes_per_token() + inner_bytes(model, lora);
                rows * (kept / config.layers + scratch_bytes(config)) + LOGITS
            }
        }
        Need::Adapter { lora } => packed_bytes(model, lora),
        Need::Sequence { tokens } => KvCache::bytes_for(model, *tokens),
    };
    bytes as u64
}

const FLOAT: usize = size_of::<f32>();

/// Counts the weights of an adapter.
fn parameters(model: &Model, lora: &LoraConfig) -> usize {
    let shapes = TrainingRun::lora_shapes(model, lora);
    shapes
        .iter()
        .map(|shape| shape.iter().product::<usize>())
        .sum()
}

/// The weights of an adapter in the four forms that passes read, padded.
fn packed_bytes(model: &Model, lora: &LoraConfig) -> usize {
    let shapes = TrainingRun::lora_shapes(model, lora);
    let padded = shapes.iter().map(|shape| {
        let sides = shape.iter().map(|side| side.next_multiple_of(LANES));
        sides.product::<usize>()
    });
    2 * padded.sum::<usize>() * FLOAT
}

/// What the adapters of all layers keep for a token: a number for each rank.
fn inner_bytes(model: &Model, lora: &LoraConfig) -> usize {
    let pairs = TrainingRun::lora_shapes(model, lora).len() / 2;
    pairs * (lora.rank as usize).next_multiple_of(LANES) * FLOAT
}

/// What a block uses for a token and forgets, in both directions, and the stream between the blocks.
fn scratch_bytes(config: &ModelConfig) -> usize {
    let (query, kv) = (config.query_width(), config.kv_width());
    let row = 5 * config.hidden + 2 * (query + 2 * kv) + query + 2 * config.ffn;
    row * FLOAT
}
