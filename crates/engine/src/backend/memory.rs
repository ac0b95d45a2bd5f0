//! How much memory something takes, from the shapes of what it holds.

use tinkrs_backend::Need;
use tinkrs_types::LoraConfig;

use crate::kernels::LANES;
use crate::model::attention::Attention;
use crate::model::feed_forward::FeedForward;
use crate::model::numerics::Plan;
use crate::model::tensor_table::TensorTable;
use crate::optim::MOST_KEPT;
use crate::train::batch;
use crate::{KvCache, Model, ModelConfig, TrainingRun};

/// Logits that the head holds at once: 16 MiB.
const LOGITS: usize = 16 << 20;

pub(super) fn bytes(model: &Model, need: &Need) -> u64 {
    let config = &model.config;
    let bytes = match need {
        Need::Weights => return weight_bytes(config, &model.table, &model.plan),
        Need::Run { lora } => {
            // Weights, sums of gradients, and the optimizer; then the weights packed for the kernels.
            (2 + MOST_KEPT) * parameters(model, lora) * FLOAT + packed_bytes(model, lora)
        }
        Need::Copies { lora } => {
            // Taking a run up copies its gradients and optimizer out of the state that was read; a step
            // without gradients makes some, and packs the new weights beside the old ones.
            let weights = parameters(model, lora) * FLOAT;
            ((1 + MOST_KEPT) * weights).max(weights + packed_bytes(model, lora))
        }
        // The weights are shared until the run's next step, which copies them.
        Need::State { lora } => (2 + MOST_KEPT) * parameters(model, lora) * FLOAT,
        // The sums of gradients are the pass's own until it is done.
        Need::Pass { lora } => parameters(model, lora) * FLOAT,
        Need::Slice {
            lora,
            tokens,
            longest,
            backward,
        } => {
            let rows = batch::group_tokens(model, *tokens).max(*longest);
            if *backward {
                let kept = model.kept_bytes_per_token() + inner_bytes(model, lora);
                rows * (kept + scratch_bytes(config)) + LOGITS
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

/// The packed weights of a model, padded, and the vectors beside them.
pub(super) fn weight_bytes(config: &ModelConfig, table: &TensorTable, plan: &Plan) -> u64 {
    // The rotary angles of all positions, once they are used.
    let rope = config.max_context.next_power_of_two() * config.head_dim * FLOAT;
    (plan.weight_bytes(table) + rope) as u64
}

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
    let parts = Attention::buffer_numbers(config) + FeedForward::buffer_numbers(config);
    (5 * config.hidden + parts) * FLOAT
}

/// Gives what was freed back to the system. The allocator of glibc keeps it in the heap of each thread:
/// the memory of sixty runs that had left was still two thirds of what they had taken.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn give_back() {
    #[expect(
        unsafe_code,
        reason = "the call may come from any thread at any time, and its argument is only a size"
    )]
    // SAFETY: as the reason says.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators give it back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn give_back() {}
