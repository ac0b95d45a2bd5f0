//! Plain text that is gone on with, for models that have no chat format at all.
//!
//! What a user says is the prompt as it is, and what the assistant says goes on from there, without anything between
//! them: `{"prompt": …, "completion": …}` and a question with its answer are the same text. The token that ends a
//! document ends an answer. There is no way to write more than that.

use super::{Format, RenderOptions};
use crate::{Conversation, Error, Response, Role, Script, Vocabulary};

/// A prompt and its completion, joined, for models without a chat format.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    end: Option<String>,
}

impl Completion {
    /// Sets the spelling of the token that ends a document. Without one, completions do not end.
    #[must_use]
    pub fn end_token(mut self, spelling: impl Into<String>) -> Self {
        self.end = Some(spelling.into());
        self
    }

    /// Takes the end token of a model's folder or GGUF file, if it names one.
    #[cfg(feature = "templates")]
    #[must_use]
    pub fn of_path(path: impl AsRef<std::path::Path>) -> Self {
        Self {
            end: super::template::end_token_of(path.as_ref()),
        }
    }
}

impl Format for Completion {
    fn name(&self) -> &'static str {
        "plain completions"
    }

    fn stop_tokens(&self, vocabulary: &Vocabulary) -> Result<Vec<u32>, Error> {
        let end = self.end.as_deref();
        let id = |end| {
            let control = vocabulary.control(end);
            control.or_else(|| vocabulary.tokenizer().token_id(end))
        };
        Ok(end.and_then(id).into_iter().collect())
    }

    fn ends_answer(&self, token: u32, stops: &[u32], _: &Vocabulary) -> bool {
        stops.contains(&token)
    }

    fn write(
        &self,
        script: &mut Script<'_>,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<(), Error> {
        options.refuse_thinking(self.name())?;
        let refuse = |problem: String| Err(Error::Conversation { problem });
        if !conversation.tools.is_empty() {
            return refuse("has tools, but the model has no chat format to write them in".into());
        }
        let messages = &conversation.messages;
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        let answer = match (roles.as_slice(), options.open) {
            ([Role::User], _) => None,
            ([Role::User, Role::Assistant], false) => Some(&messages[1]),
            _ => {
                let roles: Vec<_> = roles.iter().map(|role| role.name()).collect();
                return refuse(format!(
                    "has messages of {}, but the model has no chat format: expected one of user, or one and the \
                     assistant's answer to it",
                    roles.join(", ")
                ));
            }
        };
        if let Some(token) = script.vocabulary().begin_token() {
            script.token(token);
        }
        script.content(Role::User, Some(0));
        script.text(&messages[0].content).frame();
        if let Some(answer) = answer {
            if !answer.tool_calls.is_empty() || answer.thinking.is_some() {
                let problem = "the model has no chat format for tool calls and thinking";
                return Err(Error::Message {
                    index: 1,
                    problem: problem.to_owned(),
                });
            }
            script.answer(Some(1)).text(&answer.content);
            if let Some(end) = script.stop_tokens().first() {
                script.token(*end);
            }
            script.answer(None);
        }
        Ok(())
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        Response::from_words(text, finished)
    }

    fn begun(&self, _: &str) -> &'static str {
        ""
    }

    fn marks(&self) -> &'static [&'static str] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, TrainOn, testing};

    #[test]
    fn a_question_and_its_answer_are_joined_as_they_are() {
        let renderer = testing::renderer(Completion::default().end_token("<|endoftext|>"));
        let end = renderer.vocabulary().control("<|endoftext|>").unwrap();
        let asked = Conversation::from([Message::user("the weather")]);
        let prompt = renderer.prompt(&asked).unwrap();
        assert_eq!(prompt, renderer.document("the weather").unwrap());
        let both = [Message::user("the weather"), Message::assistant(" is fine")];
        let example = renderer.example(&both.into(), TrainOn::default()).unwrap();
        let text = renderer.vocabulary().decode(&example.tokens).unwrap();
        assert_eq!(text, "the weather is fine<|endoftext|>");
        assert_eq!(example.counted(), example.tokens.len() - prompt.len());
        assert_eq!(example.tokens.last(), Some(&end));
        let answer = renderer.parse(&example.tokens[prompt.len()..]).unwrap();
        assert_eq!(answer.message.content, "is fine");
    }

    #[test]
    fn without_an_end_token_answers_end_where_the_server_says() {
        let renderer = testing::renderer(Completion::default());
        assert_eq!(renderer.sampling_params(3).stop, None);
    }

    #[test]
    fn conversations_are_refused() {
        let renderer = testing::renderer(Completion::default());
        let turns = [
            Message::user("a"),
            Message::assistant("b"),
            Message::user("c"),
        ];
        let error = renderer.prompt(&turns.into()).unwrap_err().to_string();
        assert!(error.contains("user, assistant, user"), "{error}");
        let system = [Message::system("a"), Message::user("b")];
        let error = renderer.prompt(&system.into()).unwrap_err().to_string();
        assert!(error.contains("no chat format"), "{error}");
    }
}
