//! Tokenizers in tiktoken's files: a base64 token and its rank on each line.
//!
//! The file has no more than that. Which tokens are special is in the `tokenizer_config.json` beside
//! it, and how text is cut into parts usually only in the model's own Python code: it is known here for
//! some families, and `pat_str` in `tokenizer_config.json` says it for any other.
//!
//! tiktoken joins the two neighbours whose whole has the lowest rank. That is BPE with a merge for each
//! way to cut a token into two, in the order of the tokens' ranks.

use super::document::{Added, Cut, Document, Kind, to_letters};
use super::pattern::KIMI;
use crate::{Error, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// More than any vocabulary has.
const MAX_RANK: u32 = 1 << 24;

/// How many ids a family keeps for special tokens, behind those of the file.
const KIMI_SPECIAL_TOKENS: u32 = 256;

/// Loads a tiktoken file and the settings beside it.
pub(super) fn load(path: &Path) -> Result<tokenizers::Tokenizer, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
    let ranks = read_ranks(&text).map_err(|problem| Error::tokenizer(path, problem))?;
    let settings = Settings::read(path)?;
    let after = ranks.last().map_or(0, |(_, rank)| rank + 1);
    let problem = settings.misfit(after);
    problem.map_or(Ok(()), |problem| Err(Error::tokenizer(path, problem)))?;

    let mut document = Document {
        merges: merges(&ranks),
        kind: Kind::ByteLevel(Cut {
            whole_parts: true,
            ..Cut::default()
        }),
        ..Document::default()
    };
    for (bytes, rank) in &ranks {
        let piece = to_letters(bytes);
        document.vocab.insert(piece, Value::from(*rank));
    }
    let mut special = settings.special;
    for id in after..after + settings.reserved {
        let reserved = || Added {
            id,
            content: format!("<|reserved_token_{id}|>"),
            special: true,
            lstrip: false,
            rstrip: false,
        };
        special.entry(id).or_insert_with(reserved);
    }
    for (id, token) in special {
        document
            .vocab
            .insert(token.content.clone(), Value::from(id));
        if settings.begin.as_ref() == Some(&token.content) {
            document.begin = Some((id, token.content.clone()));
        }
        document.added.push(token);
    }
    let built = document.build(Some(settings.pattern));
    built.map_err(|error| Error::tokenizer(path, error))
}

/// Tokens by rank, the lowest first.
fn read_ranks(text: &str) -> Result<Vec<(Vec<u8>, u32)>, String> {
    let mut ranks = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() {
            continue;
        }
        let read = || {
            let (token, rank) = line.trim().split_once(' ')?;
            let rank = rank.parse().ok().filter(|rank| *rank < MAX_RANK)?;
            let token = STANDARD.decode(token).ok()?;
            (!token.is_empty()).then_some((token, rank))
        };
        let wrong = || format!("line {number} is not a token in base64 and its rank");
        ranks.push(read().ok_or_else(wrong)?);
    }
    if ranks.is_empty() {
        return Err("it has no tokens".to_owned());
    }
    ranks.sort_by_key(|(_, rank)| *rank);
    if let Some(twice) = ranks.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        return Err(format!("two tokens have the rank {}", twice[0].1));
    }
    let tokens: HashSet<&[u8]> = ranks.iter().map(|(token, _)| token.as_slice()).collect();
    if tokens.len() < ranks.len() {
        return Err("a token has two ranks".to_owned());
    }
    // Text with such a byte would have no tokens at all. A file that was cut off early looks so, too.
    if let Some(byte) = (0..=u8::MAX).find(|byte| !tokens.contains(&[*byte][..])) {
        return Err(format!(
            "the byte {byte} has no token: is the file cut off?"
        ));
    }
    Ok(ranks)
}

/// Returns a pair for each way to cut a token into two tokens, in the order of the tokens' ranks.
fn merges(ranks: &[(Vec<u8>, u32)]) -> Vec<[String; 2]> {
    let by_bytes: HashMap<&[u8], u32> = ranks
        .iter()
        .map(|(bytes, rank)| (bytes.as_slice(), *rank))
        .collect();
    let mut merges = Vec::new();
    for (bytes, _) in ranks {
        for at in 1..bytes.len() {
            let (left, right) = bytes.split_at(at);
            if by_bytes.contains_key(left) && by_bytes.contains_key(right) {
                merges.push([to_letters(left), to_letters(right)]);
            }
        }
    }
    merges
}

/// What the file beside the tokens says.
struct Settings {
    pattern: String,
    special: BTreeMap<u32, Added>,
    /// How many ids behind the last rank are special tokens, named or not.
    reserved: u32,
    /// The token that each text begins with.
    begin: Option<String>,
}

impl Settings {
    fn read(tokens: &Path) -> Result<Self, Error> {
        let path = tokens.with_file_name("tokenizer_config.json");
        let text = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
        let config = Json::parse(&text).map_err(|error| Error::tokenizer(&path, error))?;
        let is_kimi = config.get("auto_map").is_some_and(|map| {
            let code = map.to_string();
            code.contains("tokenization_kimi") || code.contains("tokenization_moonshot")
        });
        let pattern = match config.get("pat_str").and_then(Json::as_str) {
            Some(pattern) => pattern.to_owned(),
            None if is_kimi => KIMI.to_owned(),
            None => {
                return Err(Error::Unsupported {
                    path,
                    what: "a tiktoken file without its pattern".to_owned(),
                    supported: "Kimi's own, and any with `pat_str` in this file",
                });
            }
        };
        let begins = config.get("add_bos_token") == Some(&Json::Bool(true));
        Ok(Self {
            pattern,
            special: special_tokens(&config)
                .ok_or_else(|| Error::tokenizer(&path, "`added_tokens_decoder` is malformed"))?,
            reserved: if is_kimi { KIMI_SPECIAL_TOKENS } else { 0 },
            begin: begins.then(|| content(config.get("bos_token")?)).flatten(),
        })
    }
}

impl Settings {
    /// Says why these are not the settings of a file whose ranks end before `after`, if they are not. A file that was
    /// cut off between two lines shows in nothing else.
    fn misfit(&self, after: u32) -> Option<String> {
        let (first, last) = (self.special.keys().next()?, self.special.keys().last()?);
        let end = after + self.reserved;
        let is_outside = self.reserved > 0 && (*first < after || *last >= end);
        is_outside.then(|| {
            format!(
                "it has {after} tokens, so special tokens have the ids {after} to {}, and tokenizer_config.json has \
                 one with the id {}: is the file cut off?",
                end - 1,
                if *first < after { first } else { last }
            )
        })
    }
}

fn special_tokens(config: &Json) -> Option<BTreeMap<u32, Added>> {
    let members = match config.get("added_tokens_decoder") {
        None => return Some(BTreeMap::new()),
        Some(Json::Object(members)) => members,
        Some(_) => return None,
    };
    let token = |(id, token): &(String, Json)| {
        let flag = |name: &str| token.get(name) == Some(&Json::Bool(true));
        let id = id.parse().ok()?;
        let added = Added {
            id,
            content: content(token)?,
            special: flag("special"),
            lstrip: flag("lstrip"),
            rstrip: flag("rstrip"),
        };
        Some((id, added))
    };
    members.iter().map(token).collect()
}

/// Returns the text of a token: itself, or its member.
fn content(token: &Json) -> Option<String> {
    let text = token.as_str().or_else(|| token.get("content")?.as_str());
    text.map(str::to_owned)
}

#[cfg(test)]
mod tests;
