//! The client against the scripted server, and against the real one.
//!
//! One module for each theme. Where a test needs time to pass, it holds the clock
//! (`ManualClock`) and moves it: nothing here sleeps.

mod backpressure;
#[cfg(feature = "blocking")]
mod blocking;
mod bounds;
mod custom_loss;
mod defaults;
mod downloads;
mod faults;
mod feed;
mod futures;
#[cfg(feature = "tokenizers")]
mod hub;
mod metrics;
mod ordering;
mod rest;
mod retries;
mod sampling;
mod sessions;
mod support;
mod telemetry;
#[cfg(feature = "tokenizers")]
mod tokenizers;
mod weights;
