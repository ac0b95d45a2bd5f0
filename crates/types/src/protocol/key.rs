//! The names of the tensors that the built-in losses read.

/// The token to predict at each position (`int64`).
pub const TARGET_TOKENS: &str = "target_tokens";
/// How much each position counts (`float32`).
pub const WEIGHTS: &str = "weights";
/// The sampler's log-probability of each target (`float32`).
pub const LOGPROBS: &str = "logprobs";
/// The advantage of each position (`float32`).
pub const ADVANTAGES: &str = "advantages";
/// Per-position lower bound of the probability ratio (`float32`).
pub const CLIP_LOW_THRESHOLD: &str = "clip_low_threshold";
/// Per-position upper bound of the probability ratio (`float32`).
pub const CLIP_HIGH_THRESHOLD: &str = "clip_high_threshold";
/// Which positions count in a sequence's ratio (`float32`).
pub const SEQUENCE_RATIO_MASK: &str = "sequence_ratio_mask";
