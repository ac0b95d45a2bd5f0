//! The shape of a model: everything about it except its weights.
//!
//! A configuration is read from a Hugging Face `config.json` (or from GGUF metadata, see
//! [`weights`](crate::weights)), checked once, and trusted from then on. Options that would change
//! the arithmetic and that the engine does not implement are refused by name rather than ignored.

pub(crate) mod architecture;
mod features;
mod huggingface;
mod presets;
mod rope;

pub use architecture::Architecture;
pub use features::{Activation, DeltaRule, Experts, Features, LayerKind};
pub(crate) use huggingface::TokenIds;
pub use rope::{Rope, RopeScaling};

use crate::Error;

/// The shape of a decoder-only language model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family that the model belongs to.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of one head; `heads × head_dim` need not equal `hidden`.
    pub head_dim: usize,
    /// Width of the gated MLP.
    pub ffn: usize,
    /// Number of tokens.
    pub vocab: usize,
    /// Longest sequence that the model was made for.
    pub max_context: usize,
    /// Added to the mean square in every norm.
    pub rms_eps: f64,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Whether the output head is the embedding table.
    pub tied_head: bool,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub attention_output_bias: bool,
    /// Whether each query and key head is normalised before rotation.
    pub qk_norm: bool,
    /// Token that begins a text, if the model has one.
    pub bos: Option<u32>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// What the family adds to the plain layer.
    pub features: Features,
}

impl ModelConfig {
    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    ///
    /// When the text is not JSON, a size is missing or contradicts another, or the model needs
    /// something that the engine does not implement: another architecture, activation, quantisation or
    /// rotary scaling.
    pub fn from_hf_json(text: &str) -> Result<Self, Error> {
        let config = huggingface::parse(text)?;
        config.validate()?;
        Ok(config)
    }

    /// Returns the configuration as a Hugging Face `config.json`.
    #[must_use]
    pub fn to_hf_json(&self) -> String {
        huggingface::write(self)
    }

    /// Returns the width of all query heads together.
    #[must_use]
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the width of all key heads together, which is also that of the value heads.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Checks that the sizes are usable and agree with each other.
    ///
    /// # Errors
    ///
    /// Names the first option that does not fit.
    pub fn validate(&self) -> Result<(), Error> {
        // The bounds keep products of sizes far from overflow, and lists of layers short, also for
        // files made to cause the opposite.
        const WIDEST: usize = 1 << 24;
        const DEEPEST: usize = 1 << 12;
        let sizes = [
            ("hidden_size", self.hidden, WIDEST),
            ("num_hidden_layers", self.layers, DEEPEST),
            ("num_attention_heads", self.heads, WIDEST),
            ("num_key_value_heads", self.kv_heads, WIDEST),
            ("head_dim", self.head_dim, WIDEST),
            ("intermediate_size", self.ffn, WIDEST),
            ("vocab_size", self.vocab, WIDEST),
            ("max_position_embeddings", self.max_context, WIDEST),
        ];
        for (option, size, most) in sizes {
            if size == 0 || size > most {
                return Err(Error::invalid(
                    option,
                    format!("{size} is not in 1..={most}"),
                ));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::invalid(
                "num_key_value_heads",
                format!(
                    "{} does not divide num_attention_heads {}",
                    self.kv_heads, self.heads
                ),
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(Error::invalid(
                "head_dim",
                format!("{} is odd, but rotary embedding needs pairs", self.head_dim),
            ));
        }
        if !(self.rms_eps.is_finite() && self.rms_eps >= 0.0) {
            return Err(Error::invalid(
                "rms_norm_eps",
                format!("{} is not usable", self.rms_eps),
            ));
        }
        self.features.validate(self)?;
        for rope in [Some(&self.rope), self.features.local_rope.as_ref()] {
            rope.map_or(Ok(()), |rope| rope.validate(self.head_dim))?;
        }
        for (option, tokens) in [
            ("bos_token_id", self.bos.as_slice()),
            ("eos_token_id", &self.eos),
        ] {
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.vocab) {
                return Err(Error::invalid(
                    option,
                    format!("{token} is outside the vocabulary of {}", self.vocab),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid() {
        for config in ModelConfig::tiny_models() {
            config
                .validate()
                .unwrap_or_else(|error| panic!("{config:?}: {error}"));
        }
        ModelConfig::bench_95m().validate().unwrap();
        ModelConfig::bench_7m().validate().unwrap();
    }

    #[test]
    fn a_contradiction_names_the_option() {
        let good = ModelConfig::tiny_qwen3();
        let cases = [
            (
                "hidden_size",
                ModelConfig {
                    hidden: 0,
                    ..good.clone()
                },
            ),
            (
                "num_key_value_heads",
                ModelConfig {
                    kv_heads: 3,
                    ..good.clone()
                },
            ),
            (
                "head_dim",
                ModelConfig {
                    head_dim: 7,
                    ..good.clone()
                },
            ),
            (
                "rms_norm_eps",
                ModelConfig {
                    rms_eps: f64::NAN,
                    ..good.clone()
                },
            ),
            (
                "vocab_size",
                ModelConfig {
                    vocab: usize::MAX,
                    ..good.clone()
                },
            ),
            (
                "eos_token_id",
                ModelConfig {
                    eos: vec![1, 1 << 20],
                    ..good.clone()
                },
            ),
        ];
        for (option, config) in cases {
            let message = config.validate().unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("invalid {option}: ")),
                "{option}: {message}"
            );
        }
    }
}
