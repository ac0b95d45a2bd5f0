//! The server over HTTP, in process, on a free port.

mod caller;
mod checkpoints;
mod losses;
mod queue;
mod recovery;
mod refusals;
mod results;
