//! The tensors of a model: every name and shape, written once.
//!
//! Each part of a decoder layer declares its tensors in its own file (see
//! [`Layer::declare`](super::layer::Layer::declare)); the table adds the embedding, the last norm and the
//! head. From it come the tensors that a file has to hold, under the names of Hugging Face and of GGUF;
//! the linear layers that an adapter may change, under PEFT's names; and the keys by which loaded
//! weights find their adapter and their gradient.
//!
//! Invariant: the order of tensors and sites belongs to the numeric results. The optimizer adds up the
//! norm of all gradients in this order.

use std::collections::HashMap;

use super::layer::Layer;
use crate::ModelConfig;

/// The table of token embeddings.
pub(crate) const EMBEDDING: Names = Names::new("model.embed_tokens", "token_embd");
/// The norm after the last decoder layer.
pub(crate) const FINAL_NORM: Names = Names::new("model.norm", "output_norm");
/// The output head. A tied one has no tensor, but an adapter may still change it.
pub(crate) const HEAD: Names = Names::new("lm_head", "output");

/// What comes before a decoder layer's index in Hugging Face's names.
const LAYERS: &str = "model.layers.";

/// How Hugging Face and GGUF name a norm or a linear layer, without `.weight` or `.bias`; if it belongs
/// to a decoder layer, without that layer's prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    hugging_face: &'static str,
    gguf: &'static str,
}

/// The full names of a norm, a linear layer or a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FullNames {
    pub(crate) hugging_face: String,
    pub(crate) gguf: String,
}

impl Names {
    pub(crate) const fn new(hugging_face: &'static str, gguf: &'static str) -> Self {
        Self { hugging_face, gguf }
    }

    /// The name of something outside the decoder layers, as Hugging Face spells it.
    pub(crate) const fn in_hugging_face(self) -> &'static str {
        self.hugging_face
    }

    /// Names of something outside the decoder layers.
    pub(crate) fn in_model(self) -> FullNames {
        FullNames {
            hugging_face: self.hugging_face.to_owned(),
            gguf: self.gguf.to_owned(),
        }
    }

    /// Names of something in an expert, whose index replaces the star. GGUF has all experts in one tensor.
    pub(crate) fn in_expert(self, layer: usize, expert: usize) -> FullNames {
        let FullNames { hugging_face, gguf } = self.in_layer(layer);
        FullNames {
            hugging_face: hugging_face.replace('*', &expert.to_string()),
            gguf,
        }
    }

    /// Names of something in a decoder layer.
    pub(crate) fn in_layer(self, layer: usize) -> FullNames {
        FullNames {
            hugging_face: format!("{LAYERS}{layer}.{}", self.hugging_face),
            gguf: format!("blk.{layer}.{}", self.gguf),
        }
    }
}

impl FullNames {
    pub(crate) fn weight(&self) -> Self {
        self.with("weight")
    }

    pub(crate) fn bias(&self) -> Self {
        self.with("bias")
    }

    fn with(&self, part: &str) -> Self {
        Self {
            hugging_face: format!("{}.{part}", self.hugging_face),
            gguf: format!("{}.{part}", self.gguf),
        }
    }
}

/// Returns `3` for `model.layers.3.mlp.up_proj`.
pub(crate) fn layer_index(name: &str) -> Option<usize> {
    name.strip_prefix(LAYERS)?.split('.').next()?.parse().ok()
}

/// A norm, as the part that has it declares it.
pub(crate) struct NormSpec {
    pub(crate) names: Names,
    pub(crate) width: usize,
}

/// A linear layer, as the part that has it declares it.
pub(crate) struct LinearSpec {
    pub(crate) names: Names,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    pub(crate) has_bias: bool,
    /// The number of heads that its outputs make up, if those are rotated.
    pub(crate) rotary_heads: Option<usize>,
    pub(crate) group: SiteGroup,
}

impl LinearSpec {
    fn site(&self, names: FullNames) -> Site {
        Site {
            name: names.hugging_face,
            outputs: self.outputs,
            inputs: self.inputs,
            group: self.group,
        }
    }
}

/// A tensor of the model.
#[derive(Clone, Debug)]
pub(crate) struct TensorSpec {
    pub(crate) names: FullNames,
    /// Matrices are `[outputs, inputs]`.
    pub(crate) shape: Vec<usize>,
    /// The number of heads that its rows make up, if those are rotated.
    pub(crate) rotary_heads: Option<usize>,
    /// Which part of GGUF's tensor it is, if that holds several.
    pub(crate) part: Option<Part>,
}

/// One of several equal parts of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) index: usize,
    pub(crate) count: usize,
}

/// A linear layer that an adapter can change.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// Name as Hugging Face and PEFT spell it: `model.layers.0.self_attn.q_proj`.
    pub(crate) name: String,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    pub(crate) group: SiteGroup,
}

impl Site {
    /// Names of the adapter's matrices `A` and `B` in a training run and its saved state.
    pub(crate) fn lora_names(&self) -> [String; 2] {
        ["lora_A", "lora_B"].map(|matrix| format!("{}.{matrix}", self.name))
    }
}

/// Which of the groups that [`LoraConfig`](tinkrs_types::LoraConfig) switches on or off a site is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SiteGroup {
    Attention,
    FeedForward,
    Head,
}

/// The place of a tensor in its model's [`TensorTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorKey(pub(crate) usize);

/// The place of a [`Site`] in its model's [`TensorTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SiteKey(pub(crate) usize);

/// All tensors and sites of a model, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorTable {
    tensors: Vec<TensorSpec>,
    sites: Vec<Site>,
    tensor_by_name: HashMap<String, TensorKey>,
    site_by_name: HashMap<String, SiteKey>,
}

impl TensorTable {
    /// Lists what a configuration calls for.
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let mut table = Self::default();
        table.push(matrix(EMBEDDING, config));
        for index in 0..config.layers {
            let mut layer = LayerTensors {
                index,
                table: &mut table,
                optional: Vec::new(),
            };
            Layer::declare(config, &mut layer);
            layer.finish();
        }
        table.push(TensorSpec {
            names: FINAL_NORM.in_model().weight(),
            shape: vec![config.hidden],
            rotary_heads: None,
            part: None,
        });
        if !config.tied_head {
            table.push(matrix(HEAD, config));
        }
        table.push_site(Site {
            name: HEAD.in_model().hugging_face,
            outputs: config.vocab,
            inputs: config.hidden,
            group: SiteGroup::Head,
        });
        table
    }

    fn push(&mut self, tensor: TensorSpec) {
        let key = TensorKey(self.tensors.len());
        self.tensor_by_name
            .insert(tensor.names.hugging_face.clone(), key);
        self.tensors.push(tensor);
    }

    fn push_site(&mut self, site: Site) {
        let key = SiteKey(self.sites.len());
        self.site_by_name.insert(site.name.clone(), key);
        self.sites.push(site);
    }

    pub(crate) fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// The linear layers that an adapter can change: those of each decoder layer in turn, then the head.
    pub(crate) fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Finds a tensor by its Hugging Face name.
    pub(crate) fn tensor_key(&self, name: &str) -> Option<TensorKey> {
        self.tensor_by_name.get(name).copied()
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&TensorSpec> {
        self.tensor_key(name).map(|key| &self.tensors[key.0])
    }

    /// Finds a linear layer by the name that Hugging Face and PEFT give it.
    pub(crate) fn site_key(&self, name: &str) -> Option<SiteKey> {
        self.site_by_name.get(name).copied()
    }

    /// The output head, which is the last site.
    pub(crate) fn head_site(&self) -> SiteKey {
        SiteKey(self.sites.len() - 1)
    }
}

fn matrix(names: Names, config: &ModelConfig) -> TensorSpec {
    TensorSpec {
        names: names.in_model().weight(),
        shape: vec![config.vocab, config.hidden],
        rotary_heads: None,
        part: None,
    }
}

/// Takes the declarations of one decoder layer.
pub(crate) struct LayerTensors<'t> {
    index: usize,
    table: &'t mut TensorTable,
    /// What only some models have comes after what all of them have.
    optional: Vec<TensorSpec>,
}

impl LayerTensors<'_> {
    pub(crate) fn norm(&mut self, spec: &NormSpec) {
        let tensor = self.norm_tensor(spec);
        self.table.push(tensor);
    }

    /// Declares a vector that only some models have, whose names are whole.
    pub(crate) fn vector(&mut self, names: Names, width: usize) {
        self.optional.push(TensorSpec {
            names: names.in_layer(self.index),
            shape: vec![width],
            rotary_heads: None,
            part: None,
        });
    }

    /// Declares a matrix that has no adapter.
    pub(crate) fn matrix(&mut self, names: Names, outputs: usize, inputs: usize, has_bias: bool) {
        if has_bias {
            self.optional.push(TensorSpec {
                names: names.in_layer(self.index).bias(),
                shape: vec![outputs],
                rotary_heads: None,
                part: None,
            });
        }
        self.table.push(TensorSpec {
            names: names.in_layer(self.index).weight(),
            shape: vec![outputs, inputs],
            rotary_heads: None,
            part: None,
        });
    }

    /// Declares a linear layer of an expert.
    pub(crate) fn expert(&mut self, spec: &LinearSpec, index: usize, count: usize) {
        let names = spec.names.in_expert(self.index, index);
        self.table.push(TensorSpec {
            names: names.weight(),
            shape: vec![spec.outputs, spec.inputs],
            rotary_heads: None,
            part: Some(Part { index, count }),
        });
        if spec.has_bias {
            self.optional.push(TensorSpec {
                names: names.bias(),
                shape: vec![spec.outputs],
                rotary_heads: None,
                part: Some(Part { index, count }),
            });
        }
        self.table.push_site(spec.site(names));
    }

    /// The index of the layer.
    pub(crate) fn layer(&self) -> usize {
        self.index
    }

    /// Declares the weights of a convolution.
    pub(crate) fn kernel(&mut self, names: Names, shape: Vec<usize>) {
        self.optional.push(TensorSpec {
            names: names.in_layer(self.index).weight(),
            shape,
            rotary_heads: None,
            part: None,
        });
    }

    /// Declares a norm that only some models have.
    pub(crate) fn optional_norm(&mut self, spec: &NormSpec) {
        let tensor = self.norm_tensor(spec);
        self.optional.push(tensor);
    }

    pub(crate) fn linear(&mut self, spec: &LinearSpec) {
        let names = spec.names.in_layer(self.index);
        let tensor = |names: FullNames, shape| TensorSpec {
            names,
            shape,
            rotary_heads: spec.rotary_heads,
            part: None,
        };
        self.table
            .push(tensor(names.weight(), vec![spec.outputs, spec.inputs]));
        if spec.has_bias {
            self.optional.push(tensor(names.bias(), vec![spec.outputs]));
        }
        self.table.push_site(spec.site(names));
    }

    fn norm_tensor(&self, spec: &NormSpec) -> TensorSpec {
        TensorSpec {
            names: spec.names.in_layer(self.index).weight(),
            shape: vec![spec.width],
            rotary_heads: None,
            part: None,
        }
    }

    fn finish(self) {
        for tensor in self.optional {
            self.table.push(tensor);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn configs() -> Vec<ModelConfig> {
        let biased = ModelConfig {
            attention_output_bias: true,
            ..ModelConfig::tiny_qwen2()
        };
        ModelConfig::tiny_models()
            .into_iter()
            .chain([biased])
            .collect()
    }

    #[test]
    fn every_tensor_has_a_name_of_its_own_in_both_formats() {
        for config in configs() {
            let table = TensorTable::new(&config);
            let count = table.tensors().len();
            let names = |of: fn(&TensorSpec) -> &String| -> HashSet<&String> {
                table.tensors().iter().map(of).collect()
            };
            assert_eq!(names(|tensor| &tensor.names.hugging_face).len(), count);
            // Experts share a tensor of GGUF, each with a part of its own.
            let in_gguf: HashSet<String> = table
                .tensors()
                .iter()
                .map(|tensor| format!("{} {:?}", tensor.names.gguf, tensor.part))
                .collect();
            assert_eq!(in_gguf.len(), count);
        }
    }

    #[test]
    fn names_are_those_of_the_file_formats() {
        let config = ModelConfig {
            layers: 13,
            ..ModelConfig::tiny_llama3()
        };
        let table = TensorTable::new(&config);
        for (hugging_face, gguf) in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            (
                "model.layers.12.self_attn.o_proj.weight",
                "blk.12.attn_output.weight",
            ),
            (
                "model.layers.3.post_attention_layernorm.weight",
                "blk.3.ffn_norm.weight",
            ),
            ("model.norm.weight", "output_norm.weight"),
            ("lm_head.weight", "output.weight"),
        ] {
            let found = table
                .tensor(hugging_face)
                .map(|tensor| tensor.names.gguf.as_str());
            assert_eq!(found, Some(gguf));
        }
        assert!(table.tensor("model.layers.0.mlp.router.weight").is_none());
    }

    #[test]
    fn every_linear_layer_and_the_head_can_be_adapted() {
        for config in configs() {
            let table = TensorTable::new(&config);
            let matrices = table
                .tensors()
                .iter()
                .filter(|tensor| tensor.shape.len() == 2)
                .filter(|tensor| !tensor.names.gguf.ends_with("ffn_gate_inp.weight"))
                .filter_map(|tensor| tensor.names.hugging_face.strip_suffix(".weight"))
                .filter(|name| *name != EMBEDDING.hugging_face && *name != HEAD.hugging_face);
            let sites: Vec<&str> = table
                .sites()
                .iter()
                .map(|site| site.name.as_str())
                .collect();
            assert!(matrices.chain([HEAD.hugging_face]).eq(sites));
            assert_eq!(table.site_key("lm_head"), Some(table.head_site()));
        }
    }

    #[test]
    fn the_index_of_a_layer_is_read_from_its_name() {
        assert_eq!(layer_index("model.layers.31.mlp.up_proj"), Some(31));
        assert_eq!(layer_index("lm_head"), None);
        assert_eq!(layer_index("model.layers.x.mlp"), None);
    }
}
