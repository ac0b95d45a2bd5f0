//! The instructions of IFEval, each with the check that its authors describe.

use serde_json::{Map, Value};

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
    Postscript(String),
    Bullets(usize),
    OneOfThree,
    Highlights(usize),
    Sections(String, usize),
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
            "detectable_content:postscript" => Self::Postscript(given.text("postscript_marker")?),
            "detectable_format:number_bullet_lists" => Self::Bullets(given.number("num_bullets")?),
            "detectable_format:constrained_response" => Self::OneOfThree,
            "detectable_format:number_highlighted_sections" => {
                Self::Highlights(given.number("num_highlights")?)
            }
            "detectable_format:multiple_sections" => Self::Sections(
                given.text("section_spliter")?,
                given.number("num_sections")?,
            ),
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
        match self {
            Self::Keywords(words) => words
                .iter()
                .all(|word| lower.contains(&word.to_lowercase())),
            Self::Frequency(word, amount) => {
                amount.holds(lower.matches(&word.to_lowercase()).count())
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
            Self::Placeholders(count) => between(said, '[', ']') >= *count,
            Self::Postscript(marker) => has_postscript(&lower, &marker.to_lowercase()),
            Self::Bullets(count) => said.lines().filter(|line| is_bullet(line)).count() == *count,
            Self::OneOfThree => THREE_ANSWERS.iter().any(|answer| trimmed.contains(answer)),
            Self::Highlights(count) => highlights(said) >= *count,
            Self::Sections(splitter, count) => sections(said, splitter) >= *count,
            Self::Json => {
                let text = trimmed
                    .trim_start_matches("```json")
                    .trim_start_matches("```Json");
                let text = text.trim_start_matches("```JSON").trim_start_matches("```");
                let text = text.trim_end_matches("```").trim();
                serde_json::from_str::<Value>(text).is_ok()
            }
            Self::Title => said.lines().any(|line| {
                let inner = line
                    .split_once("<<")
                    .and_then(|(_, rest)| rest.rsplit_once(">>"));
                inner.is_some_and(|(title, _)| !title.trim_matches(['<', '>', ' ']).is_empty())
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
            Self::AllCapitals => has_letters(said) && !said.chars().any(char::is_lowercase),
            Self::AllLowercase => has_letters(said) && !said.chars().any(char::is_uppercase),
            Self::NoComma => !said.contains(','),
            Self::Quoted => trimmed.len() > 1 && trimmed.starts_with('"') && trimmed.ends_with('"'),
        }
    }
}

fn has_letters(text: &str) -> bool {
    text.chars().any(char::is_alphabetic)
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
    let Some(part) = nth.checked_sub(1).and_then(|index| all.get(index)) else {
        return false;
    };
    let first = part.split_whitespace().next().unwrap_or_default();
    let first = first.trim_start_matches(['\'', '"']);
    let end = first
        .find(['.', ',', '?', '!', '\'', '"'])
        .unwrap_or(first.len());
    filled == count && first[..end].to_lowercase() == word
}

fn between(text: &str, open: char, close: char) -> usize {
    let in_line = |line: &str| {
        let (mut count, mut rest) = (0, line);
        while let Some(start) = rest.find(open) {
            let Some(end) = rest[start..].find(close) else {
                break;
            };
            count += 1;
            rest = &rest[start + end + close.len_utf8()..];
        }
        count
    };
    text.lines().map(in_line).sum()
}

fn has_postscript(text: &str, marker: &str) -> bool {
    let spaced: String = text.chars().filter(|c| *c != ' ').collect();
    let marker: String = marker.chars().filter(|c| *c != ' ').collect();
    match marker.as_str() {
        // Written with or without points.
        "p.s." => spaced.contains("p.s") || text.contains("p. s"),
        "p.p.s" => spaced.contains("p.p.s"),
        marker => spaced.contains(marker),
    }
}

fn is_bullet(line: &str) -> bool {
    let line = line.trim_start();
    let star = line
        .strip_prefix('*')
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('*'));
    let dash = line.strip_prefix('-').is_some_and(|rest| !rest.is_empty());
    star || dash
}

/// Counts `*text*` and `**text**`.
fn highlights(text: &str) -> usize {
    let mut count = 0;
    for line in text.lines() {
        let double: Vec<_> = line.split("**").collect();
        count += double
            .iter()
            .skip(1)
            .step_by(2)
            .filter(|part| !part.trim().is_empty())
            .count();
        let without = line.replace("**", "");
        let single: Vec<_> = without.split('*').collect();
        let pairs = (single.len() - 1) / 2 * 2;
        let inner = single.iter().take(pairs).skip(1).step_by(2);
        count += inner.filter(|part| !part.trim().is_empty()).count();
    }
    count
}

fn sections(text: &str, splitter: &str) -> usize {
    let found = text.match_indices(splitter.trim());
    let numbered = found.filter(|(place, name)| {
        let after = text[place + name.len()..].trim_start();
        after.starts_with(|c: char| c.is_ascii_digit())
    });
    numbered.count()
}

fn capital_words(text: &str) -> usize {
    let words = text
        .split(|c: char| c.is_whitespace() || (c.is_ascii_punctuation() && c != '\'' && c != '-'));
    let capital = |word: &&str| has_letters(word) && !word.chars().any(char::is_lowercase);
    words.filter(capital).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
