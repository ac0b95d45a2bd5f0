//! Which instructions the kernels use: one [`Level`] for the process.
//!
//! It is the best that the CPU has, or a lower one that `TINKRS_KERNELS` names. Every level computes the same fused
//! multiply-adds in the same order for each element of a result, so the level changes how fast a result comes, never
//! a bit of it.

use std::ffi::OsStr;
use std::sync::OnceLock;

use crate::Error;

/// The environment variable that names a level; empty and `auto` mean the best one.
const VARIABLE: &str = "TINKRS_KERNELS";

/// A set of instructions that kernels are written for. A later one has all that an earlier one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// What the compiler makes of plain Rust for any CPU.
    Portable,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same and AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON, which is part of every 64-bit ARM CPU.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Level {
    /// All levels that this architecture knows.
    pub(crate) const ALL: &[Self] = &[
        Self::Portable,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "aarch64")]
        Self::Neon,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
        }
    }

    /// What the level asks of a CPU, for people.
    pub(crate) fn instructions(self) -> &'static str {
        match self {
            Self::Portable => "portable code",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "AVX2, FMA and F16C",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "AVX-512 (F, BW, DQ and VL)",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "NEON",
        }
    }

    /// The best level of this CPU.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let has_avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if has_avx2 && has_avx512 {
                return Self::Avx512;
            }
            if has_avx2 {
                return Self::Avx2;
            }
            Self::Portable
        }
        #[cfg(target_arch = "aarch64")]
        return Self::Neon;
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        return Self::Portable;
    }

    /// Finds the level that was asked for among those up to `best`, or says why there is none.
    fn choose(requested: Option<&OsStr>, best: Self) -> Result<Self, String> {
        let requested = requested.map_or_else(String::new, |name| name.display().to_string());
        if requested.is_empty() || requested == "auto" {
            return Ok(best);
        }
        let mut levels = Self::ALL.iter();
        match levels.find(|level| level.name() == requested) {
            Some(&level) if level <= best => Ok(level),
            Some(_) => Err(format!("this processor has {} at most", best.name())),
            None => {
                let names: Vec<_> = Self::ALL.iter().map(|level| level.name()).collect();
                Err(format!(
                    "found `{requested}`, expected auto or one of {}",
                    names.join(", ")
                ))
            }
        }
    }
}

/// Returns the level that kernels run at.
#[inline]
pub(crate) fn level() -> Level {
    #[cfg(test)]
    if let Some(level) = testing::forced() {
        return level;
    }
    match chosen() {
        Ok(level) => *level,
        // Refused by `check` before there is a model; what runs without one has to run somehow.
        Err(_) => Level::Portable,
    }
}

/// Returns whether kernels for AVX2, FMA and F16C may run.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn has_avx2() -> bool {
    level() >= Level::Avx2
}

/// Returns the level for products of eight-bit codes: with AVX-512 these need VNNI, too.
#[inline]
pub(crate) fn int8_level() -> Level {
    let level = level();
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx512 && !is_x86_feature_detected!("avx512vnni") {
        return Level::Avx2;
    }
    level
}

/// Refuses a level that there is not, or that this CPU does not have.
pub(crate) fn check() -> Result<(), Error> {
    match chosen() {
        Ok(_) => Ok(()),
        Err(reason) => Err(Error::invalid(VARIABLE, reason)),
    }
}

fn chosen() -> &'static Result<Level, String> {
    static CHOSEN: OnceLock<Result<Level, String>> = OnceLock::new();
    CHOSEN.get_or_init(|| Level::choose(std::env::var_os(VARIABLE).as_deref(), Level::best()))
}

/// Compiles a safe function body twice, once for AVX2 and FMA and once for any CPU, and picks at run time.
///
/// The body is ordinary Rust written so that the compiler can vectorise it (fixed-size chunks,
/// `mul_add`, independent lanes). Both versions perform the same IEEE operations in the same order. NEON is part of
/// what the compiler may use for any 64-bit ARM CPU: there is one version there.
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
                if $crate::kernels::isa::has_avx2() {
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

/// Runs tests at every level of the CPU, whatever the process was told.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;

    use super::Level;
    use crate::kernels::check::in_pool;

    thread_local! {
        static FORCED: Cell<Option<Level>> = const { Cell::new(None) };
    }

    pub(super) fn forced() -> Option<Level> {
        FORCED.get()
    }

    /// The levels that this CPU has, the portable one first.
    pub(crate) fn levels() -> impl Iterator<Item = Level> {
        let best = Level::best();
        Level::ALL
            .iter()
            .copied()
            .filter(move |&level| level <= best)
    }

    /// Runs something at a level. Other threads are not told.
    pub(crate) fn at<R>(level: Level, run: impl FnOnce() -> R) -> R {
        let before = FORCED.replace(Some(level));
        let result = run();
        FORCED.set(before);
        result
    }

    /// Checks that something gives the same result at every level that this CPU has, on one thread.
    pub(crate) fn same_at_every_level<R>(what: &str, run: impl Fn() -> R + Sync)
    where
        R: PartialEq + Send,
    {
        let run = |level| in_pool(1, || at(level, &run));
        let expected = run(Level::Portable);
        for level in levels().skip(1) {
            assert!(run(level) == expected, "{what} differs with {level:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_level_runs_unless_a_lower_one_is_named() {
        let best = *Level::ALL.last().unwrap();
        for automatic in [None, Some(""), Some("auto")] {
            let chosen = Level::choose(automatic.map(OsStr::new), best);
            assert_eq!(chosen, Ok(best), "{automatic:?}");
        }
        for &level in Level::ALL {
            let chosen = Level::choose(Some(OsStr::new(level.name())), best);
            assert_eq!(chosen, Ok(level));
        }
    }

    #[test]
    fn levels_that_are_unknown_or_not_there_are_refused_by_name() {
        let refusal = |name: &str, best| Level::choose(Some(OsStr::new(name)), best).unwrap_err();
        let unknown = refusal("sse2", Level::Portable);
        assert!(unknown.contains("found `sse2`, expected auto or one of portable"));
        #[cfg(target_arch = "x86_64")]
        {
            let missing = refusal("avx512", Level::Avx2);
            assert_eq!(missing, "this processor has avx2 at most");
        }
    }
}
