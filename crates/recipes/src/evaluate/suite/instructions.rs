//! The instructions of IFEval, each with the check that its authors describe.

use regex::Regex;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// An instruction that an answer keeps to or does not.
#[derive(Clone, Debug)]
pub(super) enum Instruction {
    Keywords(Vec<String>),
    Frequency(String, Amount),
    Forbidden(Vec<String>),
    LetterFrequency(char, Amount),
    Sentences(Amount),
    Paragraphs(usize),
    Words(Amount),
    ParagraphFirstWord(usize, usize, String),
    Placeholders(usize),
    Postscript(Regex),
    Bullets(usize),
    OneOfThree,
    Highlights(usize),
    Sections(Regex, usize),
    Json,
    Title,
    TwoResponses,
    RepeatsPrompt(String),
    Ends(String),
    CapitalWords(Amount),
    AllCapitals,
    AllLowercase,
    NoComma,
    Quoted,
}

/// So many or more, or fewer than that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    number: usize,
    at_least: bool,
}

impl Amount {
    fn holds(self, found: usize) -> bool {
        if self.at_least {
            found >= self.number
        } else {
            found < self.number
        }
    }
}

const THREE_ANSWERS: [&str; 3] = [
    "My answer is yes.",
    "My answer is no.",
    "My answer is maybe.",
];
/// What the end of a word is apart from in English: "it's" is two words.
const CONTRACTIONS: [&str; 7] = ["'s", "'m", "'d", "'ll", "'re", "'ve", "n't"];

struct Arguments<'a>(&'a str, &'a Map<String, Value>);

impl Arguments<'_> {
    fn text(&self, name: &str) -> Result<String, String> {
        let text = self.1.get(name).and_then(Value::as_str);
        text.map(str::to_owned)
            .ok_or_else(|| self.missing(name, "a text"))
    }

    fn number(&self, name: &str) -> Result<usize, String> {
        let number = self.1.get(name).and_then(Value::as_f64);
        let number = number.filter(|number| *number >= 0.0 && number.fract() == 0.0);
        number
            .map(|number| number as usize)
            .ok_or_else(|| self.missing(name, "a whole number"))
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        let list = self.1.get(name).and_then(Value::as_array);
        let list = list.ok_or_else(|| self.missing(name, "a list of texts"))?;
        let texts = list.iter().map(|item| item.as_str().map(str::to_owned));
        let texts: Option<Vec<_>> = texts.collect();
        texts.ok_or_else(|| self.missing(name, "a list of texts"))
    }

    fn amount(&self, number: &str, relation: &str) -> Result<Amount, String> {
        let number = self.number(number)?;
        match self.text(relation)?.as_str() {
            "at least" => Ok(Amount {
                number,
                at_least: true,
            }),
            "less than" => Ok(Amount {
                number,
                at_least: false,
            }),
            _ => Err(self.missing(relation, "`at least` or `less than`")),
        }
    }

    fn missing(&self, name: &str, what: &str) -> String {
        format!("`kwargs` of `{}`: `{name}` is not {what}", self.0)
    }
}

impl Instruction {
    pub(super) fn new(id: &str, kwargs: &Map<String, Value>) -> Result<Self, String> {
        let given = Arguments(id, kwargs);
        Ok(match id {
            "keywords:existence" => Self::Keywords(given.texts("keywords")?),
            "keywords:frequency" => Self::Frequency(
                given.text("keyword")?,
                given.amount("frequency", "relation")?,
            ),
            "keywords:forbidden_words" => Self::Forbidden(given.texts("forbidden_words")?),
            "keywords:letter_frequency" => {
                let letter = given.text("letter")?.to_lowercase().chars().next();
                let letter = letter.ok_or_else(|| given.missing("letter", "a letter"))?;
                Self::LetterFrequency(letter, given.amount("let_frequency", "let_relation")?)
            }
            "length_constraints:number_sentences" => {
                Self::Sentences(given.amount("num_sentences", "relation")?)
            }
            "length_constraints:number_paragraphs" => {
                Self::Paragraphs(given.number("num_paragraphs")?)
            }
            "length_constraints:number_words" => {
                Self::Words(given.amount("num_words", "relation")?)
            }
            "length_constraints:nth_paragraph_first_word" => Self::ParagraphFirstWord(
                given.number("num_paragraphs")?,
                given.number("nth_paragraph")?,
                given.text("first_word")?.to_lowercase(),
            ),
            "detectable_content:number_placeholders" => {
                Self::Placeholders(given.number("num_placeholders")?)
            }
            "detectable_content:postscript" => {
                Self::Postscript(postscript(&given.text("postscript_marker")?)?)
            }
            "detectable_format:number_bullet_lists" => Self::Bullets(given.number("num_bullets")?),
            "detectable_format:constrained_response" => Self::OneOfThree,
            "detectable_format:number_highlighted_sections" => {
                Self::Highlights(given.number("num_highlights")?)
            }
            "detectable_format:multiple_sections" => {
                let splitter = given.text("section_spliter")?;
                let pattern = format!(r"{}\s?\d+", regex::escape(splitter.trim()));
                Self::Sections(compiled(&pattern)?, given.number("num_sections")?)
            }
            "detectable_format:json_format" => Self::Json,
            "detectable_format:title" => Self::Title,
            "combination:two_responses" => Self::TwoResponses,
            "combination:repeat_prompt" => Self::RepeatsPrompt(given.text("prompt_to_repeat")?),
            "startend:end_checker" => Self::Ends(given.text("end_phrase")?),
            "change_case:capital_word_frequency" => {
                Self::CapitalWords(given.amount("capital_frequency", "capital_relation")?)
            }
            "change_case:english_capital" => Self::AllCapitals,
            "change_case:english_lowercase" => Self::AllLowercase,
            "punctuation:no_comma" => Self::NoComma,
            "startend:quotation" => Self::Quoted,
            _ => return Err(format!("the instruction `{id}` is not known")),
        })
    }

    /// Returns whether an answer keeps to it.
    pub(super) fn is_followed(&self, said: &str) -> bool {
        let lower = said.to_lowercase();
        let trimmed = said.trim();
        if trimmed.is_empty() {
            return false;
        }
        match self {
            Self::Keywords(words) => words
                .iter()
                .all(|word| lower.contains(&word.to_lowercase())),
            Self::Frequency(word, amount) => {
                amount.holds(lower.matches(&word.trim().to_lowercase()).count())
            }
            Self::Forbidden(words) => !words
                .iter()
                .any(|word| has_word(&lower, &word.to_lowercase())),
            Self::LetterFrequency(letter, amount) => {
                amount.holds(lower.chars().filter(|c| c == letter).count())
            }
            Self::Sentences(amount) => amount.holds(sentences(trimmed)),
            Self::Paragraphs(count) => paragraphs_between_stars(said) == Some(*count),
            Self::Words(amount) => amount.holds(words(said).count()),
            Self::ParagraphFirstWord(count, nth, word) => first_word(said, *count, *nth, word),
            Self::Placeholders(count) => PLACEHOLDER.find_iter(said).count() >= *count,
            Self::Postscript(pattern) => pattern.is_match(&lower),
            Self::Bullets(count) => {
                STAR.find_iter(said).count() + DASH.find_iter(said).count() == *count
            }
            Self::OneOfThree => THREE_ANSWERS.iter().any(|answer| trimmed.contains(answer)),
            Self::Highlights(count) => highlights(said) >= *count,
            Self::Sections(pattern, count) => pattern.find_iter(said).count() >= *count,
            Self::Json => {
                let mut text = trimmed;
                for mark in ["```json", "```Json", "```JSON", "```"] {
                    text = text.strip_prefix(mark).unwrap_or(text);
                }
                let text = text.strip_suffix("```").unwrap_or(text);
                serde_json::from_str::<Value>(text.trim()).is_ok()
            }
            Self::Title => TITLE.find_iter(said).any(|title| {
                let title = title.as_str().trim_start_matches('<');
                !title.trim_end_matches('>').trim().is_empty()
            }),
            Self::TwoResponses => {
                let parts: Vec<_> = said.split("******").map(str::trim).collect();
                let last = parts.len() - 1;
                let inner = |(at, part): (usize, &&str)| !part.is_empty() || at == 0 || at == last;
                let said: Vec<_> = parts.iter().filter(|part| !part.is_empty()).collect();
                parts.iter().enumerate().all(inner) && said.len() == 2 && said[0] != said[1]
            }
            Self::RepeatsPrompt(prompt) => lower.trim().starts_with(&prompt.trim().to_lowercase()),
            Self::Ends(phrase) => {
                let end = trimmed.trim_matches('"').to_lowercase();
                end.ends_with(&phrase.trim().to_lowercase())
            }
            Self::CapitalWords(amount) => amount.holds(capital_words(said)),
            Self::AllCapitals => is_capital(said),
            Self::AllLowercase => {
                said.chars().any(char::is_lowercase) && !said.chars().any(char::is_uppercase)
            }
            Self::NoComma => !said.contains(','),
            Self::Quoted => trimmed.len() > 1 && trimmed.starts_with('"') && trimmed.ends_with('"'),
        }
    }
}

static PLACEHOLDER: LazyLock<Regex> = LazyLock::new(|| fixed(r"\[.*?\]"));
static STAR: LazyLock<Regex> = LazyLock::new(|| fixed(r"(?m)^\s*\*[^*].*$"));
static DASH: LazyLock<Regex> = LazyLock::new(|| fixed(r"(?m)^\s*-.*$"));
static EMPHASIS: LazyLock<Regex> = LazyLock::new(|| fixed(r"\*[^\n*]*\*"));
static STRONG: LazyLock<Regex> = LazyLock::new(|| fixed(r"\*\*[^\n*]*\*\*"));
static TITLE: LazyLock<Regex> = LazyLock::new(|| fixed(r"<<[^\n]+>>"));

fn fixed(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern of this file")
}

fn compiled(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|error| error.to_string())
}

/// Returns what a postscript with such a marker looks like in a text of small letters.
fn postscript(marker: &str) -> Result<Regex, String> {
    compiled(&match marker {
        "P.P.S" => r"p\.\s?p\.\s?s".to_owned(),
        "P.S." => r"p\.\s?s\.".to_owned(),
        other => regex::escape(&other.to_lowercase()),
    })
}

/// Whether a text has capital letters and no small ones.
fn is_capital(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    words.filter(|word| !word.is_empty())
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(place, _)| {
        let before = text[..place].chars().next_back();
        let after = text[place + word.len()..].chars().next();
        !is_part(before) && !is_part(after)
    })
}

/// Counts sentences: what ends with a mark and is followed by a space or the end, and what is left.
fn sentences(text: &str) -> usize {
    let letters: Vec<char> = text.chars().collect();
    let (mut count, mut open) = (0, false);
    for (place, letter) in letters.iter().enumerate() {
        let next = letters.get(place + 1);
        let ends = matches!(letter, '.' | '!' | '?' | '。' | '！' | '？');
        let then = next.is_none_or(|next| next.is_whitespace() || matches!(next, '"' | '\'' | ')'));
        if ends && then && open {
            count += 1;
            open = false;
        } else if letter.is_alphanumeric() {
            open = true;
        }
    }
    count + usize::from(open)
}

fn paragraphs_between_stars(text: &str) -> Option<usize> {
    let parts: Vec<_> = text.split("***").map(str::trim).collect();
    let last = parts.len() - 1;
    let mut count = parts.len();
    for (place, part) in parts.iter().enumerate() {
        if part.is_empty() {
            if place != 0 && place != last {
                return None;
            }
            count -= 1;
        }
    }
    Some(count)
}

fn first_word(text: &str, count: usize, nth: usize, word: &str) -> bool {
    let all: Vec<_> = text.split("\n\n").map(str::trim).collect();
    let filled = all.iter().filter(|part| !part.is_empty()).count();
    // Empty paragraphs do not count, but keep their places.
    let index = nth.checked_sub(1).filter(|_| nth <= filled);
    let Some(part) = index.and_then(|index| all.get(index)) else {
        return false;
    };
    let first = part.split_whitespace().next().unwrap_or_default();
    let first = first.trim_start_matches('\'').trim_start_matches('"');
    let end = first
        .find(['.', ',', '?', '!', '\'', '"'])
        .unwrap_or(first.len());
    filled == count && first[..end].to_lowercase() == word
}

/// Counts `*text*` and `**text**`, apart from each other, as the authors do.
fn highlights(text: &str) -> usize {
    let filled = |found: &str| !found.trim_matches('*').trim().is_empty();
    let emphasis = EMPHASIS
        .find_iter(text)
        .filter(|found| filled(found.as_str()));
    let strong = STRONG
        .find_iter(text)
        .filter(|found| filled(found.as_str()));
    emphasis.count() + strong.count()
}

/// Counts words without small letters, divided as the tokenizer of the Penn Treebank does.
fn capital_words(text: &str) -> usize {
    let apart = |c: char| c.is_whitespace() || ",:;@#$%&?!()[]{}<>\"".contains(c);
    let parts = |word: &str| {
        let lower = word.to_ascii_lowercase();
        let end = CONTRACTIONS.iter().find(|end| lower.ends_with(*end));
        let (head, tail) = word.split_at(word.len() - end.map_or(0, |end| end.len()));
        usize::from(is_capital(head)) + usize::from(is_capital(tail))
    };
    text.split(apart).map(parts).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    /// Verdicts of a published implementation; see `tests/reference/ifeval.py`.
    #[derive(Deserialize)]
    struct Published {
        answers: Vec<String>,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        id: String,
        kwargs: Map<String, Value>,
        followed: String,
    }

    /// Why an answer is judged differently here, on purpose.
    fn difference(id: &str, answer: &str) -> Option<&'static str> {
        match id {
            "change_case:english_capital" | "change_case:english_lowercase" => {
                Some("in which language an answer is, is not looked at")
            }
            "detectable_format:json_format" if answer.contains("NaN") || answer == "Infinity" => {
                Some("Python's `json` takes these, JSON has none of them")
            }
            _ => None,
        }
    }

    #[test]
    fn verdicts_are_those_of_the_published_checks() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ifeval.json");
        let text = std::fs::read_to_string(path).unwrap();
        let published: Published = serde_json::from_str(&text).unwrap();
        let (mut compared, mut wrong) = (0, Vec::new());
        for case in &published.cases {
            let instruction = Instruction::new(&case.id, &case.kwargs).unwrap();
            assert_eq!(published.answers.len(), case.followed.len());
            for (answer, letter) in published.answers.iter().zip(case.followed.chars()) {
                let (ours, theirs) = (instruction.is_followed(answer), letter == 'y');
                compared += 1;
                // Only what they refuse can be kept to here.
                if ours == theirs || (ours && difference(&case.id, answer).is_some()) {
                    continue;
                }
                if theirs && difference(&case.id, answer).is_some_and(|why| why.contains("JSON")) {
                    continue;
                }
                wrong.push(format!(
                    "{} {:?}: {answer:?}, theirs {theirs}",
                    case.id, case.kwargs
                ));
            }
        }
        assert!(
            wrong.is_empty(),
            "{} of {compared}:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
        assert!(compared > 5_000);
    }

    #[test]
    fn each_instruction_is_checked_as_described() {
        let cases = [
            (
                "keywords:existence",
                json!({"keywords": ["Sky", "sea"]}),
                "sea and sky",
                "sky",
            ),
            (
                "keywords:frequency",
                json!({"keyword": "a b", "frequency": 2, "relation": "at least"}),
                "a b, A B",
                "a b",
            ),
            (
                "keywords:forbidden_words",
                json!({"forbidden_words": ["cat"]}),
                "category",
                "The cat.",
            ),
            (
                "keywords:letter_frequency",
                json!({"letter": "q", "let_frequency": 2, "let_relation": "less than"}),
                "quite",
                "Q q",
            ),
            (
                "length_constraints:number_sentences",
                json!({"num_sentences": 2, "relation": "at least"}),
                "One. Two is 2.5!",
                "One is 2.5",
            ),
            (
                "length_constraints:number_paragraphs",
                json!({"num_paragraphs": 2}),
                "a\n***\nb",
                "a\n\nb",
            ),
            (
                "length_constraints:number_words",
                json!({"num_words": 3, "relation": "less than"}),
                "it's",
                "a b c",
            ),
            (
                "length_constraints:nth_paragraph_first_word",
                json!({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"}),
                "A\n\n\"Then, b",
                "A\n\nb",
            ),
            (
                "detectable_content:number_placeholders",
                json!({"num_placeholders": 2}),
                "[name] [street]",
                "[name]",
            ),
            (
                "detectable_content:postscript",
                json!({"postscript_marker": "P.S."}),
                "x\nP.S. y",
                "x",
            ),
            (
                "detectable_format:number_bullet_lists",
                json!({"num_bullets": 2}),
                "* a\n* b\n",
                "* a\n* b\n- c",
            ),
            (
                "detectable_format:constrained_response",
                json!({}),
                "My answer is maybe.",
                "maybe",
            ),
            (
                "detectable_format:number_highlighted_sections",
                json!({"num_highlights": 2}),
                "*a* and **b**",
                "*a* and b",
            ),
            (
                "detectable_format:multiple_sections",
                json!({"section_spliter": "SECTION", "num_sections": 2}),
                "SECTION 1\na\nSECTION 2\nb",
                "SECTION 1 and the SECTION",
            ),
            (
                "detectable_format:json_format",
                json!({}),
                "```json\n{\"a\": 1}\n```",
                "{a: 1}",
            ),
            (
                "detectable_format:title",
                json!({}),
                "<<poem of joy>>\nx",
                "<<>>",
            ),
            (
                "combination:two_responses",
                json!({}),
                "a\n******\nb",
                "a\n******\na",
            ),
            (
                "combination:repeat_prompt",
                json!({"prompt_to_repeat": "Say hi"}),
                "say hi\nHi",
                "Hi",
            ),
            (
                "startend:end_checker",
                json!({"end_phrase": "The end."}),
                "So. the end.",
                "The end. Or not",
            ),
            (
                "change_case:capital_word_frequency",
                json!({"capital_frequency": 2, "capital_relation": "at least"}),
                "A BIG dog",
                "a BIG dog",
            ),
            ("change_case:english_capital", json!({}), "HI 2", "Hi"),
            ("change_case:english_lowercase", json!({}), "hi 2", "Hi"),
            ("punctuation:no_comma", json!({}), "a b", "a, b"),
            ("startend:quotation", json!({}), "\"a\"", "\"a"),
        ];
        for (id, kwargs, good, bad) in cases {
            let instruction = Instruction::new(id, kwargs.as_object().unwrap()).unwrap();
            assert!(instruction.is_followed(good), "{id}: {good}");
            assert!(!instruction.is_followed(bad), "{id}: {bad}");
        }
        let error = Instruction::new("keywords:existence", &Map::new()).unwrap_err();
        assert_eq!(
            error,
            "`kwargs` of `keywords:existence`: `keywords` is not a list of texts"
        );
    }
}
