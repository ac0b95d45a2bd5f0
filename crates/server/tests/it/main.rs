//! The server over HTTP, in process, on a free port.

mod caller;
mod endpoints;

mod accounts;
mod checkpoints;
mod copies;
mod downloads;
mod faults;
mod imports;
mod isolation;
mod load;
mod losses;
mod mutations;
mod queue;
mod recovery;
mod refusals;
mod rest;
mod results;
mod sessions;
mod unsupported;
