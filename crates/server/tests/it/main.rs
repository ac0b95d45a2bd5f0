//! The server over HTTP, in process, on a free port.

mod caller;
mod endpoints;
mod soak;
mod socket;
mod talking;
mod way;

mod accept;
mod accounts;
mod anthropic;
mod backends;
mod budget;
mod checkpoints;
mod console;
mod copies;
mod damage;
mod data;
mod downloads;
mod fairness;
mod faults;
mod hostile_endpoints;
mod hostile_folder;
mod imports;
mod isolation;
mod load;
mod losses;
mod memory;
mod mutations;
mod names;
mod numerics;
mod openai;
mod openai_shapes;
mod poison;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod power;
mod queue;
mod recovery;
mod refusals;
mod rest;
mod results;
mod sessions;
mod streams;
mod studio;
mod traces;
mod unsupported;
mod waiting;
