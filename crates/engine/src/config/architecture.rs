//! The families of decoders that the engine implements, and what sets them apart.
//!
//! A new family is a variant and its [`Family`] here, and a preset with which the tests cover it. Whatever
//! names or chooses families reads this list.

/// The families of decoders that the engine implements.
///
/// They share one form of layer (norm, attention, norm, feed-forward) and differ in its details, which
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
    /// Mistral: Llama with a sliding window in every layer, where the file names one.
    Mistral,
    /// Phi-3 and Phi-4: projections of the same input in one matrix, and only a part of each head rotated.
    Phi3,
    /// Gemma 2: norms on both sides of each part, GELU, bounded scores, every other layer sliding.
    Gemma2,
    /// Gemma 3 (of models that see images, the part for text): five of six layers sliding, with a rotary base of
    /// their own, and norms on query and key heads.
    Gemma3,
    /// Qwen3 with experts, such as Qwen3-30B-A3B.
    Qwen3Moe,
    /// gpt-oss: experts with biases, every other layer sliding, sinks.
    GptOss,
    /// Qwen3.5 without experts (the part for text): three of four layers have a state instead of keys and values.
    Qwen35,
    /// Qwen3.5 with experts, such as Qwen3.5-35B-A3B: one of them computes every token.
    Qwen35Moe,
}

/// The families, as messages list them.
pub(crate) const SUPPORTED: &str = "llama, qwen2, qwen3, mistral, phi3, gemma2, gemma3, gemma3_text, qwen3_moe, gpt_oss, qwen3_5, \
    qwen3_5_text, qwen3_5_moe and qwen3_5_moe_text";

/// What a family is called, and what its files leave unsaid.
pub(crate) struct Family {
    /// Name to be shown.
    name: &'static str,
    /// `model_type` in Hugging Face's `config.json`.
    pub(crate) model_type: &'static str,
    /// Member of `architectures` in Hugging Face's `config.json`.
    pub(crate) class: &'static str,
    /// Other values of `model_type` and `architectures`: models that see images, with this one inside.
    pub(crate) around: &'static [&'static str],
    /// `general.architecture` in GGUF files.
    pub(crate) gguf: &'static str,
    /// Whether queries, keys and values always have biases, and attention's output never.
    pub(crate) fixed_biases: bool,
    /// Whether query and key heads have norms.
    pub(crate) qk_norm: bool,
    /// Head size where the file gives none; otherwise `hidden / heads`.
    pub(crate) default_head_dim: Option<usize>,
    /// Which layers a `sliding_window` is for.
    pub(crate) windows: Windows,
    /// Whether GGUF stores the rows of rotated heads in interleaved order.
    pub(crate) gguf_interleaves_heads: bool,
    /// Whether projections of the same input are one matrix.
    pub(crate) fused_projections: bool,
    /// Whether it computes as Gemma does: GELU, norms of outputs, `1 + w`, scaled embeddings, tied head.
    pub(crate) is_gemma: bool,
    /// Whether it has experts.
    pub(crate) has_experts: bool,
    /// Whether one more expert computes every token.
    pub(crate) shares_expert: bool,
    /// Whether it computes as gpt-oss does: biases everywhere, sinks, a clamped activation.
    pub(crate) is_gpt_oss: bool,
    /// Part of each head that turns where the file does not say.
    pub(crate) default_rotary: f64,
    /// Base of the rotary frequencies where the file gives none.
    pub(crate) default_theta: f64,
    /// The same of sliding layers, if it is another one.
    pub(crate) local_theta: Option<f64>,
}

/// Which layers slide in files that do not list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windows {
    /// None; a `sliding_window` is refused.
    None,
    /// All.
    All,
    /// Those from `max_window_layers` on, if `use_sliding_window` is set.
    Switched,
    /// All but every so-manieth.
    AllBut(usize),
    /// None; all but every so-manieth have a state.
    States(usize),
}

impl Windows {
    /// Whether some layers may slide.
    pub(crate) fn slide(self) -> bool {
        !matches!(self, Self::None | Self::States(_))
    }
}

const LLAMA: Family = Family {
    name: "Llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    around: &[],
    gguf: "llama",
    fixed_biases: false,
    qk_norm: false,
    default_head_dim: None,
    windows: Windows::None,
    gguf_interleaves_heads: true,
    fused_projections: false,
    is_gemma: false,
    has_experts: false,
    shares_expert: false,
    is_gpt_oss: false,
    default_rotary: 1.0,
    default_theta: 10_000.0,
    local_theta: None,
};

const QWEN2: Family = Family {
    name: "Qwen2",
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    gguf: "qwen2",
    fixed_biases: true,
    windows: Windows::Switched,
    gguf_interleaves_heads: false,
    ..LLAMA
};

const QWEN3: Family = Family {
    name: "Qwen3",
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    gguf: "qwen3",
    qk_norm: true,
    default_head_dim: Some(128),
    windows: Windows::Switched,
    gguf_interleaves_heads: false,
    ..LLAMA
};

/// In GGUF files, Mistral is a Llama.
const MISTRAL: Family = Family {
    name: "Mistral",
    model_type: "mistral",
    class: "MistralForCausalLM",
    windows: Windows::All,
    ..LLAMA
};

const PHI3: Family = Family {
    name: "Phi-3",
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    gguf: "phi3",
    windows: Windows::All,
    gguf_interleaves_heads: false,
    fused_projections: true,
    ..LLAMA
};

const GEMMA2: Family = Family {
    name: "Gemma 2",
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    gguf: "gemma2",
    default_head_dim: Some(256),
    windows: Windows::AllBut(2),
    gguf_interleaves_heads: false,
    is_gemma: true,
    ..LLAMA
};

const GEMMA3: Family = Family {
    name: "Gemma 3",
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    around: &["gemma3", "Gemma3ForConditionalGeneration"],
    gguf: "gemma3",
    qk_norm: true,
    windows: Windows::AllBut(6),
    default_theta: 1_000_000.0,
    local_theta: Some(10_000.0),
    ..GEMMA2
};

const QWEN3_MOE: Family = Family {
    name: "Qwen3-MoE",
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    gguf: "qwen3moe",
    default_head_dim: None,
    has_experts: true,
    ..QWEN3
};

const GPT_OSS: Family = Family {
    name: "gpt-oss",
    model_type: "gpt_oss",
    class: "GptOssForCausalLM",
    gguf: "gpt-oss",
    default_head_dim: Some(64),
    windows: Windows::AllBut(2),
    gguf_interleaves_heads: false,
    has_experts: true,
    is_gpt_oss: true,
    default_theta: 150_000.0,
    ..LLAMA
};

const QWEN35: Family = Family {
    name: "Qwen3.5",
    model_type: "qwen3_5_text",
    class: "Qwen3_5ForCausalLM",
    around: &["qwen3_5", "Qwen3_5ForConditionalGeneration"],
    gguf: "qwen35",
    default_head_dim: Some(256),
    windows: Windows::States(4),
    default_rotary: 0.25,
    ..QWEN3
};

const QWEN35_MOE: Family = Family {
    name: "Qwen3.5-MoE",
    model_type: "qwen3_5_moe_text",
    class: "Qwen3_5MoeForCausalLM",
    around: &["qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"],
    gguf: "qwen35moe",
    has_experts: true,
    shares_expert: true,
    ..QWEN35
};

impl Architecture {
    /// Every family.
    pub const ALL: [Self; 11] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Mistral,
        Self::Phi3,
        Self::Gemma2,
        Self::Gemma3,
        Self::Qwen3Moe,
        Self::GptOss,
        Self::Qwen35,
        Self::Qwen35Moe,
    ];

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
            Self::Mistral => &MISTRAL,
            Self::Phi3 => &PHI3,
            Self::Gemma2 => &GEMMA2,
            Self::Gemma3 => &GEMMA3,
            Self::Qwen3Moe => &QWEN3_MOE,
            Self::GptOss => &GPT_OSS,
            Self::Qwen35 => &QWEN35,
            Self::Qwen35Moe => &QWEN35_MOE,
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
            let by_gguf = Architecture::find(|other| other.gguf == family.gguf);
            let is_llama = by_gguf == Some(Architecture::Llama);
            for found in [
                Architecture::find(|other| other.model_type == family.model_type),
                Architecture::find(|other| other.class == family.class),
                by_gguf.filter(|_| !is_llama).or(Some(architecture)),
            ] {
                assert_eq!(found, Some(architecture));
            }
            for name in family.around {
                let found = Architecture::find(|other| other.around.contains(name));
                assert_eq!(found, Some(architecture));
            }
        }
    }
}
