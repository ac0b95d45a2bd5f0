//! Texts as they are drawn: up to a stop text, and of single tokens.

use std::sync::Arc;

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
}
