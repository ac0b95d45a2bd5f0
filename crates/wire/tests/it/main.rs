//! Tests of the wire form as a whole.

mod decoders;
mod generated;
mod golden;
mod hostile;
