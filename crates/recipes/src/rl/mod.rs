//! Reinforcement learning: play, judge, learn.
//!
//! ```
//! use tinkrs::{BoxError, SamplingParams};
//! use tinkrs_recipes::rl::{Env, EnvFuture, Problem, Turn};
//!
//! /// Two turns to write a token above 100; the second one sees what the first one wrote.
//! struct AboveHundred;
//!
//! struct Try {
//!     tokens: Vec<u32>,
//!     turns: usize,
//! }
//!
//! impl Problem for AboveHundred {
//!     fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
//!         let game: Box<dyn Env> = Box::new(Try { tokens: vec![1, 2, 3], turns: 0 });
//!         Box::pin(async { Ok(game) })
//!     }
//!
//!     fn params(&self) -> SamplingParams {
//!         SamplingParams::new(1)
//!     }
//! }
//!
//! impl Env for Try {
//!     fn observe(&self) -> Result<Vec<u32>, BoxError> {
//!         Ok(self.tokens.clone())
//!     }
//!
//!     fn act<'a>(&'a mut self, written: &'a [u32]) -> EnvFuture<'a, Turn> {
//!         Box::pin(async move {
//!             self.tokens.extend(written);
//!             self.turns += 1;
//!             Ok(match written {
//!                 [token] if *token > 100 => Turn::end(1.0 / self.turns as f64),
//!                 _ if self.turns == 2 => Turn::end(0.0),
//!                 _ => Turn::go_on(),
//!             })
//!         })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let mut episode = AboveHundred.start().await?;
//! assert_eq!(episode.act(&[7]).await?, Turn::go_on());
//! assert_eq!(episode.observe()?, [1, 2, 3, 7]);
//! assert_eq!(episode.act(&[200]).await?, Turn::end(0.5));
//! # Ok(())
//! # }
//! ```
//!
//! Reading order: [`Env`] is what you write, `rollout` plays it, `playing` and `asynchronous` say when, `batch`
//! turns episodes into data, and `train` is the loop.

mod advantage;
mod asynchronous;
mod batch;
mod config;
mod env;
mod episode;
mod episodes;
mod loss;
mod message_env;
mod on_demand;
mod playing;
mod rollout;
mod tools;
mod train;
mod transcripts;

pub use advantage::Baseline;
pub use batch::{Reference, sampler_trainer_kl};
pub(crate) use config::default_checkpoint_every;
pub use config::{Config, PolicyConfig, Stale};
pub use env::{Env, EnvFuture, Grader, Problem, Question, Turn};
pub use episode::{Episode, Sequence};
pub use episodes::Episodes;
pub use loss::{PolicyGradient, PolicyLoss};
pub use message_env::{Dialogue, MessageEnv, Reply};
pub use on_demand::on_demand;
pub use rollout::{Group, Played, play};
pub use tools::{Tool, ToolUse, Tools};
pub use train::{finished, train, train_towards};
