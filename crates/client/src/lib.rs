//! The Tinker SDK for Rust.

pub mod auth;
mod byte_budget;
mod connection;
mod console;
mod error;
mod future;
mod limiter;
mod options;
pub mod rest;
mod sampling;
mod service;
mod session;
mod training;
mod uuid;

pub use connection::stats::Stats;
pub use error::{BoxError, Error};
pub use future::{Pending, QueueNotice};
pub use limiter::BackpressureScope;
pub use rest::{AdminClient, RestClient};
pub use sampling::{
    ComputeLogprobs, CreateSamplingClient, RetryConfig, Sample, SampleFrom, SamplingClient,
};
pub use service::{ServiceClient, ServiceClientBuilder};
pub use tinkrs_types::*;
pub use training::custom_loss::CustomLoss;
pub use training::{BoxFuture, Request, TrainingClient, operation};
