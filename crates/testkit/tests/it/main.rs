//! The scripted server keeps the protocol's promises, and breaks them as told.

mod caller;
mod faults;
mod front;
mod promises;
mod reliability;
