//! What a line of a training file may be, and how it becomes an example.

use super::jsonl::read_jsonl;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tinkrs_chat::{Conversation, Example, Message, Renderer, TrainOn};

/// One line of a training file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Line", into = "Line")]
pub enum Record {
    /// `{"messages": [{"role": "user", "content": "…"}, …], "tools": […]}`
    Chat(Conversation),
    /// `{"prompt": "…", "completion": "…"}`: plain text, with no chat format around it.
    Pair {
        /// What the model is given.
        prompt: String,
        /// What it shall write.
        completion: String,
    },
}

impl Record {
    /// Reads the records of a file.
    ///
    /// # Errors
    /// If the file cannot be read or a line is neither kind of record; the error names the line.
    pub fn read(path: impl AsRef<Path>) -> Result<Vec<Self>, Error> {
        read_jsonl(path)
    }

    /// Makes the example that teaches this.
    ///
    /// A pair's completion ends with the token that ends an answer, if the format has one.
    ///
    /// # Errors
    /// If the record has nothing to learn, or the format cannot write it.
    pub fn example(&self, renderer: &Renderer, train_on: TrainOn) -> Result<Example, Error> {
        match self {
            Self::Chat(conversation) => Ok(renderer.example(conversation, train_on)?),
            Self::Pair { prompt, completion } => {
                let vocabulary = renderer.vocabulary();
                let mut completion = if prompt.is_empty() {
                    vocabulary.encode_text(completion)?
                } else {
                    vocabulary.encode_continuation(completion)?
                };
                let prompt = renderer.document(prompt)?;
                if let tinkrs::sampling::Stop::AnyToken(stops) = renderer.stop() {
                    completion.extend(stops.first());
                }
                if completion.is_empty() || prompt.len() + completion.len() < 2 {
                    return Err(Error::Conversation {
                        problem: "has an empty completion".to_owned(),
                    });
                }
                let mut example = Example::from_prompt_completion(&prompt, &completion);
                if train_on == TrainOn::AllTokens {
                    example.weights.fill(1.0);
                }
                Ok(example)
            }
        }
    }
}

/// The members of a line. What is there decides which kind of record it is, so that messages can
/// say what is missing.
#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(
        default,
        alias = "conversations",
        skip_serializing_if = "Option::is_none"
    )]
    messages: Option<Vec<Message>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tools: Option<Vec<tinkrs_chat::Json>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    completion: Option<String>,
}

impl TryFrom<Line> for Record {
    type Error = &'static str;

    fn try_from(line: Line) -> Result<Self, Self::Error> {
        match (line.messages, line.prompt, line.completion) {
            (Some(messages), None, None) => Ok(Self::Chat(Conversation {
                messages,
                tools: line.tools.unwrap_or_default(),
            })),
            (None, Some(prompt), Some(completion)) => Ok(Self::Pair { prompt, completion }),
            (None, Some(_), None) => Err("there is a `prompt`, but no `completion`"),
            (None, None, _) => Err("there are neither `messages` nor a `prompt`"),
            (Some(_), _, _) => Err("there are both `messages` and a `prompt` or `completion`"),
        }
    }
}

impl From<Record> for Line {
    fn from(record: Record) -> Self {
        let mut line = Self {
            messages: None,
            tools: None,
            prompt: None,
            completion: None,
        };
        match record {
            Record::Chat(conversation) => {
                line.messages = Some(conversation.messages);
                line.tools = Some(conversation.tools).filter(|tools| !tools.is_empty());
            }
            Record::Pair { prompt, completion } => {
                line.prompt = Some(prompt);
                line.completion = Some(completion);
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::parse_jsonl;
    use crate::testing;
    use tinkrs_chat::format::RoleColon;

    #[test]
    fn a_line_that_is_no_record_says_what_is_missing() {
        let cases = [
            (r#"{"prompt": "a"}"#, "no `completion`"),
            (r#"{"text": "a"}"#, "neither `messages` nor a `prompt`"),
            (
                r#"{"messages": [], "prompt": "a"}"#,
                "both `messages` and a `prompt`",
            ),
            (
                r#"{"messages": [{"role": "king", "content": "a"}]}"#,
                "unknown variant `king`",
            ),
            ("{", "EOF"),
        ];
        for (line, expected) in cases {
            let text = format!("{{\"prompt\": \"a\", \"completion\": \"b\"}}\n{line}\n");
            let error = parse_jsonl::<Record>(&text, Path::new("x.jsonl"))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("x.jsonl, line 2: "), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_completion_joins_its_prompt_without_a_space_of_its_own() {
        let renderer = Renderer::new(testing::spacing_tokenizer(), RoleColon).unwrap();
        let pair = |prompt: &str, completion: &str| {
            let (prompt, completion) = (prompt.to_owned(), completion.to_owned());
            let pair = Record::Pair { prompt, completion };
            pair.example(&renderer, TrainOn::default()).unwrap().tokens
        };
        let whole = renderer.document("a: b").unwrap();
        assert_eq!(pair("a:", " b"), whole);
        assert_eq!(pair("", "a: b"), whole);
    }

    #[test]
    fn a_pair_teaches_its_completion_and_to_stop() {
        let renderer = testing::renderer();
        let pair = Record::Pair {
            prompt: "the weather".to_owned(),
            completion: " is fine".to_owned(),
        };
        let example = pair
            .example(&renderer, TrainOn::LastAssistantMessage)
            .unwrap();
        let text = renderer.vocabulary().decode(&example.tokens).unwrap();
        assert_eq!(text, "the weather is fine<|im_end|>");
        let prompt = renderer.vocabulary().encode_text("the weather").unwrap();
        assert_eq!(example.counted(), example.tokens.len() - prompt.len());
        let json = serde_json::to_string(&pair).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), pair);
    }
}
