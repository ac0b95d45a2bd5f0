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
    /// `{"messages": [{"role": "user", "content": "…"}, …], "tools": […]}`; also as ShareGPT
    /// (`conversations` of `from` and `value`) and Alpaca (`instruction`, `input`, `output`) have it.
    Chat(Conversation),
    /// `{"prompt": "…", "completion": "…"}` or `{"text": "…"}`: plain text, with no chat format
    /// around it.
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
    /// What ShareGPT and Alpaca files say first.
    #[serde(default, skip_serializing)]
    system: Option<String>,
    #[serde(default, skip_serializing)]
    instruction: Option<String>,
    #[serde(default, skip_serializing)]
    input: Option<String>,
    #[serde(default, skip_serializing)]
    output: Option<String>,
    #[serde(default, skip_serializing)]
    text: Option<String>,
}

const ACCEPTED: &str = "expected `messages` (or `conversations`), `prompt` and `completion`, \
    `instruction` and `output`, or `text`";

impl TryFrom<Line> for Record {
    type Error = String;

    fn try_from(line: Line) -> Result<Self, Self::Error> {
        let system = line.system.filter(|system| !system.is_empty());
        let system = system.map(Message::system);
        let chat = |messages: Vec<Message>, tools: Option<_>| {
            let messages = system.into_iter().chain(messages).collect();
            let tools = tools.unwrap_or_default();
            Ok(Self::Chat(Conversation { messages, tools }))
        };
        // A file of chats often has the first question again as `prompt`, one of instructions all of it as `text`.
        let whole = [
            ("messages", line.messages.is_some()),
            ("pairs", line.prompt.is_some() && line.completion.is_some()),
            (
                "alpaca",
                line.instruction.is_some() && line.output.is_some(),
            ),
        ];
        let whole: Vec<_> = whole.iter().filter(|(_, is)| *is).collect();
        let parts = [
            &line.prompt,
            &line.completion,
            &line.instruction,
            &line.text,
        ];
        if whole.len() > 1 {
            let names: Vec<_> = whole.iter().map(|(name, _)| format!("`{name}`")).collect();
            let names = names.join(" or ");
            return Err(format!(
                "it can be read in two ways: say which with the data format {names}"
            ));
        }
        if whole.is_empty() && parts.into_iter().flatten().count() > 1 {
            return Err(format!("it is a part of two things: {ACCEPTED}"));
        }
        match line {
            Line {
                messages: Some(messages),
                tools,
                ..
            } => chat(messages, tools),
            Line {
                prompt: Some(prompt),
                completion: Some(completion),
                ..
            } => Ok(Self::Pair { prompt, completion }),
            Line {
                instruction: Some(instruction),
                input,
                output: Some(output),
                ..
            } => {
                let input = input.filter(|input| !input.trim().is_empty());
                let asked = match input {
                    Some(input) => format!("{instruction}\n\n{input}"),
                    None => instruction,
                };
                chat(vec![Message::user(asked), Message::assistant(output)], None)
            }
            Line {
                prompt: Some(_), ..
            } => Err("there is a `prompt`, but no `completion`".to_owned()),
            Line {
                instruction: Some(_),
                ..
            } => Err("there is an `instruction`, but no `output`".to_owned()),
            Line {
                text: Some(text), ..
            } => Ok(Self::Pair {
                prompt: String::new(),
                completion: text,
            }),
            _ => Err(format!("nothing to learn from: {ACCEPTED}")),
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
            system: None,
            instruction: None,
            input: None,
            output: None,
            text: None,
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
            (r#"{"instruction": "a"}"#, "no `output`"),
            (r#"{"question": "a"}"#, "expected `messages`"),
            (
                r#"{"messages": [], "prompt": "a", "completion": "b"}"#,
                "read in two ways: say which with the data format `messages` or `pairs`",
            ),
            (
                r#"{"text": "a", "instruction": "b"}"#,
                "a part of two things: expected `messages`",
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
    fn the_members_that_people_have_are_read() {
        let read = |line: &str| serde_json::from_str::<Record>(line).unwrap();
        let chat = |messages: Vec<Message>| Record::Chat(messages.into());
        let share_gpt = r#"{"id": 7, "system": "s", "conversations":
            [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}"#;
        let said = vec![
            Message::system("s"),
            Message::user("q"),
            Message::assistant("a"),
        ];
        assert_eq!(read(share_gpt), chat(said));
        let alpaca = r#"{"instruction": "i", "input": "x", "output": "o"}"#;
        let said = vec![Message::user("i\n\nx"), Message::assistant("o")];
        assert_eq!(read(alpaca), chat(said));
        let alpaca = r#"{"instruction": "i", "input": "", "output": "o"}"#;
        let said = vec![Message::user("i"), Message::assistant("o")];
        assert_eq!(read(alpaca), chat(said));
        let again = r#"{"prompt": "q", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}"#;
        assert_eq!(
            read(again),
            chat(vec![Message::user("q"), Message::assistant("a")])
        );
        let rendered = r#"{"instruction": "i", "input": "", "output": "o", "text": "Below is an instruction"}"#;
        assert_eq!(
            read(rendered),
            chat(vec![Message::user("i"), Message::assistant("o")])
        );
        let text = Record::Pair {
            prompt: String::new(),
            completion: "t".to_owned(),
        };
        assert_eq!(read(r#"{"text": "t", "meta": {}}"#), text);
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
