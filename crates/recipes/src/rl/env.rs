//! Environments: what a model acts in.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tinkrs::{BoxError, SamplingParams};
use tinkrs_chat::{Conversation, Renderer, Response};

/// What came of an action.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// What the action earned. Rewards of an episode add up.
    pub reward: f64,
    /// Whether the episode is over.
    pub done: bool,
}

impl Turn {
    /// Ends the episode with this reward.
    pub fn end(reward: f64) -> Self {
        Self { reward, done: true }
    }

    /// Continues, with nothing earned yet.
    pub fn go_on() -> Self {
        Self::default()
    }
}

/// One episode: the model sees tokens, writes tokens, and earns a reward.
///
/// Implement it over several turns for tools and games; for one question and one answer there is
/// [`Question`].
pub trait Env: Send {
    /// Returns what the model sees now: all tokens, from the beginning of the episode.
    ///
    /// If they begin with what was seen and written before, the turns are trained as one
    /// sequence.
    ///
    /// # Errors
    /// If there is nothing to see. The run stops.
    fn observe(&self) -> Result<Vec<u32>, BoxError>;

    /// Takes what the model wrote.
    ///
    /// # Errors
    /// If the environment failed. The run stops; for a bad action, return a low reward instead.
    fn act(&mut self, tokens: &[u32]) -> Result<Turn, BoxError>;

    /// Returns what the episode earned on top of its turns, from a judge who takes time, such as
    /// another program. It is asked once, after the last turn; by default there is no such judge.
    fn judge(self: Box<Self>) -> Judgement {
        Box::pin(std::future::ready(Ok(0.0)))
    }
}

/// A reward that is still being computed. If it fails, the run stops.
pub type Judgement = Pin<Box<dyn Future<Output = Result<f64, BoxError>> + Send>>;

/// Something to solve, again and again: a group of episodes starts from each.
pub trait Problem: Send + Sync {
    /// Starts an episode.
    ///
    /// # Errors
    /// If it cannot start. The run stops.
    fn start(&self) -> Result<Box<dyn Env>, BoxError>;

    /// Returns how to sample in it.
    fn params(&self) -> SamplingParams;

    /// Returns what tells it from other problems, such as the tokens of a question, so that a run
    /// does not continue with others than it began with. By default nothing does, and only the number
    /// of problems is checked.
    fn identity(&self) -> Vec<u32> {
        Vec::new()
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
    fn start(&self) -> Result<Box<dyn Env>, BoxError> {
        Ok(Box::new(self.clone()))
    }

    fn params(&self) -> SamplingParams {
        self.params.clone()
    }

    fn identity(&self) -> Vec<u32> {
        self.prompt.to_vec()
    }
}

impl Env for Question {
    fn observe(&self) -> Result<Vec<u32>, BoxError> {
        Ok(self.prompt.to_vec())
    }

    fn act(&mut self, tokens: &[u32]) -> Result<Turn, BoxError> {
        Ok(Turn::end((self.grader)(&self.renderer.parse(tokens)?)))
    }
}
