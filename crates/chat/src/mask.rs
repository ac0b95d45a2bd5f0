//! Which tokens of a conversation training counts.

use crate::{Conversation, Error, Message, Rendered, Role};
use serde::{Deserialize, Serialize};
use tinkrs_types::Datum;

/// Which tokens of a conversation training counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

const UNMARKED: &str = "the chat template shows this answer differently in a longer conversation, \
    so it cannot be trained on here: make one example of each answer";

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
        let last = conversation
            .messages
            .iter()
            .rposition(|message| message.role == Role::Assistant);
        let own_weight = |message: usize| {
            let message = conversation.messages.get(message);
            message.and_then(|message| message.weight).unwrap_or(1.0)
        };
        let weigh = |answer: &Option<usize>| match (train_on, *answer) {
            (TrainOn::LastAssistantMessage, Some(message)) if Some(message) != last => 0.0,
            (TrainOn::LastAssistantMessage | TrainOn::AllAssistantMessages, None) => 0.0,
            (TrainOn::AllTokens, None) => 1.0,
            (_, Some(message)) => own_weight(message),
        };
        if train_on != TrainOn::AllTokens {
            let counts = |(index, message): &(usize, &Message)| {
                let wanted = train_on == TrainOn::AllAssistantMessages || Some(*index) == last;
                message.role == Role::Assistant && wanted && own_weight(*index) != 0.0
            };
            let unmarked =
                |(index, _): &(usize, &Message)| !rendered.answer.contains(&Some(*index));
            let messages = conversation.messages.iter().enumerate();
            if let Some((index, _)) = messages.filter(counts).find(unmarked) {
                return Err(Error::Message {
                    index,
                    problem: UNMARKED.to_owned(),
                });
            }
        }
        let weights: Vec<f32> = rendered.answer.iter().map(weigh).collect();
        // The first token is never predicted, so its weight does not count.
        if weights.iter().skip(1).all(|weight| *weight == 0.0) {
            return Err(Error::Conversation {
                problem: "has nothing to train on: no assistant message counts".to_owned(),
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
