//! Which tensors a run trains, and where their gradients go.
//!
//! The backward pass asks, layer by layer, whether a gradient is wanted and under which number. A LoRA
//! run has `lora_A` and `lora_B` of some linear layers; a full run has every weight of the model.

use crate::ModelConfig;
use crate::adapter::{HEAD, layer_name};
use crate::model::Site;
use crate::weights::tensor_shapes;

/// The trained tensors of a run, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) layers: Vec<LayerSlots>,
    pub(crate) head: LinearSlots,
    pub(crate) embedding: Option<usize>,
    pub(crate) final_norm: Option<usize>,
    /// Set when the head's gradient belongs to the embedding. Both keep a sum of their own until the
    /// optimizer step, so that the order of additions does not depend on how datums were batched.
    pub(crate) tied: bool,
}

/// A trained tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
}

impl Tensor {
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The gradients of one linear layer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinearSlots {
    /// `A`, and `B` as `r × outputs`.
    pub(crate) lora: Option<[usize; 2]>,
    pub(crate) weight: Option<usize>,
    pub(crate) bias: Option<usize>,
}

/// The gradients of one block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerSlots {
    pub(crate) linears: [LinearSlots; 7],
    pub(crate) attention_norm: Option<usize>,
    pub(crate) mlp_norm: Option<usize>,
    pub(crate) qk_norms: Option<[usize; 2]>,
}

impl Slots {
    /// Lists the tensors of an adapter of some rank.
    pub(crate) fn lora(
        config: &ModelConfig,
        rank: usize,
        trains: impl Fn(Option<Site>) -> bool,
    ) -> Self {
        let mut slots = Self::default();
        for layer in 0..config.layers {
            let mut of_layer = LayerSlots::default();
            for site in Site::ALL.into_iter().filter(|&site| trains(Some(site))) {
                let (outputs, inputs) = site.shape(config);
                let pair = slots.push_pair(&layer_name(layer, site), rank, inputs, outputs);
                of_layer.linears[site as usize].lora = Some(pair);
            }
            slots.layers.push(of_layer);
        }
        if trains(None) {
            slots.head.lora = Some(slots.push_pair(HEAD, rank, config.hidden, config.vocab));
        }
        slots
    }

    fn push_pair(&mut self, layer: &str, rank: usize, inputs: usize, outputs: usize) -> [usize; 2] {
        let first = self.tensors.len();
        self.tensors.push(Tensor {
            name: format!("{layer}.lora_A"),
            shape: vec![rank, inputs],
        });
        // Kept the other way round than PEFT's, so that both gradients are sums of rows.
        self.tensors.push(Tensor {
            name: format!("{layer}.lora_B"),
            shape: vec![rank, outputs],
        });
        [first, first + 1]
    }

    /// Drops the adapters of layers that are not wanted.
    pub(crate) fn keep_lora(&mut self, wanted: impl Fn(&str) -> bool) {
        let all = std::mem::take(&mut self.tensors);
        let linears = self
            .layers
            .iter_mut()
            .flat_map(|layer| &mut layer.linears)
            .chain([&mut self.head]);
        for linear in linears {
            linear.lora = linear
                .lora
                .take()
                .filter(|[a, _]| wanted(all[*a].name.trim_end_matches(".lora_A")));
            if let Some([a, b]) = &mut linear.lora {
                let first = self.tensors.len();
                self.tensors.extend([all[*a].clone(), all[*b].clone()]);
                [*a, *b] = [first, first + 1];
            }
        }
    }

    /// Lists every tensor of a model.
    pub(crate) fn full(config: &ModelConfig) -> Self {
        let tensors: Vec<Tensor> = tensor_shapes(config)
            .into_iter()
            .map(|(name, shape)| Tensor { name, shape })
            .collect();
        let number = |name: &str| tensors.iter().position(|tensor| tensor.name == name);
        let layers = (0..config.layers)
            .map(|layer| {
                let of = |name: &str| number(&format!("model.layers.{layer}.{name}"));
                LayerSlots {
                    linears: Site::ALL.map(|site| LinearSlots {
                        lora: None,
                        weight: of(&format!("{}.weight", site.name())),
                        bias: of(&format!("{}.bias", site.name())),
                    }),
                    attention_norm: of("input_layernorm.weight"),
                    mlp_norm: of("post_attention_layernorm.weight"),
                    qk_norms: of("self_attn.q_norm.weight")
                        .zip(of("self_attn.k_norm.weight"))
                        .map(|(q, k)| [q, k]),
                }
            })
            .collect();
        let head = number("lm_head.weight");
        Self {
            layers,
            embedding: number("model.embed_tokens.weight"),
            final_norm: number("model.norm.weight"),
            head: LinearSlots {
                weight: head.or(Some(tensors.len())),
                ..LinearSlots::default()
            },
            tied: head.is_none(),
            tensors,
        }
    }

    /// Returns zeros for every gradient.
    pub(crate) fn zeros(&self) -> Vec<Vec<f32>> {
        let tied = self
            .embedding
            .filter(|_| self.tied)
            .map(|number| &self.tensors[number]);
        self.tensors
            .iter()
            .chain(tied)
            .map(|tensor| vec![0.0; tensor.elements()])
            .collect()
    }

    /// Returns the name of each gradient.
    pub(crate) fn gradient_name(&self, number: usize) -> &str {
        self.tensors
            .get(number)
            .map_or("lm_head.weight", |tensor| &tensor.name)
    }
}
