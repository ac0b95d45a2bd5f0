//! LoRA training and sampling of decoder-only language models on the CPU.
//!
//! Synchronous and self-contained: no HTTP, no async runtime, no autograd framework. A [`Model`] holds
//! frozen weights, packed once for the kernels. A [`TrainingRun`] trains an adapter over it (or all
//! weights of a small model), and [`sample`] draws from it, with any mixture of adapters in a batch.
//!
//! ```
//! use std::sync::Arc;
//! use tinkrs_engine::types::{AdamParams, Datum, LoraConfig, LossFn};
//! use tinkrs_engine::weights::{Dtype, RandomWeights};
//! use tinkrs_engine::{SequenceInput, KvCache, Model, ModelConfig, Precision, Threads, TrainingRun};
//!
//! let source = RandomWeights::new(ModelConfig::tiny_qwen3(), 1, Dtype::Bf16)?;
//! let model = Arc::new(Model::load(&source, Precision::Stored, &Threads::all_cores()?)?);
//!
//! let mut run = TrainingRun::lora(Arc::clone(&model), &LoraConfig::new(8))?;
//! for _ in 0..3 {
//!     run.forward_backward(&[Datum::from_prompt_completion(&[1, 5], &[9, 2])?], &LossFn::CrossEntropy)?;
//!     run.optim_step(&AdamParams::new(1e-2))?;
//! }
//!
//! let adapter = run.adapter().expect("a LoRA run has one");
//! let mut cache = KvCache::new(&model);
//! let input = SequenceInput { adapter: Some(&adapter), ..SequenceInput::new(&mut cache, &[1, 5]) };
//! let hidden = model.step(&mut [input])?;
//! assert_eq!(model.logits(&hidden, 0..1).len(), model.config().vocab);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds everywhere
//!
//! - **Same input, same build: same bits**, for any number of threads, any batch composition, and any
//!   way of cutting a batch into calls. Every output element is one fixed sequence of roundings.
//! - **One numeric path.** Training, prefill and decoding read the same stored weights with the same
//!   kernels in the same order; a sampler's log-probabilities are those of `forward`, bit for bit.
//! - **Nothing is half done.** An operation that fails has changed nothing.
//!
//! # One training step, from top to bottom
//!
//! [`TrainingRun::forward_backward`] (`train`) checks the datums and packs them without padding; the
//! model's `forward` runs the blocks and keeps activations; `head` computes log-probabilities and, once
//! the [`loss`] has given its derivatives, goes back; `backward` undoes the blocks and continues the
//! gradient sums. All of them stand on `kernels::gemm`, which stands on `kernels::micro`.
//! [`TrainingRun::optim_step`] hands the sums to [`optim`].
//!
//! A server does not name these types: it uses [`CpuBackend`], the traits of `tinkrs-backend`.

pub mod config;
pub mod error;
mod files;
pub mod weights;

mod kernels;
mod model;
mod rng;
mod threads;

pub mod adapter;
pub mod loss;
pub mod optim;
pub mod peft;
mod train;

pub mod sample;

mod backend;

pub use adapter::Adapter;
pub use backend::CpuBackend;
pub use config::ModelConfig;
pub use error::Error;
pub use kernels::cached::CacheFormat;
pub use kernels::quantised::Activations;
pub use kernels::{has_fast_kernels, kernel_instructions};
pub use model::{Hidden, KvCache, Model, Numerics, Precision, SequenceInput};
pub use threads::Threads;
pub use tinkrs_types as types;
pub use train::{FullWeights, TrainState, TrainingRun};
