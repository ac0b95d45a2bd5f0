//! Training loops for Tinker as library functions.
//!
//! A recipe is a function that takes a service, settings and data, and trains in a run folder:
//!
//! ```no_run
//! use tinkrs::{ServiceClient, TokenizerSource};
//! use tinkrs_recipes::data::{Examples, TooLong};
//! use tinkrs_chat::{Renderer, TrainOn};
//! use tinkrs_recipes::run::Hooks;
//! use tinkrs_recipes::{Schedule, report, sft};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tinkrs_recipes::Error> {
//! let model = "Qwen/Qwen3-8B";
//! let renderer = Renderer::of_model(model, TokenizerSource::new(model).load()?)?;
//! let train_on = TrainOn::LastAssistantMessage;
//! let examples = Examples::read("chats.jsonl", &renderer, train_on, 2048, TooLong::Skip)?;
//!
//! let config = sft::Config { learning_rate: Schedule::new(2e-4), ..sft::Config::new(model) };
//! let service = ServiceClient::from_env();
//! let outcome = sft::train(&service, &config, &examples, "runs/first", Hooks::default()).await?;
//! report::write("runs/first")?;
//! println!("sample from {:?}", outcome.sampler);
//! # Ok(()) }
//! ```
//!
//! Conversations become tokens in [`tinkrs_chat`]. Running that again resumes where it stopped, or does
//! nothing if it finished. The loops are
//! short on purpose: read one, copy it, change it. `examples/` has a program for each.
//!
//! - [`data`]: files to examples to batches;
//! - [`run`]: the folder of a run, and resuming;
//! - [`sft`], [`rl`], [`dpo`], [`distill`]: the loops;
//! - [`evaluate`], [`Tokens`], [`report`]: measuring, estimating, showing.
//!
//! With the feature `clap`, the settings of each loop are arguments of a command line, too.

mod error;

pub mod data;
mod learning_rate;
pub mod run;

pub mod distill;
pub mod dpo;
pub mod rl;
pub mod sft;

mod estimate;
pub mod evaluate;
pub mod graders;
pub mod loggers;
mod prices;
pub mod report;

#[cfg(test)]
mod testing;

pub use error::Error;
pub use estimate::Tokens;
pub use learning_rate::{Decay, Schedule, known_hidden_size, lora_learning_rate};
pub use prices::{Price, Prices};
