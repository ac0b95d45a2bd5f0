//! Tokenizers of other files, put together as the `tokenizer.json` that would do the same.

use super::token_bytes::LETTERS;
use crate::BoxError;
use serde_json::{Map, Value, json};

/// Byte-pair encoding, to be written as a `tokenizer.json`.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// Pieces and their ids, added tokens included: their ids are then kept.
    pub(super) vocab: Map<String, Value>,
    /// Pairs of pieces to join, the first first.
    pub(super) merges: Vec<[String; 2]>,
    /// Tokens that are found in text before anything else.
    pub(super) added: Vec<Added>,
    /// The tokens around each text.
    pub(super) begin: Option<(u32, String)>,
    pub(super) end: Option<(u32, String)>,
    pub(super) kind: Kind,
}

/// A token that is found in text before anything else.
#[derive(Debug)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    pub(super) special: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
}

/// How bytes are written as text, and how text is cut before pieces are joined.
#[derive(Debug)]
pub(super) enum Kind {
    /// GPT-2's letters for bytes.
    ByteLevel(Cut),
    /// SentencePiece's: `▁` for a space, `<0x0A>` for a byte that no piece has.
    SentencePiece {
        unknown: Option<String>,
        space_in_front: bool,
    },
}

impl Default for Kind {
    fn default() -> Self {
        Self::ByteLevel(Cut::default())
    }
}

/// How text is cut into the parts within which pieces are joined.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cut {
    /// A pattern of parts; GPT-2's own if there is none.
    pub(super) pattern: Option<&'static str>,
    /// Whether each digit is a part, before the pattern is applied.
    pub(super) digits_apart: bool,
    /// Whether text is normalised to composed characters first.
    pub(super) nfc: bool,
    /// Whether a part that is a piece as a whole is taken without looking at the merges.
    pub(super) whole_parts: bool,
}

impl Document {
    /// Builds the tokenizer.
    pub(super) fn build(self, pattern: Option<String>) -> Result<tokenizers::Tokenizer, BoxError> {
        let added = self.added.iter().map(|token| {
            json!({"id": token.id, "content": token.content, "special": token.special,
                "lstrip": token.lstrip, "rstrip": token.rstrip,
                "single_word": false, "normalized": false})
        });
        let (normalizer, pre_tokenizer, decoder, model) = self.kind.members(pattern);
        let mut model = model;
        model["type"] = "BPE".into();
        model["vocab"] = Value::Object(self.vocab);
        model["merges"] = json!(self.merges);
        let document = json!({
            "version": "1.0",
            "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": around(self.begin.as_ref(), self.end.as_ref()),
            "decoder": decoder,
            "model": model,
        });
        tokenizers::Tokenizer::from_bytes(serde_json::to_vec(&document)?)
    }
}

impl Kind {
    /// Returns the normalizer, pre-tokenizer, decoder, and what is special about the model.
    fn members(&self, pattern: Option<String>) -> (Value, Value, Value, Value) {
        match self {
            Self::ByteLevel(cut) => {
                let pattern = pattern.or_else(|| cut.pattern.map(str::to_owned));
                let mut steps = Vec::new();
                if cut.digits_apart {
                    steps.push(json!({"type": "Digits", "individual_digits": true}));
                }
                if let Some(pattern) = &pattern {
                    steps.push(json!({"type": "Split", "pattern": {"Regex": pattern},
                        "behavior": "Isolated", "invert": false}));
                }
                steps.push(byte_level(pattern.is_none()));
                let normalizer = if cut.nfc {
                    json!({"type": "NFC"})
                } else {
                    Value::Null
                };
                (
                    normalizer,
                    json!({"type": "Sequence", "pretokenizers": steps}),
                    byte_level(true),
                    json!({"ignore_merges": cut.whole_parts}),
                )
            }
            Self::SentencePiece {
                unknown,
                space_in_front,
            } => {
                let replace = |from: &str, to: &str| {
                    json!({"type": "Replace",
                    "pattern": {"String": from}, "content": to})
                };
                let mut before = vec![replace(" ", "▁")];
                let mut after = vec![
                    replace("▁", " "),
                    json!({"type": "ByteFallback"}),
                    json!({"type": "Fuse"}),
                ];
                if *space_in_front {
                    before.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
                    after.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
                }
                (
                    json!({"type": "Sequence", "normalizers": before}),
                    Value::Null,
                    json!({"type": "Sequence", "decoders": after}),
                    json!({"unk_token": unknown, "fuse_unk": true, "byte_fallback": true}),
                )
            }
        }
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex})
}

/// Returns the step that puts tokens around each text.
fn around(begin: Option<&(u32, String)>, end: Option<&(u32, String)>) -> Value {
    if begin.is_none() && end.is_none() {
        return Value::Null;
    }
    let special = |token: Option<&(u32, String)>, type_id: u32| {
        token.map(|(_, name)| json!({"SpecialToken": {"id": name, "type_id": type_id}}))
    };
    let text = |id: &str, type_id: u32| {
        let text = json!({"Sequence": {"id": id, "type_id": type_id}});
        let parts = [special(begin, type_id), Some(text), special(end, type_id)];
        parts.into_iter().flatten().collect::<Vec<_>>()
    };
    let tokens: Map<String, Value> = [begin, end]
        .into_iter()
        .flatten()
        .map(|(id, name)| {
            (
                name.clone(),
                json!({"id": name, "ids": [id], "tokens": [name]}),
            )
        })
        .collect();
    let pair = [text("A", 0), text("B", 1)].concat();
    json!({"type": "TemplateProcessing", "single": text("A", 0), "pair": pair,
        "special_tokens": tokens})
}

/// Writes bytes in GPT-2's letters.
pub(super) fn to_letters(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| LETTERS[usize::from(*byte)])
        .collect()
}
