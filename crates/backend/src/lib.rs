//! What a training server needs of an engine: three small synchronous traits.
//!
//! - A [`Backend`] is a base model and what computes with it. It describes itself, says how much memory
//!   something needs before anything is allocated, and makes the other two.
//! - A [`TrainingRun`] is an adapter in training. [`begin`](TrainingRun::begin) gives a [`Pass`], which
//!   computes in slices, so that samples can advance between them.
//! - A [`Sampler`] takes requests and is stepped.
//!
//! What goes in and comes out is plain data of `tinkrs-types`, or files: no result to be delivered, no
//! permit and no channel. Whose request it is, and who waits for it, is the server's business, which
//! keeps it in tables of its own under the [`Ticket`] or the run.
//!
//! ```
//! use tinkrs_backend::{Backend, Error, Objective, PassProgress, PassRequest, TrainingRun};
//! use tinkrs_types::{AdamParams, Datum, LoraConfig, LossFn};
//!
//! /// Trains a step, and returns the loss before it.
//! fn step(run: &mut dyn TrainingRun, data: Vec<Datum>) -> Result<Option<f64>, Error> {
//!     let objective = Objective::BuiltIn(LossFn::CrossEntropy);
//!     let mut pass = run.begin(PassRequest { data, objective, backward: true })?;
//!     let output = loop {
//!         if let PassProgress::Done(output) = pass.advance(1024)? {
//!             break output;
//!         }
//!         // Other work goes here: another run's slice, or a step of the sampler.
//!     };
//!     run.optim_step(&AdamParams::new(1e-4).into())?;
//!     Ok(output.loss())
//! }
//! ```
//!
//! # What every backend promises
//!
//! - **Nothing is half done.** An operation that fails has changed nothing; neither has a pass that was
//!   dropped before its end.
//! - **Slices do not show.** A pass gives the same bits however it was cut into slices, if the backend
//!   [repeats exactly](Description::repeats_exactly) at all.
//! - **Data is checked.** Whatever a client may have sent, a backend refuses with an [`Error`] that
//!   [`is_bad_request`](Error::is_bad_request).

mod adjust;
mod backend;
mod constraint;
mod error;
mod extras;
mod loss;
mod sampler;
mod training;

pub use adjust::LogitAdjuster;
pub use backend::{Backend, Description, Need};
pub use constraint::{Constraint, Grammar, TokenMask};
pub use error::{Error, ErrorKind};
pub use extras::{EndOfSequence, MAX_LOGIT_BIAS, MAX_STOP_TOKENS, SamplingExtras};
pub use loss::{CustomLoss, CustomOutput, Objective};
pub use sampler::{
    AdapterId, Detokenizer, MAX_ALTERNATIVES, MAX_SAMPLES, SampleEvent, SampleRequest, Sampler,
    SamplerOptions, Ticket, check_limits,
};
pub use training::{
    Adapter, Pass, PassProgress, PassRequest, StatePart, TrainingRun, TrainingState,
};
