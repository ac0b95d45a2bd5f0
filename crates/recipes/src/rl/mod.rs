//! Reinforcement learning: play, judge, learn.
//!
//! ```
//! use tinkrs::{BoxError, SamplingParams};
//! use tinkrs_recipes::rl::{Env, Problem, Turn};
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
//!     fn start(&self) -> Result<Box<dyn Env>, BoxError> {
//!         Ok(Box::new(Try { tokens: vec![1, 2, 3], turns: 0 }))
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
//!     fn act(&mut self, written: &[u32]) -> Result<Turn, BoxError> {
//!         self.tokens.extend(written);
//!         self.turns += 1;
//!         Ok(match written {
//!             [token] if *token > 100 => Turn::end(1.0 / self.turns as f64),
//!             _ if self.turns == 2 => Turn::end(0.0),
//!             _ => Turn::go_on(),
//!         })
//!     }
//! }
//!
//! let mut episode = AboveHundred.start()?;
//! assert_eq!(episode.act(&[7])?, Turn::go_on());
//! assert_eq!(episode.observe()?, [1, 2, 3, 7]);
//! assert_eq!(episode.act(&[200])?, Turn::end(0.5));
//! # Ok::<(), BoxError>(())
//! ```
//!
//! Reading order: [`Env`] is what you write, `rollout` plays it, `batch` turns episodes into
//! data, and `train` is the loop.

mod advantage;
mod batch;
mod config;
mod env;
mod episode;
mod loss;
mod rollout;
mod train;

pub use advantage::Baseline;
pub use batch::{Reference, sampler_trainer_kl};
pub(crate) use config::default_checkpoint_every;
pub use config::{Config, PolicyConfig};
pub use env::{Env, Grader, Judgement, Problem, Question, Turn};
pub use episode::{Episode, Sequence};
pub use loss::{PolicyGradient, PolicyLoss};
pub use rollout::{Group, play};
pub use train::{finished, train, train_towards};
