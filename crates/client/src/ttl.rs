//! Times to live: a `Duration` for callers, whole seconds on the wire.

use std::time::Duration;
use tinkrs_types::InvalidInput;
use tinkrs_types::protocol::check_ttl;

/// Returns a time to live in seconds, as requests carry it.
///
/// # Errors
/// If it is not a whole number of seconds, shorter than an hour or longer than ten years.
pub(crate) fn seconds(ttl: Option<Duration>) -> Result<Option<u64>, InvalidInput> {
    let Some(ttl) = ttl else { return Ok(None) };
    if ttl.subsec_nanos() != 0 {
        let found = format_args!("{ttl:?}");
        return Err(InvalidInput::new("ttl", found, "whole seconds"));
    }
    check_ttl(ttl.as_secs())?;
    Ok(Some(ttl.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_whole_seconds_within_the_limits() {
        assert_eq!(seconds(None), Ok(None));
        assert_eq!(seconds(Some(Duration::from_secs(7_200))), Ok(Some(7_200)));
        let cases = [
            (Duration::from_millis(7_200_500), "7200.5s"),
            (Duration::from_millis(500), "500ms"),
            (Duration::from_secs(60), "60"),
            (Duration::MAX, "whole seconds"),
        ];
        for (ttl, part) in cases {
            let error = seconds(Some(ttl)).unwrap_err().to_string();
            assert!(error.contains("`ttl") && error.contains(part), "{error}");
        }
    }
}
