use crate::InvalidInput;
use serde::{Deserialize, Serialize};

/// Which low-rank adapter to train.
///
/// ```
/// use tinkrs_types::LoraConfig;
///
/// let config = LoraConfig { rank: 16, train_unembed: false, ..LoraConfig::default() };
/// assert!(config.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoraConfig {
    /// The rank of the adapter. The hosted service takes powers of two. Default 32.
    pub rank: u32,
    /// Seeds the initial weights; without one they are random.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seed: Option<i64>,
    /// Whether the unembedding gets an adapter. Default true.
    #[serde(default = "yes", deserialize_with = "null_is_yes")]
    pub train_unembed: bool,
    /// Whether the MLP layers get adapters. Default true.
    #[serde(default = "yes", deserialize_with = "null_is_yes")]
    pub train_mlp: bool,
    /// Whether the attention layers get adapters. Default true.
    #[serde(default = "yes", deserialize_with = "null_is_yes")]
    pub train_attn: bool,
}

impl LoraConfig {
    /// Makes a config of this rank with every module trained.
    pub fn new(rank: u32) -> Self {
        Self {
            rank,
            ..Self::default()
        }
    }

    /// Checks what every server requires.
    ///
    /// # Errors
    /// If the rank is 0 or no module is trained.
    pub fn check(&self) -> Result<(), InvalidInput> {
        if self.rank == 0 {
            return Err(InvalidInput::new(
                "lora_config.rank",
                0,
                "a positive number",
            ));
        }
        if !(self.train_unembed || self.train_mlp || self.train_attn) {
            return Err(InvalidInput::new(
                "lora_config",
                "nothing to train",
                "at least one of train_unembed, train_mlp and train_attn to be true",
            ));
        }
        Ok(())
    }
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            rank: 32,
            seed: None,
            train_unembed: true,
            train_mlp: true,
            train_attn: true,
        }
    }
}

fn yes() -> bool {
    true
}

/// Clients to 0.16 send explicit nulls, which mean "not given".
fn null_is_yes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<bool>::deserialize(deserializer)?.unwrap_or(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_is_trained() {
        let config: LoraConfig = serde_json::from_str(
            r#"{"rank": 8, "seed": null, "train_mlp": null, "train_attn": false}"#,
        )
        .unwrap();
        assert_eq!(
            config,
            LoraConfig {
                train_attn: false,
                ..LoraConfig::new(8)
            }
        );
    }

    #[test]
    fn an_adapter_of_nothing_is_refused() {
        assert_eq!(
            LoraConfig::new(0).check().unwrap_err().field(),
            "lora_config.rank"
        );
        let nothing = LoraConfig {
            train_unembed: false,
            train_mlp: false,
            train_attn: false,
            ..LoraConfig::default()
        };
        assert!(nothing.check().is_err());
    }
}
