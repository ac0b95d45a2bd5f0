//! A tokenizer as metadata of a GGUF file: the way back of [`Embedded`](super::Embedded).

use super::super::pattern;
use super::token_type;
use crate::{Error, Tokenizer};
use serde_json::Value;
use std::collections::HashMap;
use tinkrs_gguf::Contents;

/// The score of pieces that nothing is joined to: worse than all others.
const LAST: f32 = -1e9;

impl Tokenizer {
    /// Returns the tokenizer as the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// If it cannot be written as one.
    pub fn to_json(&self) -> Result<String, Error> {
        let text = self.inner().to_string(false);
        text.map_err(|error| Error::tokenizer(self.path(), error))
    }

    /// Adds the tokenizer to the metadata of a GGUF file, for a model with `size` tokens. Returns the token that
    /// it puts in front of texts, if it does.
    ///
    /// # Errors
    /// If there are more than `size` tokens, or the tokenizer is of a kind that GGUF files cannot describe.
    pub fn write_gguf(&self, size: usize, contents: &mut Contents) -> Result<Option<u32>, Error> {
        let json: Value = serde_json::from_str(&self.to_json()?)
            .map_err(|error| Error::tokenizer(self.path(), error))?;
        Source {
            tokenizer: self,
            json: &json,
        }
        .write(size, contents)
    }
}

struct Source<'a> {
    tokenizer: &'a Tokenizer,
    json: &'a Value,
}

impl Source<'_> {
    fn write(&self, size: usize, contents: &mut Contents) -> Result<Option<u32>, Error> {
        let model = &self.json["model"];
        if model["type"] != "BPE" {
            return Err(self.unsupported(format!("a tokenizer of type {}", model["type"])));
        }
        let steps = steps(&self.json["pre_tokenizer"], "pretokenizers");
        let is_byte_level = steps.iter().any(|step| step["type"] == "ByteLevel");
        let merges = self.merges()?;
        if is_byte_level {
            let name = pattern::gguf_name(&steps)
                .ok_or_else(|| self.unsupported("the way it cuts text into words".to_owned()))?;
            contents.text("tokenizer.ggml.model", "gpt2");
            contents.text("tokenizer.ggml.pre", name);
            self.vocabulary(size, contents, |_| token_type::NORMAL)?;
            let merges: Vec<String> = merges
                .iter()
                .map(|(left, right)| format!("{left} {right}"))
                .collect();
            contents.texts("tokenizer.ggml.merges", &merges);
        } else {
            let space_in_front = self.space_in_front(&steps)?;
            contents.text("tokenizer.ggml.model", "llama");
            contents.text("tokenizer.ggml.pre", "default");
            let tokens = self.vocabulary(size, contents, |piece| {
                let is_byte = piece.len() == 6 && piece.starts_with("<0x") && piece.ends_with('>');
                if is_byte {
                    token_type::BYTE
                } else {
                    token_type::NORMAL
                }
            })?;
            contents.f32s("tokenizer.ggml.scores", &scores(&tokens, &merges));
            contents.bool("tokenizer.ggml.add_space_prefix", space_in_front);
        }
        let [begin, end] = around(&self.json["post_processor"]);
        let begin = begin.and_then(|spelling| self.tokenizer.token_id(&spelling));
        contents.bool("tokenizer.ggml.add_bos_token", begin.is_some());
        contents.bool("tokenizer.ggml.add_eos_token", end.is_some());
        Ok(begin)
    }

    /// Adds the tokens and what each is.
    fn vocabulary(
        &self,
        size: usize,
        contents: &mut Contents,
        kind: impl Fn(&str) -> i32,
    ) -> Result<Vec<String>, Error> {
        // Room that the model's vocabulary has beyond its tokenizer's.
        let mut tokens: Vec<String> = (0..size).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![token_type::UNUSED; size];
        let mut put = |id: u64, piece: &str, kind: i32| {
            let place = usize::try_from(id).ok().filter(|place| *place < size);
            let place = place.ok_or_else(|| {
                let problem =
                    format!("token {id}, `{piece}`, is outside the model's {size} tokens");
                Error::tokenizer(self.tokenizer.path(), problem)
            })?;
            piece.clone_into(&mut tokens[place]);
            types[place] = kind;
            Ok::<(), Error>(())
        };
        let model = &self.json["model"];
        for (piece, id) in model["vocab"].as_object().into_iter().flatten() {
            put(id.as_u64().unwrap_or(u64::MAX), piece, kind(piece))?;
        }
        for token in self.json["added_tokens"].as_array().into_iter().flatten() {
            let piece = token["content"].as_str().unwrap_or_default();
            let kind = match token["special"] == true {
                true if model["unk_token"] == piece => token_type::UNKNOWN,
                true => token_type::CONTROL,
                false => token_type::USER_DEFINED,
            };
            put(token["id"].as_u64().unwrap_or(u64::MAX), piece, kind)?;
        }
        contents.texts("tokenizer.ggml.tokens", &tokens);
        contents.i32s("tokenizer.ggml.token_type", &types);
        let unknown = types.iter().position(|kind| *kind == token_type::UNKNOWN);
        if let Some(id) = unknown.and_then(|id| u32::try_from(id).ok()) {
            contents.u32("tokenizer.ggml.unknown_token_id", id);
        }
        Ok(tokens)
    }

    fn merges(&self) -> Result<Vec<(&str, &str)>, Error> {
        let merges = self.json["model"]["merges"].as_array();
        let merges: Option<Vec<_>> = merges.into_iter().flatten().map(pair).collect();
        merges.ok_or_else(|| Error::tokenizer(self.tokenizer.path(), "its merges are malformed"))
    }

    /// Whether a space is put in front of texts; an error if spaces are not written as SentencePiece does.
    fn space_in_front(&self, steps: &[&Value]) -> Result<bool, Error> {
        if let [only] = steps
            && only["type"] == "Metaspace"
        {
            return Ok(only["prepend_scheme"] != "never");
        }
        let normalizers = self::steps(&self.json["normalizer"], "normalizers");
        let is_spaced = normalizers
            .iter()
            .any(|step| step["type"] == "Replace" && step["content"] == "▁");
        if !steps.is_empty() || !is_spaced {
            return Err(self.unsupported("the way it writes spaces".to_owned()));
        }
        Ok(normalizers.iter().any(|step| step["type"] == "Prepend"))
    }

    fn unsupported(&self, what: String) -> Error {
        Error::Unsupported {
            path: self.tokenizer.path().to_owned(),
            what: format!("{what} in a GGUF file"),
            supported: "byte-level BPE of the families of GPT-2, Llama 3, Qwen, SmolLM, GPT-4o and Kimi, and \
                        SentencePiece's BPE",
        }
    }
}

/// Reads a merge, which older files write as one text.
fn pair(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(text) => text.split_once(' '),
        Value::Array(pair) => Some((pair.first()?.as_str()?, pair.get(1)?.as_str()?)),
        _ => None,
    }
}

/// Returns the steps of a member that is missing, one step, or a sequence.
fn steps<'a>(member: &'a Value, list: &str) -> Vec<&'a Value> {
    match member {
        Value::Null => Vec::new(),
        sequence if sequence["type"] == "Sequence" => {
            sequence[list].as_array().into_iter().flatten().collect()
        }
        one => vec![one],
    }
}

/// Scores that make SentencePiece join pieces in the order of the merges.
fn scores(tokens: &[String], merges: &[(&str, &str)]) -> Vec<f32> {
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, (left, right)) in merges.iter().enumerate() {
        places.entry(format!("{left}{right}")).or_insert(place);
    }
    let score = |token: &String| places.get(token).map_or(LAST, |place| -(*place as f32));
    tokens.iter().map(score).collect()
}

/// Returns the tokens that are put in front of and behind a text.
fn around(post_processor: &Value) -> [Option<String>; 2] {
    let processors = steps(post_processor, "processors");
    let template = processors
        .iter()
        .find(|step| step["type"] == "TemplateProcessing");
    let parts = template.and_then(|template| template["single"].as_array());
    let special = |part: Option<&Value>| {
        let name = part?["SpecialToken"]["id"].as_str()?;
        Some(name.to_owned())
    };
    let parts = parts.map_or([].as_slice(), Vec::as_slice);
    [special(parts.first()), special(parts.last())]
}
