//! How long a checkpoint may be kept.

use crate::InvalidInput;

/// The shortest time to live of a checkpoint: one hour.
pub const TTL_MIN_SECONDS: u64 = 3_600;
/// The longest time to live of a checkpoint: ten years.
pub const TTL_MAX_SECONDS: u64 = 10 * 365 * 24 * 3_600;

/// Checks a time to live.
///
/// # Errors
/// If it is shorter than an hour or longer than ten years.
pub fn check_ttl(ttl_seconds: u64) -> Result<(), InvalidInput> {
    if (TTL_MIN_SECONDS..=TTL_MAX_SECONDS).contains(&ttl_seconds) {
        return Ok(());
    }
    Err(InvalidInput::new(
        "ttl_seconds",
        ttl_seconds,
        format!("{TTL_MIN_SECONDS} (an hour) to {TTL_MAX_SECONDS} (ten years)"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_an_hour_to_ten_years() {
        for (ttl, ok) in [
            (3_599, false),
            (3_600, true),
            (315_360_000, true),
            (315_360_001, false),
        ] {
            assert_eq!(check_ttl(ttl).is_ok(), ok, "{ttl}");
        }
    }
}
