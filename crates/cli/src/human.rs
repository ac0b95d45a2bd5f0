//! Values as people read and write them, the same as in the official tool.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Writes a size with a unit, in steps of 1024.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["KB", "MB", "GB", "TB", "PB", "EB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    format!("{value:.1} {unit}")
}

/// Writes how long ago a time is, or when it will be. What is more than 30 days away is a date.
pub(crate) fn age(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - time.as_second();
    let distance = seconds.abs();
    let days = distance / DAY;
    let (count, unit) = match distance {
        _ if days > 30 => return time.strftime("%Y-%m-%d").to_string(),
        _ if days > 7 => (days / 7, "week"),
        _ if days >= 1 => (days, "day"),
        _ if distance > HOUR => (distance / HOUR, "hour"),
        _ if distance > MINUTE => (distance / MINUTE, "minute"),
        _ if seconds < 0 => return "in less than a minute".to_owned(),
        _ => return "just now".to_owned(),
    };
    if seconds < 0 {
        format!("in {}", counted(count.unsigned_abs(), unit))
    } else {
        format!("{} ago", counted(count.unsigned_abs(), unit))
    }
}

/// Writes a number of things.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        _ => format!("{count} {thing}s"),
    }
}

/// Writes `Yes` or `No`.
pub(crate) fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// Writes a value that may be unknown.
pub(crate) fn or_unknown<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "N/A".to_owned(), |value| value.to_string())
}

/// Reads an ISO 8601 date or time. Without an offset it is in UTC, without a time it is midnight.
pub(crate) fn read_time(text: &str) -> Result<Timestamp, String> {
    let zoned = text.parse::<Timestamp>().ok();
    let naive = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    zoned
        .or_else(|| Some(naive()?.timestamp()))
        .ok_or_else(|| "expected a date such as 2026-01-31, or 2026-01-31T12:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_midnight_in_utc_unless_they_say_otherwise() {
        let cases = [
            ("2026-01-31", "2026-01-31T00:00:00Z"),
            ("2026-01-31T12:30:00", "2026-01-31T12:30:00Z"),
            ("2026-01-31 12:30:00", "2026-01-31T12:30:00Z"),
            ("2026-01-31T12:30:00Z", "2026-01-31T12:30:00Z"),
            ("2026-01-31T12:30:00+02:00", "2026-01-31T10:30:00Z"),
        ];
        for (text, expected) in cases {
            assert_eq!(read_time(text).unwrap().to_string(), expected, "{text}");
        }
        for wrong in ["", "yesterday", "2026-13-01", "1700000000"] {
            assert!(read_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_one_decimal_from_a_kilobyte_on() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KB"),
            (1536, "1.5 KB"),
            (5 << 20, "5.0 MB"),
            (3 << 40, "3.0 TB"),
            (u64::MAX, "16.0 EB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn times_are_told_by_their_largest_unit() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let cases = [
            (0, "just now"),
            (60, "just now"),
            (61, "1 minute ago"),
            (3600, "60 minutes ago"),
            (2 * HOUR, "2 hours ago"),
            (DAY, "1 day ago"),
            (7 * DAY, "7 days ago"),
            (8 * DAY, "1 week ago"),
            (15 * DAY, "2 weeks ago"),
            (31 * DAY, "2023-10-14"),
            (-5, "in less than a minute"),
            (-2 * HOUR, "in 2 hours"),
            (-31 * DAY, "2023-12-15"),
        ];
        for (seconds, expected) in cases {
            let time = Timestamp::from_second(now.as_second() - seconds).unwrap();
            assert_eq!(age(time, now), expected, "{seconds} s");
        }
    }
}
