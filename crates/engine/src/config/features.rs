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
    /// A state that they have changed, by the [gated delta rule](DeltaRule).
    Delta,
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

/// Shape of the layers with a state instead of keys and values: the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaRule {
    /// Number of query heads and of key heads; each serves `value_heads / key_heads` value heads.
    pub key_heads: usize,
    /// Number of value heads.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Inputs that the convolution before the rule sees, its own included.
    pub kernel: usize,
}

impl DeltaRule {
    pub(crate) fn keys(self) -> usize {
        self.key_heads * self.key_dim
    }

    pub(crate) fn values(self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Queries, keys and values together.
    pub(crate) fn channels(self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Value heads of a key head.
    pub(crate) fn shared(self) -> usize {
        self.value_heads / self.key_heads
    }

    fn validate(self) -> Result<(), Error> {
        const MOST: usize = 1 << 12;
        for (option, size) in [
            ("linear_num_key_heads", self.key_heads),
            ("linear_num_value_heads", self.value_heads),
            ("linear_key_head_dim", self.key_dim),
            ("linear_value_head_dim", self.value_dim),
            ("linear_conv_kernel_dim", self.kernel),
        ] {
            if size == 0 || size > MOST {
                let reason = format!("{size} is not in 1..={MOST}");
                return Err(Error::invalid(option, reason));
            }
        }
        if !self.value_heads.is_multiple_of(self.key_heads) {
            let reason = format!("{} does not divide {}", self.key_heads, self.value_heads);
            return Err(Error::invalid("linear_num_key_heads", reason));
        }
        Ok(())
    }
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
    /// Width of one more that computes every token, times the sigmoid of a score of its own.
    pub shared: Option<usize>,
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
    /// Whether attention's output is multiplied by the sigmoid of gates that come with the queries.
    pub output_gate: bool,
    /// Shape of layers with a state.
    pub delta: Option<DeltaRule>,
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
        let has_states = self.layer_kinds.contains(&LayerKind::Delta);
        if has_states != self.delta.is_some() {
            let reason = "layers with a state and their shape go together";
            return Err(Error::invalid("layer_types", reason));
        }
        self.delta.map_or(Ok(()), DeltaRule::validate)?;
        let Some(experts) = self.experts else {
            return Ok(());
        };
        const MOST: usize = 1 << 14;
        for (option, size, most) in [
            ("num_experts", experts.count, MOST),
            ("num_experts_per_tok", experts.per_token, experts.count),
            ("moe_intermediate_size", experts.ffn, 1 << 24),
            (
                "shared_expert_intermediate_size",
                experts.shared.unwrap_or(1),
                1 << 24,
            ),
        ] {
            if size == 0 || size > most {
                return Err(Error::invalid(
                    option,
                    format!("{size} is not in 1..={most}"),
                ));
            }
        }
        // Keys and lists are made for every expert of every layer, of which published models have up to 31 thousand.
        if experts.count * config.layers > 1 << 17 {
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

    /// Counts the layers with a state before a layer.
    pub(crate) fn delta_layers(&self, before: usize) -> usize {
        let kinds = (0..before).map(|layer| self.layer_kind(layer));
        kinds.filter(|kind| *kind == LayerKind::Delta).count()
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
