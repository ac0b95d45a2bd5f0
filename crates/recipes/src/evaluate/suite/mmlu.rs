//! MMLU: questions with choices.

use crate::Error;
use crate::data::{Layout, Rows};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// A question with choices, of which the letter is right.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Line")]
pub(super) struct Choices {
    question: String,
    choices: Vec<String>,
    pub(super) letter: char,
}

#[derive(Deserialize)]
struct Line {
    question: String,
    choices: Option<Vec<String>>,
    #[serde(rename = "A")]
    a: Option<String>,
    #[serde(rename = "B")]
    b: Option<String>,
    #[serde(rename = "C")]
    c: Option<String>,
    #[serde(rename = "D")]
    d: Option<String>,
    answer: Value,
}

const COLUMNS: [&str; 6] = ["question", "A", "B", "C", "D", "answer"];

/// Opens a file. The published CSV files have no header.
pub(super) fn rows(path: &Path) -> Result<Rows, Error> {
    let rows = Rows::open(path);
    let is_csv = path.extension().is_some_and(|ending| ending == "csv");
    match rows {
        Ok(rows) if rows.layout() != Layout::Csv || rows.has_column("question") => Ok(rows),
        // The first question may not even do as a header.
        Ok(_) => Rows::open_table(path, &COLUMNS),
        Err(_) if is_csv => Rows::open_table(path, &COLUMNS),
        Err(error) => Err(error),
    }
}

impl TryFrom<Line> for Choices {
    type Error = String;

    fn try_from(line: Line) -> Result<Self, String> {
        let columns = [line.a, line.b, line.c, line.d].into_iter().flatten();
        let choices = line.choices.unwrap_or_else(|| columns.collect());
        if !(2..=26).contains(&choices.len()) {
            return Err(format!("`choices` has {}, expected 2 to 26", choices.len()));
        }
        let count = choices.len();
        let index = match &line.answer {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => match text.trim().as_bytes() {
                [letter @ b'A'..=b'Z'] => Some(u64::from(letter - b'A')),
                _ => text.trim().parse().ok(),
            },
            _ => None,
        };
        let index = index
            .filter(|index| *index < count as u64)
            .ok_or_else(|| format!("`answer` is {}, and there are {count} choices", line.answer))?;
        Ok(Self {
            question: line.question,
            choices,
            letter: char::from(b'A' + index as u8),
        })
    }
}

impl Choices {
    pub(super) fn prompt(&self) -> String {
        let mut text = format!("{}\n", self.question.trim());
        for (letter, choice) in ('A'..).zip(&self.choices) {
            text.push_str(&format!("{letter}. {}\n", choice.trim()));
        }
        text + "Answer with the letter of the right choice alone."
    }
}

/// Returns the letter that an answer chooses: behind "answer is", or else the first that stands alone.
pub(super) fn chosen(said: &str) -> Option<char> {
    let alone = |text: &str| {
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        words.find_map(|word| match word.as_bytes() {
            [letter @ b'A'..=b'Z'] => Some(char::from(*letter)),
            _ => None,
        })
    };
    let lower = said.to_ascii_lowercase();
    let after = ["answer is", "answer:"].iter().filter_map(|marker| {
        let place = lower.rfind(marker)?;
        Some(place + marker.len())
    });
    let after = after.max().and_then(|place| alone(&said[place..]));
    after.or_else(|| alone(said)).or_else(|| {
        let mut letters = said.trim().chars();
        let only = (letters.next()?, letters.next());
        (only.1.is_none() && only.0.is_ascii_lowercase()).then_some(only.0.to_ascii_uppercase())
    })
}
