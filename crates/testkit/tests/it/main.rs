//! The scripted server keeps the protocol's promises, and breaks them as told.

mod caller;
mod faults;
mod listings;
mod promises;
mod reliability;
