//! The numeric kernels: plain functions on `f32` slices.
//!
//! One rule holds for every file here, because the exactness of the whole crate rests on it: **each
//! output element is the result of one fixed sequence of roundings**, which depends on neither the
//! number of rows in the call, nor the number of threads, nor the way work was cut into tiles. Matrix
//! products therefore accumulate over `k` in ascending order with one fused multiply-add a step,
//! whatever the tile; a tile that is spilled to memory between two blocks of `k` loses nothing, since
//! the accumulators are `f32` in registers and in memory.
//!
//! `unsafe` is confined to the files that talk to the CPU's vector unit or share a matrix between
//! threads; each states why it is sound.

pub(crate) mod attention;
pub(crate) mod attention_backward;
pub(crate) mod cached;
#[cfg(test)]
pub(crate) mod check;
pub(crate) mod delta;
pub(crate) mod exp;
pub(crate) mod gated;
pub(crate) mod gemm;
pub(crate) mod isa;
#[cfg(test)]
mod levels;
pub(crate) mod matrix;
mod micro;
#[cfg(target_arch = "x86_64")]
mod micro_avx2;
#[cfg(target_arch = "x86_64")]
mod micro_avx512;
#[cfg(target_arch = "aarch64")]
mod micro_neon;
pub(crate) mod norm;
pub(crate) mod panels;
pub(crate) mod quantised;
pub(crate) mod rope;
pub(crate) mod shared;
mod small;
pub(crate) mod softmax;

pub(crate) use micro::LANES;

/// Returns whether kernels for this processor's vector instructions run. Without them the results are the same, and
/// come slower.
pub fn has_fast_kernels() -> bool {
    isa::level() > isa::Level::Portable
}

/// Returns which instructions the kernels use, such as `AVX2, FMA and F16C`: the best that this processor has, or
/// fewer if the environment variable `TINKRS_KERNELS` says so (`portable`, `avx2`, `avx512`, `neon`
/// or `auto`).
pub fn kernel_instructions() -> &'static str {
    isa::level().instructions()
}
