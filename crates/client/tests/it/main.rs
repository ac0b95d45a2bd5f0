//! The client against a server that misbehaves on script.

mod backpressure;
mod faults;
mod ordering;
mod support;
