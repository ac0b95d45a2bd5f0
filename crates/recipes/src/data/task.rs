//! Questions with answers, for models that are judged by what they say.

use serde::Deserialize;
use tinkrs_chat::{Conversation, Json, Message};

/// One line of a file of questions.
///
/// `{"prompt": "…", "answer": "…"}`, where the prompt is what a user asks, or the same with
/// `messages`. What else is in the line is for graders that want it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Line")]
pub struct Task {
    /// What is asked.
    pub question: Conversation,
    /// The right answer, where there is one. A number in the file is the same as its text.
    pub answer: Option<String>,
    /// What else is in the line.
    pub fields: serde_json::Map<String, serde_json::Value>,
}

impl Task {
    /// Returns the last thing that was said: for a single question, the question.
    pub fn prompt(&self) -> &str {
        let last = self.question.messages.last();
        last.map_or("", |message| &message.content)
    }
}

#[derive(Deserialize)]
struct Line {
    #[serde(default, alias = "conversations")]
    messages: Option<Vec<Message>>,
    #[serde(default)]
    tools: Option<Vec<Json>>,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    answer: Option<Answer>,
    #[serde(flatten)]
    fields: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Text(String),
    Number(serde_json::Number),
    Other(serde::de::IgnoredAny),
}

impl TryFrom<Line> for Task {
    type Error = &'static str;

    fn try_from(line: Line) -> Result<Self, Self::Error> {
        let messages = match (line.messages, line.prompt) {
            (Some(messages), None) if messages.is_empty() => return Err("`messages` is empty"),
            (Some(messages), None) => messages,
            (None, Some(prompt)) => vec![Message::user(prompt)],
            (None, None) => return Err("there are neither `messages` nor a `prompt`"),
            (Some(_), Some(_)) => return Err("there are both `messages` and a `prompt`"),
        };
        let answer = match line.answer {
            None => None,
            Some(Answer::Text(text)) => Some(text),
            Some(Answer::Number(number)) => Some(number.to_string()),
            Some(Answer::Other(_)) => return Err("the `answer` is neither a text nor a number"),
        };
        Ok(Self {
            question: Conversation {
                messages,
                tools: line.tools.unwrap_or_default(),
            },
            answer,
            fields: line.fields,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_a_question_and_maybe_an_answer() {
        let read = |text: &str| serde_json::from_str::<Task>(text).map_err(|e| e.to_string());
        let task = read(r#"{"prompt": "2 + 2?", "answer": 4, "id": "x"}"#).unwrap();
        assert_eq!(task.prompt(), "2 + 2?");
        assert_eq!(task.answer.as_deref(), Some("4"));
        let chat = read(r#"{"messages": [{"role": "user", "content": "Hi"}]}"#).unwrap();
        assert_eq!((chat.prompt(), &chat.answer), ("Hi", &None));
        let cases = [
            ("{}", "neither `messages` nor a `prompt`"),
            (r#"{"messages": []}"#, "`messages` is empty"),
            (r#"{"prompt": "a", "messages": []}"#, "both `messages`"),
            (
                r#"{"prompt": "a", "answer": [1]}"#,
                "neither a text nor a number",
            ),
        ];
        for (line, expected) in cases {
            let error = read(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
