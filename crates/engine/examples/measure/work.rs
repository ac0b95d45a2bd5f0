//! How much work a round is, counted from the shape of a dense model.

use tinkrs_engine::weights::tensor_shapes;
use tinkrs_engine::{ModelConfig, types::LoraConfig};

/// The numbers of a model's shape that its work depends on.
pub(crate) struct Shape {
    /// Outputs and inputs of every linear layer of the blocks.
    layers: Vec<(f64, f64)>,
    head: f64,
    /// Width of all heads of a layer, times the layers.
    attention: f64,
}

impl Shape {
    pub(crate) fn of(config: &ModelConfig) -> Self {
        let shapes = tensor_shapes(config);
        let layers = shapes.iter().filter_map(|(name, shape)| match shape[..] {
            [outputs, inputs] if name.contains(".layers.") => Some((outputs as f64, inputs as f64)),
            _ => None,
        });
        Self {
            layers: layers.collect(),
            head: (config.vocab * config.hidden) as f64,
            attention: (config.layers * config.heads * config.head_dim) as f64,
        }
    }

    fn weights(&self) -> f64 {
        self.layers
            .iter()
            .map(|(outputs, inputs)| outputs * inputs)
            .sum()
    }

    /// Operations of reading prompts, each for one token: two for each weight and token, the head once, and two
    /// products of the causal half of the scores.
    pub(crate) fn prompts(&self, batch: usize, length: usize) -> f64 {
        let (batch, length) = (batch as f64, length as f64);
        let scores = 2.0 * length * length * self.attention;
        batch * (2.0 * length * self.weights() + 2.0 * self.head + scores)
    }

    /// Operations of a LoRA step. Each weight and token: two forward and two for the gradient of the input, the head
    /// too. Scores: two products forward, and five backward, of which one is the forward one again. An adapter: four
    /// products with its rank for the gradients, and its product with itself, which is added to the weights.
    pub(crate) fn lora_step(&self, batch: usize, length: usize, lora: &LoraConfig) -> f64 {
        let (tokens, length) = ((batch * length) as f64, length as f64);
        let rank = f64::from(lora.rank);
        let adapters = self.layers.iter().map(|(outputs, inputs)| {
            4.0 * tokens * rank * (outputs + inputs) + 2.0 * rank * outputs * inputs
        });
        4.0 * tokens * (self.weights() + self.head)
            + 7.0 * tokens * length * self.attention
            + adapters.sum::<f64>()
    }
}
