//! What families add to the plain layer of Llama: each option by itself, so that a layer asks for what it
//! computes and never for the family.

use super::{ModelConfig, Rope};
use crate::Error;

/// Which earlier tokens a decoder layer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerKind {
    /// All of them.
    Full,
    /// The last ones, as many as [`Features::window`] says.
    Sliding,
}

/// What the feed-forward part computes of gates `g` and values `u`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// `g σ(g) u`
    #[default]
    SwiGlu,
    /// `gelu(g) u`, with the approximation of GELU by `tanh`.
    GeGlu,
    /// `g σ(1.702 g) (u + 1)` with `g ≤ 7` and `−7 ≤ u ≤ 7`, as gpt-oss has it.
    ClampedSwiGlu,
}

/// A feed-forward part of many small ones, of which a few compute each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many compute a token.
    pub per_token: usize,
    /// Width of each.
    pub ffn: usize,
    /// Whether the weights of the chosen ones are made to sum to one.
    pub normalised: bool,
    /// Whether they and their router have biases.
    pub biases: bool,
}

/// What a family adds to the plain layer; the default is nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Features {
    /// The kinds of layers in turn: layer `i` has the kind at `i` modulo their number. None: all are full.
    pub layer_kinds: Vec<LayerKind>,
    /// How many positions a sliding layer sees, its own included.
    pub window: Option<usize>,
    /// Rotary embedding of sliding layers, if it is another one.
    pub local_rope: Option<Rope>,
    /// Whether projections of the same input are one matrix: `qkv_proj` and `gate_up_proj`.
    pub fused_projections: bool,
    /// What the feed-forward part computes.
    pub activation: Activation,
    /// Whether norms multiply by `1 + w`.
    pub norms_add_one: bool,
    /// Whether the outputs of attention and feed-forward are normalised, too.
    pub output_norms: bool,
    /// Whether embeddings are multiplied by the root of their width.
    pub scaled_embedding: bool,
    /// Scores are divided by the root of this, instead of the head size.
    pub query_scalar: Option<f64>,
    /// Bound of attention's scores: `c tanh(s / c)`.
    pub attention_softcap: Option<f64>,
    /// Bound of the head's scores.
    pub final_softcap: Option<f64>,
    /// Whether each query head has a learned score that takes probability and gives no value.
    pub sinks: bool,
    /// Experts instead of one feed-forward part.
    pub experts: Option<Experts>,
}

impl Features {
    /// Cuts a list of all layers' kinds down to the part that repeats.
    pub(crate) fn repeating(kinds: &[LayerKind]) -> Vec<LayerKind> {
        if kinds.iter().all(|kind| *kind == LayerKind::Full) {
            return Vec::new();
        }
        let repeats = |period: usize| kinds[period..].iter().zip(kinds).all(|(a, b)| a == b);
        let period = (1..kinds.len()).find(|&period| repeats(period));
        kinds[..period.unwrap_or(kinds.len())].to_vec()
    }

    pub(super) fn validate(&self, config: &ModelConfig) -> Result<(), Error> {
        let slides = self.layer_kinds.contains(&LayerKind::Sliding);
        if slides != self.window.is_some() || self.window == Some(0) {
            return Err(Error::invalid(
                "sliding_window",
                format!(
                    "{:?} with layers that {}",
                    self.window,
                    if slides { "slide" } else { "see all" }
                ),
            ));
        }
        for (option, number) in [
            ("query_pre_attn_scalar", self.query_scalar),
            ("attn_logit_softcapping", self.attention_softcap),
            ("final_logit_softcapping", self.final_softcap),
        ] {
            if let Some(number) = number
                && !(number.is_finite() && number > 0.0)
            {
                return Err(Error::invalid(option, format!("{number} is not above 0")));
            }
        }
        let Some(experts) = self.experts else {
            return Ok(());
        };
        const MOST: usize = 1 << 14;
        for (option, size, most) in [
            ("num_experts", experts.count, MOST),
            ("num_experts_per_tok", experts.per_token, experts.count),
            ("moe_intermediate_size", experts.ffn, 1 << 24),
        ] {
            if size == 0 || size > most {
                return Err(Error::invalid(
                    option,
                    format!("{size} is not in 1..={most}"),
                ));
            }
        }
        // Keys and lists are made for every expert of every layer.
        if experts.count * config.layers > 1 << 20 {
            return Err(Error::invalid(
                "num_experts",
                format!("{} in each of {} layers", experts.count, config.layers),
            ));
        }
        Ok(())
    }
}

impl ModelConfig {
    /// Returns the kind of a layer.
    #[must_use]
    pub fn layer_kind(&self, layer: usize) -> LayerKind {
        match self.features.layer_kinds.as_slice() {
            [] => LayerKind::Full,
            kinds => kinds[layer % kinds.len()],
        }
    }

    /// Returns the factor of attention's scores.
    #[must_use]
    pub fn score_scale(&self) -> f64 {
        let scalar = self.features.query_scalar;
        scalar.unwrap_or(self.head_dim as f64).sqrt().recip()
    }
}

#[cfg(test)]
mod tests {
    use super::LayerKind::{Full, Sliding};
    use super::*;

    #[test]
    fn kinds_are_cut_down_to_what_repeats() {
        for (all, part) in [
            (vec![Full, Full], vec![]),
            (vec![Sliding, Sliding], vec![Sliding]),
            (
                vec![Sliding, Sliding, Full, Sliding],
                vec![Sliding, Sliding, Full],
            ),
            (vec![Full, Full, Sliding], vec![Full, Full, Sliding]),
        ] {
            assert_eq!(Features::repeating(&all), part, "{all:?}");
        }
    }
}
