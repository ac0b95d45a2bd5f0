use crate::{CheckpointKind, Cursor, InvalidInput, OptimizerConfig, TinkerPath, UserMetadata};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The shortest time to live of a checkpoint: one hour.
pub const TTL_MIN_SECONDS: u64 = 3_600;
/// The longest time to live of a checkpoint: ten years.
pub const TTL_MAX_SECONDS: u64 = 10 * 365 * 24 * 3_600;

/// Checks a time to live.
///
/// # Errors
/// If it is shorter than an hour or longer than ten years.
pub fn check_ttl(ttl_seconds: u64) -> Result<(), InvalidInput> {
    if (TTL_MIN_SECONDS..=TTL_MAX_SECONDS).contains(&ttl_seconds) {
        return Ok(());
    }
    Err(InvalidInput::new(
        "ttl_seconds",
        ttl_seconds,
        format!("{TTL_MIN_SECONDS} (an hour) to {TTL_MAX_SECONDS} (ten years)"),
    ))
}

/// A saved checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its id within the run, `{kind}/{name}`.
    pub checkpoint_id: String,
    /// What it can be used for.
    pub checkpoint_type: CheckpointKind,
    /// When it was saved.
    #[serde(with = "crate::timestamp")]
    pub time: Timestamp,
    /// Its path.
    pub tinker_path: TinkerPath,
    /// Its size.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Whether everybody may read it.
    #[serde(default)]
    pub public: bool,
    /// Its labels.
    #[serde(default)]
    pub user_metadata: Option<UserMetadata>,
    /// When it is deleted; `None` means never.
    #[serde(default, with = "crate::timestamp::option")]
    pub expires_at: Option<Timestamp>,
}

/// A page of checkpoints, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointPage {
    /// The checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// Where the page lies; `None` if these are all.
    #[serde(default)]
    pub cursor: Option<Cursor>,
}

/// What is known of a checkpoint's weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightsInfo {
    /// The model they belong to.
    pub base_model: String,
    /// Whether they are an adapter.
    pub is_lora: bool,
    /// The optimizer that trained them.
    #[serde(default)]
    pub optimizer_config: OptimizerConfig,
    /// The adapter's rank.
    #[serde(default)]
    pub lora_rank: Option<u32>,
    /// Whether the unembedding has an adapter; `None` reads as true.
    #[serde(default)]
    pub train_unembed: Option<bool>,
    /// Whether the MLP layers have adapters; `None` reads as true.
    #[serde(default)]
    pub train_mlp: Option<bool>,
    /// Whether the attention layers have adapters; `None` reads as true.
    #[serde(default)]
    pub train_attn: Option<bool>,
}

/// Where the files of an external checkpoint can be downloaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExternalWeightsUrls {
    /// Signed links by relative path. They need no credential.
    pub urls: BTreeMap<String, String>,
    /// When the links stop working.
    #[serde(with = "crate::timestamp")]
    pub expires: Timestamp,
}

/// A checkpoint that was saved to be downloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalSave {
    /// Its path.
    pub path: TinkerPath,
    /// Its size.
    #[serde(default)]
    pub size_bytes: Option<u64>,
}

/// Where a checkpoint was copied to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedWeights {
    /// The copy's path.
    pub tinker_path: TinkerPath,
}

/// Where an adapter that was made elsewhere can be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedWeights {
    /// The checkpoint to train on.
    pub tinker_path: TinkerPath,
    /// The checkpoint to sample from.
    pub sampler_path: TinkerPath,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_an_hour_to_ten_years() {
        for (ttl, ok) in [
            (3_599, false),
            (3_600, true),
            (315_360_000, true),
            (315_360_001, false),
        ] {
            assert_eq!(check_ttl(ttl).is_ok(), ok, "{ttl}");
        }
    }
}
