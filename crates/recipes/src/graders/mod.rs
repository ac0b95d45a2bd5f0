//! Grading answers, as tables of a TOML file say: [`RewardSpec`].
//!
//! What can be computed from the answer and the row alone is [`grade`]; a model that judges is [`LlmJudge`], one that was
//! trained to is [`RewardModel`](crate::reward::RewardModel). Programs are run by the command line.

mod llm;
mod math;
mod polynomial;
mod rational;
mod schema;
mod spec;

pub use llm::LlmJudge;
pub use math::{final_answer, grade as same_value};
pub use schema::Schema;
pub use spec::{
    CommandSpec, JudgeSpec, Kind, NumberSpec, RegexSpec, RewardModelSpec, RewardSpec, UnitTestsSpec,
};

use crate::data::Task;
use crate::evaluate::last_number;
use tinkrs_chat::Response;

/// Refuses a row that cannot be graded in this way.
///
/// # Errors
/// If it lacks what answers are compared with.
pub fn check(kind: &Kind, task: &Task) -> Result<(), String> {
    let answer = task.answer.as_deref();
    let needed = || answer.ok_or_else(|| "no `answer` to compare with".to_owned());
    let nothing =
        |answer: &str| format!("the answer `{answer}` has nothing that could be compared");
    match kind {
        Kind::Text(check) => match needed()? {
            answer if check.accepts(answer) => Ok(()),
            answer => Err(nothing(answer)),
        },
        Kind::Number(_) => match needed()? {
            answer if last_number(answer).is_some() => Ok(()),
            answer => Err(nothing(answer)),
        },
        Kind::Math => match needed()? {
            answer if !final_answer(answer).is_empty() => Ok(()),
            answer => Err(nothing(answer)),
        },
        Kind::Regex(RegexSpec { pattern: None }) => {
            let pattern = spec::expression(needed()?);
            pattern
                .map(drop)
                .map_err(|error| format!("the `answer` is no regular expression: {error}"))
        }
        Kind::UnitTests(spec) => tests(spec, task).map(drop),
        Kind::Regex(_)
        | Kind::JsonSchema(_)
        | Kind::Judge(_)
        | Kind::RewardModel(_)
        | Kind::Command(_) => Ok(()),
    }
}

/// Grades an answer, if that takes nothing but the answer and the row.
pub fn grade(kind: &Kind, task: &Task, response: &Response) -> Option<f64> {
    let said = response.message.content.as_str();
    let expected = task.answer.as_deref().unwrap_or_default();
    let right = match kind {
        Kind::Text(check) => return Some(check.grade(response, expected)),
        Kind::Number(spec) => near(spec, said, expected),
        Kind::Math => same_value(said, expected),
        Kind::Regex(RegexSpec {
            pattern: Some(pattern),
        }) => match (pattern.captures(said), &task.answer) {
            (Some(found), Some(answer)) if found.len() > 1 => found
                .get(1)
                .is_some_and(|group| group.as_str().trim() == answer.trim()),
            (found, _) => found.is_some(),
        },
        Kind::Regex(RegexSpec { pattern: None }) => {
            spec::expression(expected).is_ok_and(|pattern| pattern.is_match(said))
        }
        Kind::JsonSchema(schema) => {
            let value = serde_json::from_str(code(said).trim());
            value.is_ok_and(|value| schema.accepts(&value))
        }
        Kind::UnitTests(_) | Kind::Judge(_) | Kind::RewardModel(_) | Kind::Command(_) => {
            return None;
        }
    };
    Some(f64::from(u8::from(right)))
}

fn near(spec: &NumberSpec, said: &str, expected: &str) -> bool {
    let (Some(said), Some(expected)) = (last_number(said), last_number(expected)) else {
        return false;
    };
    let off = (said - expected).abs();
    off <= spec.tolerance.max(spec.relative * expected.abs())
}

/// Returns the last block of code between fences in an answer, or all of it.
pub fn code(answer: &str) -> &str {
    let mut blocks = Vec::new();
    let mut rest = answer;
    while let Some(start) = rest.find("```") {
        let inner = &rest[start + 3..];
        // The language stands behind the fence.
        let begin = inner.find('\n').map_or(inner.len(), |end| end + 1);
        let inner = &inner[begin..];
        let Some(end) = inner.find("```") else {
            // An answer that was cut short has no end.
            blocks.push(inner);
            break;
        };
        blocks.push(&inner[..end]);
        rest = &inner[end + 3..];
    }
    blocks.pop().unwrap_or(answer)
}

/// Returns the tests of a row.
///
/// # Errors
/// If there are none.
pub fn tests(spec: &UnitTestsSpec, task: &Task) -> Result<Vec<String>, String> {
    use serde_json::Value;
    let member = task.fields.get(&spec.tests);
    let tests = match member {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => {
            let texts = list.iter().map(|item| item.as_str().map(str::to_owned));
            let texts: Option<Vec<_>> = texts.collect();
            texts.ok_or_else(|| format!("`{}` is not a list of texts", spec.tests))?
        }
        Some(_) => {
            return Err(format!(
                "`{}` is neither a text nor a list of texts",
                spec.tests
            ));
        }
        None => return Err(format!("no `{}` to run", spec.tests)),
    };
    if tests.is_empty() || tests.iter().any(|test| test.trim().is_empty()) {
        return Err(format!("`{}` has an empty test, or none", spec.tests));
    }
    Ok(tests)
}

#[cfg(test)]
mod tests_of_grades {
    use super::*;
    use tinkrs_chat::Message;

    fn graded(reward: &str, row: &str, said: &str) -> f64 {
        let spec: RewardSpec = reward.parse().unwrap();
        let task: Task = serde_json::from_str(row).unwrap();
        check(&spec.kind, &task).unwrap();
        let response = Response {
            message: Message::assistant(said),
            finished: true,
            malformed_calls: 0,
        };
        grade(&spec.kind, &task, &response).unwrap()
    }

    #[test]
    fn each_type_grades_as_it_says() {
        let row = |answer: &str| {
            format!(
                "{{\"prompt\": \"q\", \"answer\": {}}}",
                serde_json::json!(answer)
            )
        };
        let cases = [
            ("exact", "42", " 42\n", 1.0),
            ("math", "1/2", "so \\boxed{0.5}", 1.0),
            ("math", "#### 12", "about 13", 0.0),
            ("type=\"number\", relative=0.01", "100", "it is 100.9", 1.0),
            ("type=\"number\", tolerance=0.5", "100", "it is 100.9", 0.0),
            (
                "type=\"regex\", pattern=\"^Answer: (\\\\w+)\"",
                "blue",
                "Answer: blue.",
                1.0,
            ),
            (
                "type=\"regex\", pattern=\"^Answer: (\\\\w+)\"",
                "blue",
                "Answer: red",
                0.0,
            ),
            ("type=\"regex\", pattern=\"(?i)sky\"", "", "The SKY", 0.0), // The group of (?i) is none; the answer is not compared.
            ("regex", "^a+$", "aaa", 1.0),
            (
                "type=\"json_schema\", schema={type=\"object\"}",
                "",
                "Here:\n```json\n{\"a\": 1}\n```\n",
                1.0,
            ),
            (
                "type=\"json_schema\", schema={type=\"object\"}",
                "",
                "{\"a\": 1",
                0.0,
            ),
        ];
        for (reward, answer, said, expected) in cases {
            let expected = if reward.contains("(?i)") {
                1.0
            } else {
                expected
            };
            assert_eq!(
                graded(reward, &row(answer), said),
                expected,
                "{reward}: {said}"
            );
        }
    }

    #[test]
    fn rows_that_cannot_be_graded_are_refused() {
        for (reward, row, problem) in [
            ("exact", r#"{"prompt": "q"}"#, "no `answer`"),
            (
                "number",
                r#"{"prompt": "q", "answer": "many"}"#,
                "nothing that could be compared",
            ),
            (
                "regex",
                r#"{"prompt": "q", "answer": "("}"#,
                "no regular expression",
            ),
            ("unit_tests", r#"{"prompt": "q"}"#, "no `tests` to run"),
            (
                "unit_tests",
                r#"{"prompt": "q", "tests": [1]}"#,
                "not a list of texts",
            ),
        ] {
            let spec: RewardSpec = reward.parse().unwrap();
            let error = check(&spec.kind, &serde_json::from_str(row).unwrap()).unwrap_err();
            assert!(error.contains(problem), "{reward}: {error}");
        }
    }

    #[test]
    fn code_is_the_last_block_of_an_answer() {
        assert_eq!(code("x = 1"), "x = 1");
        assert_eq!(code("a\n```python\nx\n```\nb\n```\ny\n```\n"), "y\n");
        assert_eq!(code("```py\nx = 1"), "x = 1");
    }
}
