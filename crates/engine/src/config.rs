//! The shape of a model: everything about it except its weights.
//!
//! A configuration is read from a Hugging Face `config.json` (or from GGUF metadata, see
//! [`weights`](crate::weights)), checked once, and trusted from then on. Options that would change
//! the arithmetic and that the engine does not implement are refused by name rather than ignored.

pub(crate) mod architecture;
mod huggingface;
mod presets;

pub use architecture::Architecture;
pub(crate) use huggingface::TokenIds;

use crate::Error;

/// How rotary frequencies are stretched for contexts longer than the first training.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Frequencies are used as they are.
    None,
    /// Llama 3.1's rule: long wavelengths are divided by `factor`, short ones kept, and those in
    /// between blended.
    Llama3 {
        /// Divisor of the frequencies whose wavelength exceeds `original_context / low_freq_factor`.
        factor: f64,
        /// Bound of the long wavelengths.
        low_freq_factor: f64,
        /// Frequencies whose wavelength is below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the first training.
        original_context: usize,
    },
}

/// Rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies: `theta^(-2i / head_dim)`.
    pub theta: f64,
    /// Adjustment of the frequencies.
    pub scaling: RopeScaling,
}

impl Rope {
    /// Returns the angle per position of each of the `head_dim / 2` rotating pairs.
    ///
    /// ```text
    /// f_i = theta^(-2i / d)
    /// Llama3, with wavelength w = 2π / f_i and original context c:
    ///   w < c / high            f_i
    ///   w > c / low             f_i / factor
    ///   otherwise               (1 - s) f_i / factor + s f_i,  s = (c / w - low) / (high - low)
    /// ```
    #[must_use]
    pub fn frequencies(&self, head_dim: usize) -> Vec<f64> {
        let plain =
            (0..head_dim / 2).map(|pair| self.theta.powf(-2.0 * pair as f64 / head_dim as f64));
        match self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let context = original_context as f64;
                plain
                    .map(|frequency| {
                        let wavelength = std::f64::consts::TAU / frequency;
                        if wavelength < context / high_freq_factor {
                            frequency
                        } else if wavelength > context / low_freq_factor {
                            frequency / factor
                        } else {
                            let kept = (context / wavelength - low_freq_factor)
                                / (high_freq_factor - low_freq_factor);
                            (1.0 - kept) * frequency / factor + kept * frequency
                        }
                    })
                    .collect()
            }
        }
    }
}

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
}

impl ModelConfig {
    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    ///
    /// When the text is not JSON, a size is missing or contradicts another, or the model needs
    /// something that the engine does not implement: another architecture, sliding windows,
    /// experts, quantisation, an activation other than SiLU, another rotary scaling.
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
        self.rope.validate()?;
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

impl Rope {
    fn validate(&self) -> Result<(), Error> {
        if !(self.theta.is_finite() && self.theta > 1.0) {
            return Err(Error::invalid(
                "rope_theta",
                format!("{} is not above 1", self.theta),
            ));
        }
        let RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } = self.scaling
        else {
            return Ok(());
        };
        let usable = factor.is_finite()
            && factor >= 1.0
            && low_freq_factor > 0.0
            && high_freq_factor.is_finite()
            && high_freq_factor > low_freq_factor
            && original_context > 0;
        if usable {
            Ok(())
        } else {
            Err(Error::invalid(
                "rope_scaling",
                format!("{:?} is not usable", self.scaling),
            ))
        }
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

    #[test]
    fn llama3_scaling_keeps_short_wavelengths_and_divides_long_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let plain = Rope {
            theta: 500_000.0,
            scaling: RopeScaling::None,
        }
        .frequencies(128);
        let scaled = Rope {
            theta: 500_000.0,
            scaling,
        }
        .frequencies(128);
        assert_eq!(plain[0], scaled[0]);
        assert_eq!(plain[63] / 8.0, scaled[63]);
        assert!(
            scaled.is_sorted_by(|a, b| a > b),
            "frequencies must fall: {scaled:?}"
        );
    }
}
