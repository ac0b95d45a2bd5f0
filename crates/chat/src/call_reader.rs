//! A tool call in JSON while it is being written.

use crate::Json;

/// Reads `{"name": …, "arguments": {…}}` piece by piece, so that the arguments can be passed on before the call is
/// complete.
///
/// It follows strings and brackets, and does not check that the arguments are JSON: whoever has all of the text does. A call
/// whose members come in another order is not followed.
#[derive(Clone, Debug, Default)]
pub struct CallReader {
    state: State,
    /// The text before the arguments.
    head: String,
    in_string: bool,
    is_escaped: bool,
    /// How many brackets of the arguments are open.
    depth: usize,
}

/// What is new in a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallPart {
    /// Which call of the answer it is, from 0.
    pub index: usize,
    /// Its name, which comes first.
    pub name: Option<String>,
    /// The next characters of the arguments, which are JSON when all have come.
    pub arguments: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Arguments,
    /// All of the arguments have come.
    Complete,
    /// It is not such a call.
    Other,
}

/// The longest text before the arguments: a name and the words around it.
const LONGEST_HEAD: usize = 512;

impl CallReader {
    /// Takes the next piece of the text. Returns the name as soon as arguments follow it, and then the arguments as they
    /// come.
    pub fn push(&mut self, text: &str) -> Option<CallPart> {
        let mut part = CallPart::default();
        for letter in text.chars() {
            match self.state {
                State::Head => {
                    self.head.push(letter);
                    if letter == '{'
                        && let Some(name) = called(&self.head)
                    {
                        part.name = Some(name);
                        self.state = State::Arguments;
                        self.argument(letter, &mut part.arguments);
                    } else if self.head.len() > LONGEST_HEAD {
                        self.state = State::Other;
                    }
                }
                State::Arguments => self.argument(letter, &mut part.arguments),
                State::Complete | State::Other => break,
            }
        }
        (part != CallPart::default()).then_some(part)
    }

    /// Returns whether the arguments have begun.
    pub fn has_begun(&self) -> bool {
        matches!(self.state, State::Arguments | State::Complete)
    }

    fn argument(&mut self, letter: char, to: &mut String) {
        to.push(letter);
        match letter {
            _ if self.is_escaped => self.is_escaped = false,
            '\\' if self.in_string => self.is_escaped = true,
            '"' => self.in_string = !self.in_string,
            '{' | '[' if !self.in_string => self.depth += 1,
            '}' | ']' if !self.in_string => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.state = State::Complete;
                }
            }
            _ => {}
        }
    }
}

/// Returns the name in a text that ends where the arguments of a call begin.
fn called(head: &str) -> Option<String> {
    let Json::Object(members) = Json::parse(&format!("{head}}}}}")).ok()? else {
        return None;
    };
    let [(first, name), (second, Json::Object(_))] = members.as_slice() else {
        return None;
    };
    let is_call = first == "name" && ["arguments", "parameters"].contains(&second.as_str());
    is_call.then(|| name.as_str().map(ToOwned::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text in pieces of this many characters. Returns the name and the arguments.
    fn read(text: &str, size: usize) -> Option<(String, String)> {
        let mut reader = CallReader::default();
        let (mut name, mut arguments) = (None, String::new());
        let letters: Vec<char> = text.chars().collect();
        for piece in letters.chunks(size) {
            if let Some(part) = reader.push(&piece.iter().collect::<String>()) {
                name = name.or(part.name);
                arguments += &part.arguments;
            }
        }
        assert_eq!(name.is_some(), reader.has_begun(), "{text}");
        Some((name?, arguments))
    }

    #[test]
    fn arguments_come_as_they_are_written_wherever_the_pieces_end() {
        let cases = [
            (
                r#"{"name": "f", "arguments": {"a": [1, {}]}}"#,
                "f",
                r#"{"a": [1, {}]}"#,
            ),
            ("\n{ \"name\":\"f{\",\"parameters\" : {}}\n", "f{", "{}"),
            (
                r#"{"name": "é", "arguments": {"a": "}\"]"}} and more"#,
                "é",
                r#"{"a": "}\"]"}"#,
            ),
            (
                r#"{"name": "f", "arguments": {"a": "cut o"#,
                "f",
                r#"{"a": "cut o"#,
            ),
        ];
        for (text, name, arguments) in cases {
            for size in [1, 2, 7, 100] {
                let read = read(text, size);
                let expected = (name.to_owned(), arguments.to_owned());
                assert_eq!(read, Some(expected), "{text} by {size}");
            }
        }
    }

    #[test]
    fn other_texts_are_no_calls() {
        let long = format!("{{\"name\": \"{}\", \"arguments\": {{}}}}", "x".repeat(600));
        for text in [
            r#"{"arguments": {}, "name": "f"}"#,
            r#"{"name": {"arguments": {"#,
            r#"{"name": "f", "arguments": [1]}"#,
            r#"{"name": "f", "extra": 1, "arguments": {}}"#,
            "{{{{{{",
            "words {",
            "",
            &long,
        ] {
            assert_eq!(read(text, 1), None, "{text}");
        }
    }
}
