//! Texts as they are drawn: up to a stop text, and of single tokens.

use std::sync::Arc;

use super::found;
use crate::error::ApiError;

/// Lets a text pass up to the first of several stop texts, piece by piece. What may be the beginning of one is held
/// back until it is known.
#[derive(Clone, Debug)]
pub(crate) struct StopCut {
    stops: Arc<[String]>,
    held: String,
    found: Option<usize>,
}

impl StopCut {
    pub(crate) fn new(stops: &Arc<[String]>) -> Self {
        Self {
            stops: Arc::clone(stops),
            held: String::new(),
            found: None,
        }
    }

    /// Takes the next piece, and returns what is certain to come before any stop text.
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        let found = self.stops.iter().enumerate();
        let found = found.filter_map(|(index, stop)| Some((self.held.find(stop)?, index)));
        if let Some((place, index)) = found.min() {
            self.found = Some(index);
            self.held.truncate(place);
            return std::mem::take(&mut self.held);
        }
        let begun = self.stops.iter().map(|stop| begun(&self.held, stop));
        let certain = self.held.len() - begun.max().unwrap_or(0);
        let rest = self.held.split_off(certain);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns what was held back, now that nothing follows.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Returns the stop text that came, if one did.
    pub(crate) fn found(&self) -> Option<&str> {
        self.found.map(|index| self.stops[index].as_str())
    }

    /// Cuts a whole text. Returns it with the stop text that came.
    pub(crate) fn cut(stops: &Arc<[String]>, text: &str) -> (String, Option<String>) {
        let mut cut = Self::new(stops);
        let mut kept = cut.push(text);
        kept.push_str(&cut.finish());
        let found = cut.found().map(ToOwned::to_owned);
        (kept, found)
    }
}

/// What the request had begun the answer with, which is not sent back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefill(pub(crate) String);

impl Prefill {
    /// Returns what a text has beyond it.
    pub(crate) fn skip<'a>(&mut self, text: &'a str) -> &'a str {
        if let Some(rest) = text.strip_prefix(self.0.as_str()) {
            self.0.clear();
            return rest;
        }
        if self.0.starts_with(text) {
            self.0.drain(..text.len());
            return "";
        }
        self.0.clear();
        text
    }
}

/// Most stop texts of a request.
const MOST_STOPS: usize = 16;
/// Longest stop text, in bytes.
const LONGEST_STOP: usize = 1024;

/// Takes the stop texts of a request, which were sent as this member.
pub(crate) fn stop_texts(
    member: &str,
    texts: impl Iterator<Item = String>,
) -> Result<Arc<[String]>, ApiError> {
    let texts: Arc<[String]> = texts.collect();
    if texts.len() > MOST_STOPS {
        let count = format!("{} texts", texts.len());
        return Err(found(member, count, format!("at most {MOST_STOPS}")));
    }
    let is_wrong = |text: &String| text.is_empty() || text.len() > LONGEST_STOP;
    if texts.iter().any(is_wrong) {
        let expected = format!("1 to {LONGEST_STOP} bytes");
        return Err(found(member, "a text that is empty or long", expected));
    }
    Ok(texts)
}

/// Returns how many bytes at the end of a text are the beginning of a stop text.
fn begun(text: &str, stop: &str) -> usize {
    let lengths = stop.char_indices().map(|(length, _)| length).rev();
    let mut lengths = lengths.filter(|length| *length > 0);
    let found = lengths.find(|length| text.ends_with(&stop[..*length]));
    found.unwrap_or(0)
}

/// Returns a token as text; one that is a part of a character as its bytes, so that tokens can be told apart.
pub(crate) fn token_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", bytes.collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(texts: &[&str]) -> Arc<[String]> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn nothing_of_a_stop_text_passes_wherever_the_pieces_end() {
        let cases = [
            ("one END two", &["END"][..], "one ", Some("END")),
            ("one EN two", &["END"], "one EN two", None),
            ("aab", &["ab"], "a", Some("ab")),
            ("x\n\nUser: y", &["User", "\n\n"], "x", Some("\n\n")),
            ("café", &["é"], "caf", Some("é")),
            ("plain", &[], "plain", None),
            ("ends in E", &["END"], "ends in E", None),
        ];
        for (text, list, expected, found) in cases {
            let list = stops(list);
            let whole = StopCut::cut(&list, text);
            assert_eq!(whole, (expected.to_owned(), found.map(ToOwned::to_owned)));
            let mut cut = StopCut::new(&list);
            let mut kept = String::new();
            for letter in text.chars() {
                kept.push_str(&cut.push(letter.encode_utf8(&mut [0; 4])));
                assert!(expected.starts_with(&kept), "{kept:?} of {text:?}");
            }
            kept.push_str(&cut.finish());
            assert_eq!((kept.as_str(), cut.found()), (expected, found), "{text:?}");
        }
    }

    #[test]
    fn parts_of_characters_are_told_apart() {
        assert_eq!(token_text("é".as_bytes()), "é");
        assert_eq!(token_text(b"\xc3"), "bytes:\\xc3");
    }

    #[test]
    fn what_the_request_began_is_not_sent_back() {
        let cases = [
            ("ab", vec!["abc"], "c"),
            ("ab", vec!["a", "b", "c"], "c"),
            ("ab", vec!["a", "bc"], "c"),
            ("ab", vec!["xab"], "xab"),
            ("", vec!["a"], "a"),
        ];
        for (begun, pieces, expected) in cases {
            let mut prefill = Prefill(begun.to_owned());
            let said: String = pieces.iter().map(|piece| prefill.skip(piece)).collect();
            assert_eq!(said, expected, "{pieces:?} after {begun:?}");
        }
    }
}
