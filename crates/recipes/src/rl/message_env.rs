//! Environments that speak in messages.

use super::env::{Env, EnvFuture, Turn};
use tinkrs::BoxError;
use tinkrs_chat::{Conversation, Message, Renderer, Response};

/// What an environment says to an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// What the model sees next; nothing needs to be said when the episode is over.
    pub messages: Vec<Message>,
    /// What the answer earned, and whether the episode is over.
    pub turn: Turn,
}

/// An episode in messages: the model's answer in, other messages out. [`Dialogue`] makes an [`Env`] of it.
pub trait MessageEnv: Send {
    /// Replies to an answer.
    ///
    /// # Errors
    /// As [`Env::act`].
    fn reply<'a>(&'a mut self, answer: &'a Response) -> EnvFuture<'a, Reply>;
}

/// A conversation with a [`MessageEnv`], in the chat format of a model.
pub struct Dialogue {
    renderer: Renderer,
    conversation: Conversation,
    env: Box<dyn MessageEnv>,
}

impl Dialogue {
    /// Begins a conversation; `opening` has the tools, if there are any.
    pub fn new(renderer: &Renderer, opening: Conversation, env: impl MessageEnv + 'static) -> Self {
        Self {
            renderer: renderer.clone(),
            conversation: opening,
            env: Box::new(env),
        }
    }
}

impl std::fmt::Debug for Dialogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialogue")
            .field("conversation", &self.conversation)
            .finish_non_exhaustive()
    }
}

impl Env for Dialogue {
    fn observe(&self) -> Result<Vec<u32>, BoxError> {
        Ok(self.renderer.prompt(&self.conversation)?)
    }

    fn act<'a>(&'a mut self, tokens: &'a [u32]) -> EnvFuture<'a, Turn> {
        Box::pin(async move {
            let answer = self.renderer.parse(tokens)?;
            let reply = self.env.reply(&answer).await?;
            self.conversation.messages.push(answer.message);
            self.conversation.messages.extend(reply.messages);
            Ok(reply.turn)
        })
    }

    fn transcript(&self) -> Vec<Message> {
        self.conversation.messages.clone()
    }
}
