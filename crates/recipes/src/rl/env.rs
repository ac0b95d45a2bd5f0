//! Environments: what a model acts in.

use super::episode::Episode;
use crate::run::Numbers;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tinkrs::{BoxError, SamplingParams};
use tinkrs_chat::{Conversation, Message, Renderer, Response};

/// What an environment is busy with: `Box::pin(async move { … })`.
pub type EnvFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send + 'a>>;

/// What came of an action.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// What the action earned. Rewards of an episode add up.
    pub reward: f64,
    /// Whether the episode is over.
    pub done: bool,
    /// Numbers to watch. Those of an episode add up by name; a step has the mean over its episodes, as `env/NAME`.
    pub metrics: Numbers,
}

impl Turn {
    /// Ends the episode with this reward.
    pub fn end(reward: f64) -> Self {
        Self {
            reward,
            done: true,
            metrics: Numbers::new(),
        }
    }

    /// Continues, with nothing earned yet.
    pub fn go_on() -> Self {
        Self::default()
    }

    /// Adds a number to watch.
    #[must_use]
    pub fn metric(mut self, name: impl Into<String>, number: f64) -> Self {
        *self.metrics.entry(name.into()).or_default() += number;
        self
    }
}

/// One episode: the model sees tokens, writes tokens, and earns a reward.
///
/// Implement it over several turns for games; for a conversation with tools there is
/// [`MessageEnv`](super::MessageEnv), and for one question and one answer [`Question`].
pub trait Env: Send {
    /// Returns what the model sees now: all tokens, from the beginning of the episode.
    ///
    /// If they begin with what was seen and written before, the turns are trained as one
    /// sequence.
    ///
    /// # Errors
    /// If there is nothing to see. The episode has failed.
    fn observe(&self) -> Result<Vec<u32>, BoxError>;

    /// Takes what the model wrote, and may take its time: for a tool, a program, another machine.
    ///
    /// # Errors
    /// If the environment failed, and the episode with it ([`Episodes`](super::Episodes) says what follows). For
    /// a bad action, return a low reward instead.
    fn act<'a>(&'a mut self, tokens: &'a [u32]) -> EnvFuture<'a, Turn>;

    /// Returns what was said, for people to read and for [`Problem::compare`]. By default nothing.
    fn transcript(&self) -> Vec<Message> {
        Vec::new()
    }
}

/// Something to solve, again and again: a group of episodes starts from each.
pub trait Problem: Send + Sync {
    /// Starts an episode.
    ///
    /// # Errors
    /// If it cannot start. The episode has failed.
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>>;

    /// Returns how to sample in it.
    fn params(&self) -> SamplingParams;

    /// Returns what tells it from other problems, such as the tokens of a question, so that a run
    /// does not continue with others than it began with. By default nothing does, and only the number
    /// of problems is checked.
    fn identity(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Returns what each episode of a group earns when all of them are looked at together, on top of what it
    /// earned alone. By default nothing.
    ///
    /// # Errors
    /// If they cannot be compared. The run stops.
    fn compare<'a>(&'a self, group: &'a [Episode]) -> EnvFuture<'a, Vec<f64>> {
        Box::pin(std::future::ready(Ok(vec![0.0; group.len()])))
    }
}

/// Grades an answer: the higher, the better.
pub type Grader = Arc<dyn Fn(&Response) -> f64 + Send + Sync>;

/// A question with one answer, which a function grades.
#[derive(Clone)]
pub struct Question {
    renderer: Renderer,
    prompt: Arc<Vec<u32>>,
    params: SamplingParams,
    grader: Grader,
    asked: Arc<[Message]>,
}

impl Question {
    /// Asks what comes next in a conversation.
    ///
    /// # Errors
    /// If the chat format cannot write the conversation.
    pub fn new(
        renderer: &Renderer,
        conversation: &Conversation,
        max_tokens: u32,
        grader: impl Fn(&Response) -> f64 + Send + Sync + 'static,
    ) -> Result<Self, crate::Error> {
        Ok(Self {
            prompt: Arc::new(renderer.prompt(conversation)?),
            params: renderer.sampling_params(max_tokens),
            renderer: renderer.clone(),
            grader: Arc::new(grader),
            asked: conversation.messages.clone().into(),
        })
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question")
            .field("prompt", &self.prompt)
            .finish_non_exhaustive()
    }
}

impl Problem for Question {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        let asked = Asked {
            question: self.clone(),
            said: None,
        };
        Box::pin(std::future::ready(Ok(Box::new(asked) as Box<dyn Env>)))
    }

    fn params(&self) -> SamplingParams {
        self.params.clone()
    }

    fn identity(&self) -> Vec<u32> {
        self.prompt.to_vec()
    }
}

/// A question that was asked once.
struct Asked {
    question: Question,
    said: Option<Message>,
}

impl Env for Asked {
    fn observe(&self) -> Result<Vec<u32>, BoxError> {
        Ok(self.question.prompt.to_vec())
    }

    fn act<'a>(&'a mut self, tokens: &'a [u32]) -> EnvFuture<'a, Turn> {
        Box::pin(async move {
            let said = self.question.renderer.parse(tokens)?;
            let turn = Turn::end((self.question.grader)(&said));
            self.said = Some(said.message);
            Ok(turn)
        })
    }

    fn transcript(&self) -> Vec<Message> {
        let asked = self.question.asked.iter().cloned();
        asked.chain(self.said.clone()).collect()
    }
}
