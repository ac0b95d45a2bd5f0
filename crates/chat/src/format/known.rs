//! The formats that can be asked for by name, and which models use them.
//!
//! The names are those of the recipes that users come from (`renderer_name`), so that a name from there
//! works here. `conformance/formats/check` compares both lists, and the models', with the package.

use super::{
    ChatMl, DeepSeekV3, DeepSeekV4, Effort, Format, Glm5, GptOss, KimiK2, KimiVersion, Llama3,
    Nemotron3, NemotronVersion, Qwen3, Qwen35, QwenVersion, RoleColon, TmlV0,
};
use std::fmt;
use std::sync::Arc;

/// A format that can be asked for by name.
#[derive(Clone, Copy)]
pub struct Known {
    /// The name to ask for it by, in lower case.
    pub id: &'static str,
    /// Makes the format with the settings that its name says.
    pub make: fn() -> Arc<dyn Format>,
    /// Whether a model of this name, in lower case, uses it, if no entry before it does.
    fits: fn(&str) -> bool,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Known").field(&self.id).finish()
    }
}

/// Returns the format of a model of a family that we know, from the name that the hosted service has
/// for it.
///
/// Base models get [`RoleColon`]. For a family that is not known there is no good guess: use the
/// model's own template ([`Renderer::from_path`](crate::Renderer::from_path)).
pub fn of_model(name: &str) -> Option<Arc<dyn Format>> {
    known_of_model(name).map(|known| (known.make)())
}

/// Returns the entry of a model's format.
pub fn known_of_model(name: &str) -> Option<&'static Known> {
    let name = name.to_ascii_lowercase();
    KNOWN.iter().find(|known| (known.fits)(&name))
}

/// Returns the format of a name in [`KNOWN`].
pub fn by_name(name: &str) -> Option<Arc<dyn Format>> {
    let known = KNOWN.iter().find(|known| known.id == name);
    known.map(|known| (known.make)())
}

const fn known(id: &'static str, make: fn() -> Arc<dyn Format>, fits: fn(&str) -> bool) -> Known {
    Known { id, make, fits }
}

/// An entry that no model uses unless it is asked for.
const fn variant(id: &'static str, make: fn() -> Arc<dyn Format>) -> Known {
    known(id, make, |_| false)
}

/// All formats with a name, in the order in which a model's name is tried on them.
pub const KNOWN: &[Known] = &[
    known(
        "role_colon",
        || Arc::new(RoleColon),
        |model| {
            let is_llama_base = model.contains("llama-3") && !model.contains("instruct");
            model.contains("base") || is_llama_base
        },
    ),
    known(
        "llama3",
        || Arc::new(Llama3),
        |model| model.contains("llama-3"),
    ),
    known(
        "qwen3",
        || Arc::new(Qwen3 { thinking: true }),
        |model| model.contains("qwen3-") && !model.contains("instruct"),
    ),
    variant("qwen3_disable_thinking", || {
        Arc::new(Qwen3 { thinking: false })
    }),
    // Those of Qwen3 that are only instructed have no thinking in their template.
    known(
        "chatml",
        || Arc::new(ChatMl),
        |model| {
            let families = ["qwen2", "smollm2", "minimind2"];
            families.iter().any(|family| model.contains(family))
        },
    ),
    known(
        "qwen3_instruct",
        || Arc::new(ChatMl),
        |model| model.contains("qwen3-") && !model.contains("-vl-"),
    ),
    known(
        "qwen3_vl_instruct",
        || Arc::new(ChatMl),
        |model| model.contains("qwen3-vl-"),
    ),
    known(
        "qwen3_5",
        || Arc::new(Qwen35::new(QwenVersion::V35)),
        |model| model.contains("qwen3.5"),
    ),
    variant("qwen3_5_disable_thinking", || {
        Arc::new(Qwen35 {
            thinking: false,
            ..Qwen35::new(QwenVersion::V35)
        })
    }),
    variant("qwen3_5_preserve_thinking", || {
        Arc::new(Qwen35 {
            preserve_thinking: true,
            ..Qwen35::new(QwenVersion::V35)
        })
    }),
    known(
        "qwen3_6",
        || Arc::new(Qwen35::new(QwenVersion::V36)),
        |model| model.contains("qwen3.6"),
    ),
    known(
        "qwen3_8_xhigh_reasoning",
        || Arc::new(Qwen35::new(QwenVersion::V38)),
        |model| model.contains("qwen3.8"),
    ),
    variant("qwen3_8_medium_reasoning", || {
        Arc::new(Qwen35 {
            effort: Effort::Medium,
            ..Qwen35::new(QwenVersion::V38)
        })
    }),
    variant("qwen3_8_low_reasoning", || {
        Arc::new(Qwen35 {
            effort: Effort::Low,
            ..Qwen35::new(QwenVersion::V38)
        })
    }),
    variant("qwen3_8_disable_thinking", || {
        Arc::new(Qwen35 {
            thinking: false,
            ..Qwen35::new(QwenVersion::V38)
        })
    }),
    known(
        "deepseekv3",
        || Arc::new(DeepSeekV3 { thinking: false }),
        |model| model.contains("deepseek-v3.1"),
    ),
    variant("deepseekv3_disable_thinking", || {
        Arc::new(DeepSeekV3 { thinking: false })
    }),
    variant("deepseekv3_thinking", || {
        Arc::new(DeepSeekV3 { thinking: true })
    }),
    known(
        "deepseekv4_1",
        || Arc::new(DeepSeekV4::default()),
        |model| model.contains("deepseek-v4.1"),
    ),
    variant("deepseekv4_1_low_reasoning", || {
        Arc::new(DeepSeekV4 {
            effort: Effort::Low,
            ..DeepSeekV4::default()
        })
    }),
    variant("deepseekv4_1_max_reasoning", || {
        Arc::new(DeepSeekV4 {
            effort: Effort::Max,
            ..DeepSeekV4::default()
        })
    }),
    variant("deepseekv4_1_disable_thinking", || {
        Arc::new(DeepSeekV4 {
            thinking: false,
            ..DeepSeekV4::default()
        })
    }),
    variant("deepseekv4_1_preserve_thinking", || {
        Arc::new(DeepSeekV4 {
            preserve_thinking: true,
            ..DeepSeekV4::default()
        })
    }),
    known(
        "gpt_oss_no_sysprompt",
        || Arc::new(GptOss::default()),
        |model| model.contains("gpt-oss"),
    ),
    variant("gpt_oss_low_reasoning", || Arc::new(gpt_oss(Effort::Low))),
    variant("gpt_oss_medium_reasoning", || {
        Arc::new(gpt_oss(Effort::Medium))
    }),
    variant("gpt_oss_high_reasoning", || Arc::new(gpt_oss(Effort::High))),
    known(
        "kimi_k2",
        || Arc::new(KimiK2::new(KimiVersion::K2)),
        |model| model.contains("kimi-k2-thinking"),
    ),
    known(
        "kimi_k25",
        || Arc::new(KimiK2::new(KimiVersion::K25)),
        |model| model.contains("kimi-k2.5"),
    ),
    variant("kimi_k25_disable_thinking", || Arc::new(quiet_kimi())),
    known(
        "kimi_k26",
        || Arc::new(KimiK2::new(KimiVersion::K25)),
        |model| model.contains("kimi-k2.6"),
    ),
    variant("kimi_k26_disable_thinking", || Arc::new(quiet_kimi())),
    variant("kimi_k26_preserve_thinking", || {
        Arc::new(KimiK2 {
            preserve_thinking: true,
            ..KimiK2::new(KimiVersion::K25)
        })
    }),
    known(
        "glm5_3_max_reasoning",
        || Arc::new(Glm5::default()),
        |model| model.contains("glm-5.3"),
    ),
    variant("glm5_3_low_reasoning", || {
        Arc::new(Glm5 {
            effort: Effort::Low,
            ..Glm5::default()
        })
    }),
    variant("glm5_3_high_reasoning", || {
        Arc::new(Glm5 {
            effort: Effort::High,
            ..Glm5::default()
        })
    }),
    known(
        "nemotron3",
        || Arc::new(Nemotron3::new(NemotronVersion::Nano)),
        |model| model.contains("nemotron-3-nano") || model.contains("nemotron-3-super"),
    ),
    variant("nemotron3_low_thinking", || {
        Arc::new(Nemotron3 {
            effort: Effort::Low,
            ..Nemotron3::new(NemotronVersion::Nano)
        })
    }),
    variant("nemotron3_disable_thinking", || {
        Arc::new(Nemotron3 {
            thinking: false,
            ..Nemotron3::new(NemotronVersion::Nano)
        })
    }),
    variant("nemotron3_preserve_thinking", || {
        Arc::new(Nemotron3 {
            preserve_thinking: true,
            ..Nemotron3::new(NemotronVersion::Nano)
        })
    }),
    known(
        "nemotron3_ultra",
        || Arc::new(Nemotron3::new(NemotronVersion::Ultra)),
        |model| model.contains("nemotron-3-ultra") || model.contains("nemotron-3.5"),
    ),
    variant("nemotron3_ultra_disable_thinking", || {
        Arc::new(Nemotron3 {
            thinking: false,
            ..Nemotron3::new(NemotronVersion::Ultra)
        })
    }),
    variant("nemotron3_ultra_medium_thinking", || {
        Arc::new(Nemotron3 {
            effort: Effort::Medium,
            ..Nemotron3::new(NemotronVersion::Ultra)
        })
    }),
    variant("nemotron3_ultra_preserve_thinking", || {
        Arc::new(Nemotron3 {
            preserve_thinking: true,
            ..Nemotron3::new(NemotronVersion::Ultra)
        })
    }),
    known(
        "tml_v0",
        || Arc::new(TmlV0::default()),
        |model| model.contains("inkling"),
    ),
];

fn gpt_oss(effort: Effort) -> GptOss {
    GptOss {
        effort: Some(effort),
        ..GptOss::default()
    }
}

fn quiet_kimi() -> KimiK2 {
    KimiK2 {
        thinking: false,
        ..KimiK2::new(KimiVersion::K25)
    }
}
