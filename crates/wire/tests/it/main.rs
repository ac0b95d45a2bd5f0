//! Tests of the wire form as a whole.

mod generated;
mod golden;
