//! Ready-made shapes for tests, examples and benchmarks.

use super::{
    Activation, Architecture, DeltaRule, Experts, Features, LayerKind, ModelConfig, Rope,
    RopeScaling,
};

impl ModelConfig {
    /// Returns a Llama of some 30 thousand parameters: grouped heads, plain rotation, tied head.
    #[must_use]
    pub fn tiny_llama() -> Self {
        Self {
            architecture: Architecture::Llama,
            hidden: 32,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            ffn: 48,
            vocab: 96,
            max_context: 128,
            rms_eps: 1e-5,
            rope: Rope::plain(10_000.0),
            tied_head: true,
            qkv_bias: false,
            attention_output_bias: false,
            qk_norm: false,
            bos: Some(1),
            eos: vec![2],
            features: Features::default(),
        }
    }

    /// Returns a Llama with Llama-3 rotary scaling and a head of its own.
    ///
    /// The base is small so that, of its four rotating pairs, one is kept, one blended and two
    /// divided.
    #[must_use]
    pub fn tiny_llama3() -> Self {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 32,
        };
        Self {
            rope: Rope {
                scaling,
                ..Rope::plain(100.0)
            },
            tied_head: false,
            ..Self::tiny_llama()
        }
    }

    /// Returns a Qwen2: biases on queries, keys and values.
    #[must_use]
    pub fn tiny_qwen2() -> Self {
        Self {
            architecture: Architecture::Qwen2,
            rms_eps: 1e-6,
            rope: Rope::plain(1_000_000.0),
            qkv_bias: true,
            ..Self::tiny_llama()
        }
    }

    /// Returns a Qwen3: norms on query and key heads, heads wider than `hidden / heads`.
    #[must_use]
    pub fn tiny_qwen3() -> Self {
        Self {
            architecture: Architecture::Qwen3,
            head_dim: 16,
            rms_eps: 1e-6,
            rope: Rope::plain(1_000_000.0),
            qk_norm: true,
            ..Self::tiny_llama()
        }
    }

    /// Returns a Mistral whose layers see seven positions.
    #[must_use]
    pub fn tiny_mistral() -> Self {
        Self {
            architecture: Architecture::Mistral,
            features: Features {
                layer_kinds: vec![LayerKind::Sliding],
                window: Some(7),
                ..Features::default()
            },
            ..Self::tiny_llama()
        }
    }

    /// Returns a Phi-3: fused projections, half of each head rotated, divided frequencies.
    #[must_use]
    pub fn tiny_phi3() -> Self {
        let attention_factor = (1.0 + 2f64.ln() / 128f64.ln()).sqrt();
        Self {
            architecture: Architecture::Phi3,
            rope: Rope {
                scaling: RopeScaling::Divided {
                    divisors: vec![1.0, 1.5],
                    attention_factor,
                },
                dimensions: Some(4),
                ..Rope::plain(10_000.0)
            },
            tied_head: false,
            features: Features {
                fused_projections: true,
                ..Features::default()
            },
            ..Self::tiny_llama()
        }
    }

    /// Returns a Gemma 2: bounds of scores that are small enough to matter.
    #[must_use]
    pub fn tiny_gemma2() -> Self {
        Self {
            architecture: Architecture::Gemma2,
            rms_eps: 1e-6,
            features: Features {
                layer_kinds: vec![LayerKind::Sliding, LayerKind::Full],
                window: Some(6),
                activation: Activation::GeGlu,
                norms_add_one: true,
                output_norms: true,
                scaled_embedding: true,
                query_scalar: Some(12.0),
                attention_softcap: Some(2.0),
                final_softcap: Some(3.0),
                ..Features::default()
            },
            ..Self::tiny_llama()
        }
    }

    /// Returns a Gemma 3: two rotations, and norms on query and key heads.
    #[must_use]
    pub fn tiny_gemma3() -> Self {
        Self {
            architecture: Architecture::Gemma3,
            rope: Rope {
                scaling: RopeScaling::Linear { factor: 4.0 },
                ..Rope::plain(1_000_000.0)
            },
            qk_norm: true,
            features: Features {
                local_rope: Some(Rope::plain(10_000.0)),
                query_scalar: Some(16.0),
                attention_softcap: None,
                final_softcap: None,
                ..Self::tiny_gemma2().features
            },
            ..Self::tiny_gemma2()
        }
    }

    /// Returns a Qwen3 with five experts, of which two compute each token.
    #[must_use]
    pub fn tiny_qwen3_moe() -> Self {
        Self {
            architecture: Architecture::Qwen3Moe,
            features: Features {
                experts: Some(Experts {
                    count: 5,
                    per_token: 2,
                    ffn: 24,
                    normalised: true,
                    biases: false,
                    shared: None,
                }),
                ..Features::default()
            },
            ..Self::tiny_qwen3()
        }
    }

    /// Returns a gpt-oss: four experts with biases, sinks, stretched rotation.
    #[must_use]
    pub fn tiny_gpt_oss() -> Self {
        Self {
            architecture: Architecture::GptOss,
            rope: Rope {
                scaling: RopeScaling::Yarn {
                    factor: 8.0,
                    beta_fast: 8.0,
                    beta_slow: 1.0,
                    original_context: 16,
                    attention_factor: 0.1 * 8f64.ln() + 1.0,
                    truncate: false,
                },
                ..Rope::plain(100.0)
            },
            ffn: 32,
            tied_head: false,
            qkv_bias: true,
            attention_output_bias: true,
            features: Features {
                layer_kinds: vec![LayerKind::Sliding, LayerKind::Full],
                window: Some(6),
                activation: Activation::ClampedSwiGlu,
                sinks: true,
                experts: Some(Experts {
                    count: 4,
                    per_token: 2,
                    ffn: 32,
                    normalised: true,
                    biases: true,
                    shared: None,
                }),
                ..Features::default()
            },
            ..Self::tiny_llama()
        }
    }

    /// Returns a Qwen3.5: a layer with a state, and one with gated attention.
    #[must_use]
    pub fn tiny_qwen35() -> Self {
        Self {
            architecture: Architecture::Qwen35,
            rope: Rope {
                dimensions: Some(4),
                ..Rope::plain(10_000.0)
            },
            features: Features {
                layer_kinds: vec![LayerKind::Delta, LayerKind::Full],
                norms_add_one: true,
                output_gate: true,
                delta: Some(DeltaRule {
                    key_heads: 2,
                    value_heads: 4,
                    key_dim: 6,
                    value_dim: 8,
                    kernel: 4,
                }),
                ..Features::default()
            },
            ..Self::tiny_qwen3()
        }
    }

    /// Returns a Qwen3.5 with five experts, and one more that computes every token.
    #[must_use]
    pub fn tiny_qwen35_moe() -> Self {
        let dense = Self::tiny_qwen35();
        Self {
            architecture: Architecture::Qwen35Moe,
            ffn: 24,
            tied_head: false,
            features: Features {
                experts: Some(Experts {
                    count: 5,
                    per_token: 2,
                    ffn: 24,
                    normalised: true,
                    biases: false,
                    shared: Some(32),
                }),
                ..dense.features
            },
            ..dense
        }
    }

    /// Returns every tiny shape, so that a test can cover all architectures in one loop.
    #[must_use]
    pub fn tiny_models() -> [Self; 12] {
        [
            Self::tiny_llama(),
            Self::tiny_llama3(),
            Self::tiny_qwen2(),
            Self::tiny_qwen3(),
            Self::tiny_mistral(),
            Self::tiny_phi3(),
            Self::tiny_gemma2(),
            Self::tiny_gemma3(),
            Self::tiny_qwen3_moe(),
            Self::tiny_gpt_oss(),
            Self::tiny_qwen35(),
            Self::tiny_qwen35_moe(),
        ]
    }

    /// Returns the 95-million-parameter Qwen3 shape that benchmarks use.
    #[must_use]
    pub fn bench_95m() -> Self {
        Self {
            hidden: 768,
            layers: 12,
            heads: 12,
            kv_heads: 4,
            head_dim: 64,
            ffn: 2304,
            vocab: 16_384,
            max_context: 2048,
            ..Self::tiny_qwen3()
        }
    }

    /// Returns the 6.8-million-parameter Qwen3 shape that benchmarks use.
    #[must_use]
    pub fn bench_7m() -> Self {
        Self {
            hidden: 256,
            layers: 6,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            ffn: 768,
            vocab: 8192,
            max_context: 2048,
            ..Self::tiny_qwen3()
        }
    }
}
