//! Reinforcement learning: play, judge, learn.
//!
//! Reading order: [`Env`] is what you write, `rollout` plays it, `batch` turns episodes into
//! data, and `train` is the loop.

mod advantage;
mod batch;
mod config;
mod env;
mod episode;
mod rollout;
mod train;

pub use advantage::Baseline;
pub use batch::{Reference, sampler_trainer_kl};
pub use config::{Config, PolicyLoss};
pub use env::{Env, Grader, Problem, Question, Turn};
pub use episode::{Episode, Sequence};
pub use rollout::{Group, play};
pub use train::{train, train_towards};
