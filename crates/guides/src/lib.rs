//! Tests that the Rust in the README and in the guides of `docs` compiles.
//!
//! A crate of its own, since a published crate cannot include files from outside its folder.

/// The documents, each as the documentation of an item.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/ci.md")]
    struct Ci;
    #[doc = include_str!("../../../docs/from-python-sdk.md")]
    struct FromPythonSdk;
    #[doc = include_str!("../../../docs/hosted.md")]
    struct Hosted;
    #[doc = include_str!("../../../docs/metrics.md")]
    struct Metrics;
    #[doc = include_str!("../../../docs/ordering.md")]
    struct Ordering;
    #[doc = include_str!("../../../docs/rl.md")]
    struct Rl;
}
