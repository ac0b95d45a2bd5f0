//! Tests of the wire form as a whole.

mod arbitrary;
mod decoders;
mod generated;
mod golden;
mod hostile;
#[cfg(feature = "schema")]
mod openapi;
#[cfg(feature = "schema")]
mod openapi_page;
mod properties;
