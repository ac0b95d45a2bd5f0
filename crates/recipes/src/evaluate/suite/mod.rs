//! Published sets of tasks, read from local files in the form in which they are published.

mod ifeval;
mod instructions;
mod mmlu;

use crate::Error;
use crate::data::{Place, Rows, parse_rows};
use crate::graders::{final_answer, same_value};
use ifeval::Prompt;
use mmlu::Choices;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tinkrs_chat::{Conversation, Message, Response};

/// A published set of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Suite {
    /// GSM8K: `question`, and `answer` with the number behind `####`.
    Gsm8k,
    /// MMLU: CSV without a header (question, four choices, letter), or rows of `question`, `choices` and `answer`.
    Mmlu,
    /// IFEval: `prompt`, `instruction_id_list` and `kwargs`.
    Ifeval,
}

/// A task of a suite.
#[derive(Clone, Debug)]
pub struct SuiteTask {
    /// What is asked.
    pub question: Conversation,
    /// The right answer, where there is one.
    pub answer: Option<String>,
    grading: Grading,
}

#[derive(Clone, Debug)]
enum Grading {
    Number(String),
    Letter(char),
    Instructions(Vec<instructions::Instruction>),
}

/// The tasks of a file, and how many were left out since they cannot be graded here.
#[derive(Clone, Debug)]
pub struct SuiteTasks {
    /// The tasks.
    pub tasks: Vec<(Place, SuiteTask)>,
    /// Tasks that were left out, and why.
    pub left_out: Option<(usize, &'static str)>,
}

#[derive(Deserialize)]
struct WordProblem {
    question: String,
    answer: String,
}

const STEP_BY_STEP: &str =
    "Think step by step. End with a line `#### N`, where N is the final number.";

impl Suite {
    /// Returns the name of the suite.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gsm8k => "gsm8k",
            Self::Mmlu => "mmlu",
            Self::Ifeval => "ifeval",
        }
    }

    /// Returns how many tokens an answer may have unless that is said.
    pub fn max_tokens(self) -> u32 {
        match self {
            Self::Gsm8k => 512,
            Self::Mmlu => 16,
            Self::Ifeval => 1280,
        }
    }

    /// Reads the tasks of a file.
    ///
    /// # Errors
    /// If the file cannot be read, or a row is no task of the suite; the error names the row.
    pub fn read(self, path: &Path) -> Result<SuiteTasks, Error> {
        let mut left_out = None;
        let tasks = match self {
            Self::Gsm8k => {
                let rows = parse_rows::<WordProblem>(Rows::open(path)?)?;
                let task = |(place, row): (Place, WordProblem)| {
                    let number = final_answer(&row.answer).to_owned();
                    if !row.answer.contains("####") || number.is_empty() {
                        let message = "`answer` has no `#### N`".to_owned();
                        return Err(Error::Row { place, message });
                    }
                    let asked = format!("{}\n\n{STEP_BY_STEP}", row.question);
                    let task = SuiteTask {
                        question: Conversation::from([Message::user(asked)]),
                        answer: Some(number.clone()),
                        grading: Grading::Number(number),
                    };
                    Ok((place, task))
                };
                rows.into_iter().map(task).collect::<Result<Vec<_>, _>>()?
            }
            Self::Mmlu => {
                let rows = parse_rows::<Choices>(mmlu::rows(path)?)?;
                let task = |(place, row): (Place, Choices)| {
                    let task = SuiteTask {
                        question: Conversation::from([Message::user(row.prompt())]),
                        answer: Some(row.letter.to_string()),
                        grading: Grading::Letter(row.letter),
                    };
                    (place, task)
                };
                rows.into_iter().map(task).collect()
            }
            Self::Ifeval => {
                let rows = parse_rows::<Prompt>(Rows::open(path)?)?;
                let all = rows.len();
                let mut tasks = Vec::with_capacity(all);
                for (place, row) in rows {
                    let instructions = row.instructions();
                    let instructions = instructions.map_err(|message| Error::Row {
                        place: place.clone(),
                        message,
                    })?;
                    let Some(instructions) = instructions else {
                        continue;
                    };
                    let task = SuiteTask {
                        question: Conversation::from([Message::user(row.prompt)]),
                        answer: None,
                        grading: Grading::Instructions(instructions),
                    };
                    tasks.push((place, task));
                }
                let without = all - tasks.len();
                let reason = "they ask for a language, which is not recognised here";
                left_out = (without > 0).then_some((without, reason));
                tasks
            }
        };
        Ok(SuiteTasks { tasks, left_out })
    }
}

impl SuiteTask {
    /// Grades an answer: 1 if it is right, or keeps to all instructions, else 0.
    pub fn score(&self, response: &Response) -> f64 {
        let said = response.message.content.as_str();
        let right = match &self.grading {
            Grading::Number(number) => same_value(said, number),
            Grading::Letter(letter) => mmlu::chosen(said) == Some(*letter),
            Grading::Instructions(instructions) => {
                !said.trim().is_empty() && instructions.iter().all(|one| one.is_followed(said))
            }
        };
        f64::from(u8::from(right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(suite: Suite, name: &str, text: &str) -> Result<SuiteTasks, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        suite.read(&path).map_err(|error| error.to_string())
    }

    fn score(tasks: &SuiteTasks, said: &str) -> Vec<f64> {
        let response = Response {
            message: Message::assistant(said),
            finished: true,
            malformed_calls: 0,
        };
        tasks
            .tasks
            .iter()
            .map(|(_, task)| task.score(&response))
            .collect()
    }

    #[test]
    fn gsm8k_goes_by_the_final_number() {
        let text = r#"{"question": "2 + 2?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"}"#;
        let tasks = read(Suite::Gsm8k, "test.jsonl", text).unwrap();
        assert_eq!(score(&tasks, "2 + 2 = 4\n#### 4"), [1.0]);
        assert_eq!(score(&tasks, "The answer is 4."), [1.0]);
        assert_eq!(score(&tasks, "#### 5"), [0.0]);
        let error = read(
            Suite::Gsm8k,
            "a.jsonl",
            r#"{"question": "q", "answer": "4"}"#,
        );
        assert!(
            error
                .unwrap_err()
                .ends_with("line 1: `answer` has no `#### N`")
        );
    }

    #[test]
    fn mmlu_is_read_as_csv_without_a_header_and_as_rows() {
        let csv = "What is 1 + 1?,1,\"2, or two\",3,4,B\nThe sky is,red,green,blue,black,C\n";
        let rows = "{\"question\": \"What is 1 + 1?\", \"choices\": [\"1\", \"2, or two\", \"3\", \"4\"], \"answer\": 1}\n\
                    {\"question\": \"The sky is\", \"choices\": [\"red\", \"green\", \"blue\", \"black\"], \"answer\": 2}\n";
        let (csv, rows) = (
            read(Suite::Mmlu, "algebra_test.csv", csv).unwrap(),
            read(Suite::Mmlu, "test.jsonl", rows).unwrap(),
        );
        let asked = |tasks: &SuiteTasks| tasks.tasks[0].1.question.clone();
        assert_eq!(asked(&csv), asked(&rows));
        for tasks in [csv, rows] {
            assert_eq!(score(&tasks, "B"), [1.0, 0.0]);
            assert_eq!(
                score(&tasks, "The answer is (C), as A is wrong."),
                [0.0, 1.0]
            );
        }
        let error = read(
            Suite::Mmlu,
            "a.jsonl",
            r#"{"question": "q", "choices": ["a", "b"], "answer": 2}"#,
        );
        assert!(
            error
                .unwrap_err()
                .contains("`answer` is 2, and there are 2 choices")
        );
    }

    #[test]
    fn ifeval_counts_answers_that_keep_to_every_instruction() {
        let text = concat!(
            r#"{"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"], "kwargs": [{}, {"relation": "at least", "num_words": 3}]}"#,
            "\n",
            r#"{"key": 2, "prompt": "p", "instruction_id_list": ["language:response_language"], "kwargs": [{"language": "hi"}]}"#
        );
        let tasks = read(Suite::Ifeval, "input_data.jsonl", text).unwrap();
        assert_eq!(tasks.left_out.map(|(count, _)| count), Some(1));
        assert_eq!(score(&tasks, "one two three"), [1.0]);
        assert_eq!(score(&tasks, "one, two three"), [0.0]);
        assert_eq!(score(&tasks, "one two"), [0.0]);
        let wrong =
            r#"{"prompt": "p", "instruction_id_list": ["punctuation:none"], "kwargs": [{}]}"#;
        let error = read(Suite::Ifeval, "a.jsonl", wrong).unwrap_err();
        assert!(
            error.contains("line 1: the instruction `punctuation:none` is not known"),
            "{error}"
        );
    }
}
