//! Which instructions the running CPU offers.
//!
//! Detected once. Everything else asks [`avx2`] and falls back to portable Rust, which uses the same
//! fused multiply-adds in the same order, so that a machine without AVX2 gets correct results, slower.

use std::sync::OnceLock;

/// Whether the AVX2, FMA and F16C kernels may run.
pub(crate) fn avx2() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> bool {
    false
}

/// Compiles a safe function body twice, once for AVX2 and FMA and once for any CPU, and picks at run time.
///
/// The body is ordinary Rust written so that the compiler can vectorise it (fixed-size chunks,
/// `mul_add`, independent lanes). Both versions perform the same IEEE operations in the same order.
macro_rules! vectorised {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "kernels spell out their shapes")]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "kernels spell out their shapes")]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments, reason = "kernels spell out their shapes")]
                fn with_avx2($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                if $crate::kernels::isa::avx2() {
                    // SAFETY: the features named above were detected on this CPU, and the body is safe code.
                    #[allow(unsafe_code, reason = "calling a safe function compiled for a detected CPU feature")]
                    return unsafe { with_avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use vectorised;
