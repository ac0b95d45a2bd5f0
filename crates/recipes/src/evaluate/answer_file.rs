//! Answers of an evaluation in a file, so that one that was stopped goes on and asks nothing twice.
//!
//! The first line says what is evaluated; each other line is an answer with its score.

use crate::Error;
use crate::data::{open_to_add, parse_jsonl};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// An answer that was given, and what it is worth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptAnswer {
    /// Who was asked: a model or a checkpoint.
    pub asked: String,
    /// Which question, from 0.
    pub question: usize,
    /// What was said.
    pub completion: String,
    /// Whether it came to its end.
    pub finished: bool,
    /// What it is worth.
    pub score: f64,
}

/// A file of answers that is open for writing.
#[derive(Debug)]
pub struct AnswerFile {
    file: File,
    path: PathBuf,
    kept: BTreeMap<(String, usize), KeptAnswer>,
}

impl AnswerFile {
    /// Opens a file to add to it, or begins one. `settings` are what the answers depend on.
    ///
    /// # Errors
    /// If it cannot be read or written, or has answers to something else; the error names the first difference.
    pub fn open(path: impl AsRef<Path>, settings: &Map<String, Value>) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let (mut file, text) = open_to_add(&path)?;
        let (head, rest) = text.split_once('\n').unwrap_or_default();
        let wrong = |message: String| Error::Data {
            path: path.clone(),
            message,
        };
        if text.is_empty() {
            let line = format!("{}\n", Value::Object(settings.clone()));
            file.write_all(line.as_bytes())
                .map_err(Error::file("write", &path))?;
        } else {
            let found: Map<String, Value> = serde_json::from_str(head)
                .map_err(|error| wrong(format!("not a file of answers: {error}")))?;
            let names = settings.keys().chain(found.keys());
            let mut names = names.filter(|name| settings.get(*name) != found.get(*name));
            if let Some(name) = names.next() {
                let show =
                    |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
                return Err(wrong(format!(
                    "the answers in it are to something else: `{name}` was {}, now it is {}",
                    show(found.get(name)),
                    show(settings.get(name))
                )));
            }
        }
        let kept: Vec<KeptAnswer> = parse_jsonl(rest, &path)?;
        let kept = kept
            .into_iter()
            .map(|answer| ((answer.asked.clone(), answer.question), answer));
        let kept = kept.collect();
        Ok(Self { file, path, kept })
    }

    /// Returns the answer to a question, if it was given.
    pub fn answer(&self, asked: &str, question: usize) -> Option<&KeptAnswer> {
        self.kept.get(&(asked.to_owned(), question))
    }

    /// Adds an answer.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, answer: KeptAnswer) -> Result<(), Error> {
        let line = serde_json::to_string(&answer).map_err(std::io::Error::from);
        let written = line.and_then(|line| self.file.write_all(format!("{line}\n").as_bytes()));
        written.map_err(Error::file("write", &self.path))?;
        self.kept
            .insert((answer.asked.clone(), answer.question), answer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_there_again_and_those_to_something_else_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers.jsonl");
        let settings = |seed: u64| Map::from_iter([("seed".to_owned(), seed.into())]);
        let answer = KeptAnswer {
            asked: "a".to_owned(),
            question: 3,
            completion: "x\ny".to_owned(),
            finished: true,
            score: 0.5,
        };
        let mut file = AnswerFile::open(&path, &settings(1)).unwrap();
        file.add(answer.clone()).unwrap();
        // What a crash has left of a line does not count.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}{{\"asked\": \"a\"")).unwrap();
        let file = AnswerFile::open(&path, &settings(1)).unwrap();
        assert_eq!(file.answer("a", 3), Some(&answer));
        assert_eq!(file.answer("b", 3), None);
        let error = AnswerFile::open(&path, &settings(2))
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("`seed` was 1, now it is 2"), "{error}");
    }
}
