//! Timestamps as the API writes them.
//!
//! The official client writes whole seconds without a fraction and all others with six digits,
//! and reads a time without a zone as UTC.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    match time.subsec_nanosecond() {
        0 => serializer.collect_str(time),
        _ => serializer.collect_str(&format_args!("{time:.6}")),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    read(&text)
        .ok_or_else(|| D::Error::custom(format_args!("`{text}` is not an RFC 3339 timestamp")))
}

fn read(text: &str) -> Option<Timestamp> {
    let zoned = || text.parse().ok();
    let naive = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    zoned().or_else(|| Some(naive()?.timestamp()))
}

/// For `Option<Timestamp>`.
pub(crate) mod option {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::serialize(time, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        match Option::<String>::deserialize(deserializer)? {
            None => Ok(None),
            Some(text) => read(&text).map(Some).ok_or_else(|| {
                D::Error::custom(format_args!("`{text}` is not an RFC 3339 timestamp"))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_the_official_client_writes_it() {
        let cases = [
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
            ("2026-01-02T03:04:05.5Z", "2026-01-02T03:04:05.500000Z"),
            ("2026-01-02T03:04:05+01:00", "2026-01-02T02:04:05Z"),
            ("2026-01-02T03:04:05.678900", "2026-01-02T03:04:05.678900Z"),
            ("2026-01-02 03:04:05", "2026-01-02T03:04:05Z"),
        ];
        for (text, expected) in cases {
            let written = serialize(&read(text).unwrap(), serde_json::value::Serializer).unwrap();
            assert_eq!(written, expected, "{text}");
        }
        assert_eq!(read("yesterday"), None);
    }
}
