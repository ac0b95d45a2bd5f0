//! How families of byte-level tokenizers cut text into parts, by the names that files use.
//!
//! The patterns are facts about tokenizers that exist: another pattern would make other tokens.

use super::document::Cut;
use serde_json::Value;

const GPT_2: Cut = Cut {
    pattern: None,
    digits_apart: false,
    nfc: false,
    whole_parts: false,
};

/// Words, up to three digits, punctuation, line breaks, white space.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with single digits.
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Words end where small letters do.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with Chinese characters apart from other letters.
pub(super) const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The names that [`of_gguf`] knows, for messages.
pub(super) const GGUF_NAMES: &str =
    "gpt-2, llama-bpe, qwen2, smollm, starcoder, command-r, glm4, gpt-4o, kimi-k2 and their kin";

/// Returns how the tokenizers of a GGUF file's `tokenizer.ggml.pre` cut text.
pub(super) fn of_gguf(name: &str) -> Option<Cut> {
    Some(match name {
        "gpt-2" | "phi-2" | "olmo" | "mpt" => GPT_2,
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => Cut {
            digits_apart: true,
            ..GPT_2
        },
        "qwen2" => Cut {
            pattern: Some(QWEN_2),
            nfc: true,
            ..GPT_2
        },
        "llama3" | "llama-v3" | "llama-bpe" | "glm4" | "chatglm-bpe" => Cut {
            pattern: Some(LLAMA_3),
            whole_parts: true,
            ..GPT_2
        },
        "gpt-4o" | "llama4" => Cut {
            pattern: Some(GPT_4O),
            whole_parts: true,
            ..GPT_2
        },
        "kimi-k2" => Cut {
            pattern: Some(KIMI),
            whole_parts: true,
            ..GPT_2
        },
        _ => return None,
    })
}

/// Returns the `tokenizer.ggml.pre` of a tokenizer with these steps of cutting text, as `tokenizer.json` has them.
pub(super) fn gguf_name(steps: &[&Value]) -> Option<&'static str> {
    let (last, before) = steps.split_last()?;
    if last["type"] != "ByteLevel" || last["add_prefix_space"] == true {
        return None;
    }
    let own_pattern = last["use_regex"] != false;
    match before {
        [] if own_pattern => Some("gpt-2"),
        [digits] if own_pattern => {
            let apart = digits["type"] == "Digits" && digits["individual_digits"] == true;
            apart.then_some("smollm")
        }
        [split] if split["type"] == "Split" && !own_pattern => {
            match split["pattern"]["Regex"].as_str()? {
                QWEN_2 => Some("qwen2"),
                LLAMA_3 => Some("llama-bpe"),
                GPT_4O => Some("gpt-4o"),
                KIMI => Some("kimi-k2"),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns whether tokenizers of this `tokenizer.ggml.pre` begin texts with a token unless a file says
/// otherwise.
pub(super) fn begins_text(name: &str) -> bool {
    matches!(name, "llama3" | "llama-v3" | "llama-bpe")
}
