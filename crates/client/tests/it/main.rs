//! The client against the scripted server, and against the real one.
//!
//! One module for each theme. Where a test needs time to pass, it holds the clock
//! (`ManualClock`) and moves it: nothing here sleeps.

mod backpressure;
#[cfg(feature = "blocking")]
mod blocking;
mod bounds;
mod custom_loss;
mod downloads;
mod faults;
mod feed;
mod futures;
mod metrics;
mod ordering;
mod rest;
mod retries;
mod sampling;
mod sessions;
mod support;
mod telemetry;
mod weights;
