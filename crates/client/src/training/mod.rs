//! Training a model.

#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the training client will call it")
)]
pub(crate) mod chunk;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the training client will call it")
)]
pub(crate) mod combine;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the training client will call it")
)]
pub(crate) mod custom_loss;
