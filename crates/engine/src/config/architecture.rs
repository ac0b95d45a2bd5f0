//! The families of decoders that the engine implements, and what sets them apart.
//!
//! A new family of dense decoders is a variant and its [`Family`] here, and a preset with which the tests
//! cover it. Whatever names or chooses families reads this list.

/// The families of decoders that the engine implements.
///
/// They share one form of layer (norm, attention, norm, gated MLP) and differ in its details, which
/// [`ModelConfig`](super::ModelConfig) spells out one by one; the family only names where the defaults
/// came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama 2 and 3, and models of the same form such as SmolLM.
    Llama,
    /// Qwen2 and Qwen2.5: biases on the query, key and value projections.
    Qwen2,
    /// Qwen3: a norm on each query and key head, and a head size of its own.
    Qwen3,
}

/// The families, as messages list them.
pub(crate) const SUPPORTED: &str = "llama, qwen2 and qwen3";

/// What a family is called, and what its files leave unsaid.
pub(crate) struct Family {
    /// Name to be shown.
    name: &'static str,
    /// `model_type` in Hugging Face's `config.json`.
    pub(crate) model_type: &'static str,
    /// Member of `architectures` in Hugging Face's `config.json`.
    pub(crate) class: &'static str,
    /// `general.architecture` in GGUF files.
    pub(crate) gguf: &'static str,
    /// Whether queries, keys and values always have biases, and attention's output never.
    pub(crate) fixed_biases: bool,
    /// Whether query and key heads have norms.
    pub(crate) qk_norm: bool,
    /// Head size where the file gives none; otherwise `hidden / heads`.
    pub(crate) default_head_dim: Option<usize>,
    /// Whether a `sliding_window` only counts if `use_sliding_window` is set as well.
    pub(crate) window_has_switch: bool,
    /// Whether GGUF stores the rows of rotated heads in interleaved order.
    pub(crate) gguf_interleaves_heads: bool,
}

const LLAMA: Family = Family {
    name: "Llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    gguf: "llama",
    fixed_biases: false,
    qk_norm: false,
    default_head_dim: None,
    window_has_switch: false,
    gguf_interleaves_heads: true,
};

const QWEN2: Family = Family {
    name: "Qwen2",
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    gguf: "qwen2",
    fixed_biases: true,
    qk_norm: false,
    default_head_dim: None,
    window_has_switch: true,
    gguf_interleaves_heads: false,
};

const QWEN3: Family = Family {
    name: "Qwen3",
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    gguf: "qwen3",
    fixed_biases: false,
    qk_norm: true,
    default_head_dim: Some(128),
    window_has_switch: true,
    gguf_interleaves_heads: false,
};

impl Architecture {
    /// Every family.
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// Returns the name to be shown: `Llama`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.family().name
    }

    /// Returns the name in Hugging Face's `config.json`: `llama`.
    #[must_use]
    pub fn model_type(self) -> &'static str {
        self.family().model_type
    }

    /// Returns the name in GGUF's `general.architecture`: `llama`.
    #[must_use]
    pub fn gguf_name(self) -> &'static str {
        self.family().gguf
    }

    pub(crate) fn family(self) -> &'static Family {
        match self {
            Self::Llama => &LLAMA,
            Self::Qwen2 => &QWEN2,
            Self::Qwen3 => &QWEN3,
        }
    }

    /// Finds the family that satisfies a condition.
    pub(crate) fn find(is_meant: impl Fn(&Family) -> bool) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|architecture| is_meant(architecture.family()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_found_by_its_names_and_listed_in_messages() {
        for architecture in Architecture::ALL {
            let family = architecture.family();
            assert!(SUPPORTED.contains(family.model_type));
            for found in [
                Architecture::find(|other| other.model_type == family.model_type),
                Architecture::find(|other| other.class == family.class),
                Architecture::find(|other| other.gguf == family.gguf),
            ] {
                assert_eq!(found, Some(architecture));
            }
        }
    }
}
