//! Which tokens of a conversation training counts.

use crate::{Conversation, Error, Message, Rendered, Role};
use serde::{Deserialize, Serialize};
use tinkrs_types::Datum;

/// Which tokens of a conversation training counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum TrainOn {
    /// What the assistant writes in its last message, up to and including the end of message.
    #[default]
    #[cfg_attr(feature = "clap", value(alias = "last_assistant_message"))]
    LastAssistantMessage,
    /// What the assistant writes in all its messages.
    #[cfg_attr(feature = "clap", value(alias = "all_assistant_messages"))]
    AllAssistantMessages,
    /// What the assistant writes behind the last user's message, tool calls included.
    #[cfg_attr(feature = "clap", value(alias = "last_assistant_turn"))]
    LastAssistantTurn,
    /// What all messages say, whoever says it, but not the tokens that frame them.
    #[cfg_attr(feature = "clap", value(alias = "all_messages"))]
    AllMessages,
    /// What users and the system say.
    #[cfg_attr(feature = "clap", value(alias = "all_user_and_system_messages"))]
    AllUserAndSystemMessages,
    /// What those messages say that have a `weight`, or `trainable`, of their own, whoever says it.
    Customized,
    /// Every token, also those that the model is only ever given.
    #[cfg_attr(feature = "clap", value(alias = "all_tokens"))]
    AllTokens,
}

/// Tokens, and how much the prediction of each counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// How much each token counts as a target.
    pub weights: Vec<f32>,
}

const UNMARKED_ANSWER: &str = "the chat template shows this answer differently in a longer \
    conversation, so it cannot be trained on here: make one example of each answer";
const UNMARKED_CONTENT: &str = "a chat template does not say where it is written, so it cannot be \
    trained on: use a format with a name, or train on what the assistant writes";

impl TrainOn {
    /// Returns whether what is given to the model may count.
    pub(crate) fn counts_contents(self) -> bool {
        match self {
            Self::AllMessages | Self::AllUserAndSystemMessages | Self::Customized => true,
            Self::LastAssistantMessage
            | Self::AllAssistantMessages
            | Self::LastAssistantTurn
            | Self::AllTokens => false,
        }
    }
}

/// Which messages count.
struct Counted<'c> {
    messages: &'c [Message],
    train_on: TrainOn,
    last_answer: Option<usize>,
    /// Where the last turn begins: behind the last user's message.
    last_turn: usize,
}

impl<'c> Counted<'c> {
    fn new(conversation: &'c Conversation, train_on: TrainOn) -> Self {
        let messages = &conversation.messages;
        let last = |role| messages.iter().rposition(|message| message.role == role);
        Self {
            messages,
            train_on,
            last_answer: last(Role::Assistant),
            last_turn: last(Role::User).map_or(0, |index| index + 1),
        }
    }

    /// Returns how much what is said counts; `message` is `None` if the format itself says it.
    fn weight(&self, role: Role, message: Option<usize>) -> f32 {
        let answer = role == Role::Assistant;
        let counts = match self.train_on {
            TrainOn::LastAssistantMessage => answer && message == self.last_answer,
            TrainOn::AllAssistantMessages => answer,
            TrainOn::LastAssistantTurn => {
                answer && message.is_some_and(|index| index >= self.last_turn)
            }
            TrainOn::AllMessages | TrainOn::AllTokens => true,
            TrainOn::AllUserAndSystemMessages => matches!(role, Role::User | Role::System),
            TrainOn::Customized => message.is_some(),
        };
        if !counts {
            return 0.0;
        }
        let message = message.and_then(|index| self.messages.get(index));
        let own = message.and_then(|message| message.weight);
        let default = f32::from(u8::from(self.train_on != TrainOn::Customized));
        own.unwrap_or(default)
    }

    /// Returns the first message that counts and whose tokens are not known.
    fn unmarked(&self, rendered: &Rendered) -> Option<usize> {
        if self.train_on == TrainOn::AllTokens {
            return None;
        }
        // Formats that mark contents may leave out a message that says nothing, or join two.
        let marks_contents = rendered.content.iter().any(Option::is_some);
        let messages = self.messages.iter().enumerate();
        let mut counted =
            messages.filter(|(index, message)| self.weight(message.role, Some(*index)) != 0.0);
        counted
            .find(|(index, message)| match message.role {
                Role::Assistant => !rendered.answer.contains(&Some(*index)),
                _ => !marks_contents,
            })
            .map(|(index, _)| index)
    }
}

impl Example {
    /// Weighs the tokens of a rendered conversation.
    ///
    /// # Errors
    /// If nothing in it counts: such an example would teach nothing.
    pub fn new(
        rendered: Rendered,
        conversation: &Conversation,
        train_on: TrainOn,
    ) -> Result<Self, Error> {
        let counted = Counted::new(conversation, train_on);
        if let Some(index) = counted.unmarked(&rendered) {
            let problem = match conversation.messages[index].role {
                Role::Assistant => UNMARKED_ANSWER,
                _ => UNMARKED_CONTENT,
            };
            return Err(Error::Message {
                index,
                problem: problem.to_owned(),
            });
        }
        let tokens = rendered.answer.iter().zip(&rendered.content);
        let weights: Vec<f32> = tokens
            .map(|(answer, content)| match (answer, content) {
                (Some(message), _) => counted.weight(Role::Assistant, Some(*message)),
                (None, Some(content)) => counted.weight(content.role, content.message),
                (None, None) if train_on == TrainOn::AllTokens => 1.0,
                (None, None) => 0.0,
            })
            .collect();
        // The first token is never predicted, so its weight does not count.
        if weights.iter().skip(1).all(|weight| *weight == 0.0) {
            return Err(Error::Conversation {
                problem: "has nothing to train on: no message counts".to_owned(),
            });
        }
        Ok(Self {
            tokens: rendered.tokens,
            weights,
        })
    }

    /// Makes an example of a prompt that is given and a completion that counts.
    pub fn from_prompt_completion(prompt: &[u32], completion: &[u32]) -> Self {
        let weights = [vec![0.0; prompt.len()], vec![1.0; completion.len()]].concat();
        Self {
            tokens: [prompt, completion].concat(),
            weights,
        }
    }

    /// Returns how many tokens count.
    pub fn counted(&self) -> usize {
        self.weights
            .iter()
            .skip(1)
            .filter(|weight| **weight != 0.0)
            .count()
    }

    /// Drops what is beyond `max_tokens`.
    ///
    /// Returns `None` if nothing that counts is left.
    #[must_use]
    pub fn truncated(mut self, max_tokens: usize) -> Option<Self> {
        self.tokens.truncate(max_tokens);
        self.weights.truncate(max_tokens);
        (self.counted() > 0).then_some(self)
    }

    /// Makes the datum: inputs are all tokens but the last, targets all but the first.
    ///
    /// # Errors
    /// If there are fewer than two tokens, since there is then nothing to predict.
    pub fn to_datum(&self) -> Result<Datum, Error> {
        if self.tokens.len() < 2 {
            return Err(Error::Conversation {
                problem: format!("has {} tokens, at least 2 are needed", self.tokens.len()),
            });
        }
        let inputs = self.tokens[..self.tokens.len() - 1].to_vec();
        let targets: Vec<i64> = self.tokens[1..]
            .iter()
            .map(|token| i64::from(*token))
            .collect();
        Ok(Datum::supervised(inputs, targets, &self.weights[1..])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Content;

    fn chat() -> Conversation {
        Conversation::from([
            Message::user("q"),
            Message::assistant("a"),
            Message::user("q"),
            Message::assistant("a"),
        ])
    }

    fn rendered() -> Rendered {
        Rendered {
            tokens: vec![1, 2, 3, 4, 5],
            answer: vec![None, Some(1), None, Some(3), None],
            content: vec![
                Some(Content {
                    role: Role::User,
                    message: Some(0),
                }),
                None,
                None,
                None,
                None,
            ],
        }
    }

    #[test]
    fn each_mode_counts_its_own_tokens() {
        let weights = |mode| Example::new(rendered(), &chat(), mode).unwrap().weights;
        assert_eq!(
            weights(TrainOn::LastAssistantMessage),
            [0.0, 0.0, 0.0, 1.0, 0.0]
        );
        assert_eq!(
            weights(TrainOn::AllAssistantMessages),
            [0.0, 1.0, 0.0, 1.0, 0.0]
        );
        assert_eq!(
            weights(TrainOn::LastAssistantTurn),
            [0.0, 0.0, 0.0, 1.0, 0.0]
        );
        assert_eq!(weights(TrainOn::AllMessages), [1.0, 1.0, 0.0, 1.0, 0.0]);
        assert_eq!(weights(TrainOn::AllTokens), [1.0; 5]);
    }

    #[test]
    fn a_message_can_count_less_or_not_at_all() {
        let mut chat = chat();
        chat.messages[1].weight = Some(0.5);
        chat.messages[3].weight = Some(0.0);
        let all = Example::new(rendered(), &chat, TrainOn::AllAssistantMessages).unwrap();
        assert_eq!(all.weights, [0.0, 0.5, 0.0, 0.0, 0.0]);
        let error = Example::new(rendered(), &chat, TrainOn::LastAssistantMessage).unwrap_err();
        assert!(error.to_string().contains("nothing to train on"), "{error}");
        let customized = Example::new(rendered(), &chat, TrainOn::Customized).unwrap();
        assert_eq!(customized.weights, [0.0, 0.5, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn what_users_say_counts_only_where_the_format_says_where_it_is() {
        let mut rendered = rendered();
        rendered.content.fill(None);
        let error = Example::new(rendered, &chat(), TrainOn::AllMessages).unwrap_err();
        assert!(error.to_string().starts_with("message 1:"), "{error}");
    }

    #[test]
    fn targets_are_the_tokens_shifted_by_one_with_their_own_weights() {
        let example = Example::from_prompt_completion(&[5, 6], &[7, 8]);
        assert_eq!(
            example.to_datum().unwrap(),
            Datum::from_prompt_completion(&[5, 6], &[7, 8]).unwrap()
        );
        assert_eq!(example.counted(), 2);
        assert_eq!(example.clone().truncated(3).unwrap().tokens, [5, 6, 7]);
        assert!(example.truncated(2).is_none());
    }
}
