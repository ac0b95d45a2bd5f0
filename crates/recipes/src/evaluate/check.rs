//! Ways to compare an answer with the right one, by name.

use super::exact_match;
use serde::{Deserialize, Serialize};
use tinkrs_chat::Response;

/// How an answer is compared with the right one. The grade is 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Check {
    /// The same text, white space at the ends aside.
    Exact,
    /// The same words in the same order; case and punctuation do not count.
    Words,
    /// The right answer's words are somewhere in the answer, in order and together.
    Contains,
    /// The last number in the answer is the right one: `so 1,200.` is `1200`.
    Number,
}

impl Check {
    /// Grades an answer.
    pub fn grade(self, answer: &Response, expected: &str) -> f64 {
        let said = answer.message.content.as_str();
        let right = match self {
            Self::Exact => return exact_match(answer, expected),
            Self::Words => words(said) == words(expected),
            Self::Contains => {
                let (said, expected) = (words(said), words(expected));
                expected.is_empty() || said.windows(expected.len()).any(|part| part == expected)
            }
            Self::Number => last_number(said).is_some_and(|n| last_number(expected) == Some(n)),
        };
        f64::from(u8::from(right))
    }

    /// Returns whether answers can be compared with this one at all.
    pub fn accepts(self, expected: &str) -> bool {
        match self {
            Self::Exact => true,
            Self::Words | Self::Contains => !words(expected).is_empty(),
            Self::Number => last_number(expected).is_some(),
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// Returns the last number of a text. A comma between digits groups them; a minus belongs to the
/// number unless it follows a digit or a letter.
pub(crate) fn last_number(text: &str) -> Option<f64> {
    let characters: Vec<char> = text.chars().collect();
    let digit = |place: usize| characters.get(place).is_some_and(char::is_ascii_digit);
    let end = (0..characters.len()).rev().find(|place| digit(*place))? + 1;
    let mut start = end - 1;
    while let Some(before) = start.checked_sub(1) {
        let joins = matches!(characters[before], '.' | ',') && before > 0 && digit(before - 1);
        if !digit(before) && !joins {
            break;
        }
        start = before;
    }
    let number: String = characters[start..end]
        .iter()
        .filter(|c| **c != ',')
        .collect();
    let negative = start > 0
        && matches!(characters[start - 1], '-' | '−')
        && (start < 2 || !characters[start - 2].is_alphanumeric());
    let number: f64 = number.parse().ok()?;
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_chat::Message;

    #[test]
    fn each_check_forgives_what_it_says() {
        let cases = [
            (Check::Exact, " Paris\n", "Paris", true),
            (Check::Exact, "Paris.", "Paris", false),
            (Check::Words, "the sky is BLUE!", "The sky is blue.", true),
            (Check::Words, "It is blue", "blue", false),
            (Check::Contains, "It is Blue, I think.", "blue", true),
            (Check::Contains, "bluebird", "blue", false),
            (Check::Contains, "new old york", "New York", false),
            (Check::Number, "12 and 30 are 42.", "42", true),
            (Check::Number, "It costs $1,200.50", "1200.5", true),
            (Check::Number, "-3", "3", false),
            (Check::Number, "5-3", "3", true),
            (Check::Number, "none", "0", false),
        ];
        for (check, said, expected, right) in cases {
            let answer = Response {
                message: Message::assistant(said),
                finished: true,
                malformed_calls: 0,
            };
            let grade = check.grade(&answer, expected);
            assert_eq!(grade, f64::from(u8::from(right)), "{check:?}: {said}");
        }
        assert!(!Check::Number.accepts("many") && Check::Number.accepts("7 days"));
        assert!(!Check::Contains.accepts("?!"));
    }
}
