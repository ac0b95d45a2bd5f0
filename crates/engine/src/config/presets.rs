//! Ready-made shapes for tests, examples and benchmarks.

use super::{Architecture, ModelConfig, Rope, RopeScaling};

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
            rope: Rope {
                theta: 10_000.0,
                scaling: RopeScaling::None,
            },
            tied_head: true,
            qkv_bias: false,
            attention_output_bias: false,
            qk_norm: false,
            bos: Some(1),
            eos: vec![2],
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
                theta: 100.0,
                scaling,
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
            rope: Rope {
                theta: 1_000_000.0,
                scaling: RopeScaling::None,
            },
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
            rope: Rope {
                theta: 1_000_000.0,
                scaling: RopeScaling::None,
            },
            qk_norm: true,
            ..Self::tiny_llama()
        }
    }

    /// Returns every tiny shape, so that a test can cover all architectures in one loop.
    #[must_use]
    pub fn tiny_models() -> [Self; 4] {
        [
            Self::tiny_llama(),
            Self::tiny_llama3(),
            Self::tiny_qwen2(),
            Self::tiny_qwen3(),
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
