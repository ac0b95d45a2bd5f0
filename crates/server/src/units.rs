//! Times and sizes as settings spell them: `30s`, `5m`, `1MiB`.
//!
//! Each module reads a text ([`duration::parse`], [`bytes::parse`]) and fits `#[serde(with = …)]`. A bare
//! number is seconds or bytes.

/// Times, such as `500ms`, `30s` or `5m 30s`.
pub mod duration {
    use jiff::SignedDuration;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    /// Reads a time. A bare number is seconds.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tinkrs_server::units::duration;
    ///
    /// assert_eq!(duration::parse("5m 30s"), Ok(Duration::from_secs(330)));
    /// assert_eq!(duration::parse("0.5"), Ok(Duration::from_millis(500)));
    /// assert!(duration::parse("-1s").is_err());
    /// ```
    ///
    /// # Errors
    /// If the text is not a time, or a negative one.
    pub fn parse(text: &str) -> Result<Duration, String> {
        let expected = || format!("`{text}`, expected a time such as 500ms, 30s, 5m or 24h");
        if let Ok(seconds) = text.parse::<f64>() {
            return Duration::try_from_secs_f64(seconds).map_err(|_| expected());
        }
        let time: SignedDuration = text.parse().map_err(|_| expected())?;
        Duration::try_from(time).map_err(|_| expected())
    }

    /// Writes a time as [`parse`] reads it.
    pub fn format(time: Duration) -> String {
        match SignedDuration::try_from(time) {
            Ok(time) => format!("{time:#}"),
            // Longer than any clock: seconds alone can say so.
            Err(_) => time.as_secs().to_string(),
        }
    }

    /// Writes a time as a text.
    ///
    /// # Errors
    /// If the format cannot hold a text.
    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format(*time))
    }

    /// Reads a time from a text, or from a number of seconds.
    ///
    /// # Errors
    /// If it is not a time.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = super::TextOrNumber::deserialize(from)?;
        parse(&text.into_text()).map_err(D::Error::custom)
    }
}

/// Sizes, such as `512KiB` or `1MB`.
pub mod bytes {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    const UNITS: [(&str, u64); 8] = [
        ("", 1),
        ("B", 1),
        ("KB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
    ];

    /// Reads a size. A bare number is bytes.
    ///
    /// ```
    /// use tinkrs_server::units::bytes;
    ///
    /// assert_eq!(bytes::parse("1MiB"), Ok(1 << 20));
    /// assert_eq!(bytes::parse("1500"), Ok(1500));
    /// assert!(bytes::parse("1 parsec").is_err());
    /// ```
    ///
    /// # Errors
    /// If the text is not a whole number with a unit from bytes to gibibytes.
    pub fn parse(text: &str) -> Result<u64, String> {
        let expected = || format!("`{text}`, expected a size such as 4096, 512KiB or 1MB");
        let end = text.find(|c: char| !c.is_ascii_digit());
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        let number: u64 = number.parse().map_err(|_| expected())?;
        let unit = unit.trim();
        let unit = UNITS.iter().find(|(name, _)| *name == unit);
        let (_, bytes) = unit.ok_or_else(expected)?;
        number.checked_mul(*bytes).ok_or_else(expected)
    }

    /// Writes a size as [`parse`] reads it.
    pub fn format(size: u64) -> String {
        let fits = |(_, bytes): &&(&str, u64)| {
            size > 0 && bytes.is_power_of_two() && size.is_multiple_of(*bytes)
        };
        let (unit, bytes) = UNITS.iter().rfind(fits).unwrap_or(&UNITS[0]);
        format!("{}{unit}", size / bytes)
    }

    /// Sizes that may be left out.
    pub mod optional {
        use serde::{Deserialize, Deserializer, Serializer};

        /// Writes a size as a text, or nothing.
        ///
        /// # Errors
        /// If the format cannot hold a text.
        pub fn serialize<S: Serializer>(size: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
            match size {
                Some(size) => super::serialize(size, to),
                None => to.serialize_none(),
            }
        }

        /// Reads a size, or nothing.
        ///
        /// # Errors
        /// If it is not a size.
        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
            #[derive(Deserialize)]
            struct Size(#[serde(with = "super")] u64);
            let size = Option::<Size>::deserialize(from)?;
            Ok(size.map(|Size(size)| size))
        }
    }

    /// Writes a size as a text.
    ///
    /// # Errors
    /// If the format cannot hold a text.
    pub fn serialize<S: Serializer>(size: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format(*size))
    }

    /// Reads a size from a text, or from a number of bytes.
    ///
    /// # Errors
    /// If it is not a size.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = super::TextOrNumber::deserialize(from)?;
        parse(&text.into_text()).map_err(D::Error::custom)
    }
}

/// A value with its unit, or without one.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "expected a number, or a text with a unit")]
enum TextOrNumber {
    Text(String),
    Whole(u64),
    Number(f64),
}

impl TextOrNumber {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Whole(number) => number.to_string(),
            Self::Number(number) => number.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_written_is_read_again() {
        for milliseconds in [0, 1, 500, 30_000, 330_000, 300_000, 24 * 3_600_000] {
            let time = Duration::from_millis(milliseconds);
            let text = duration::format(time);
            assert_eq!(duration::parse(&text), Ok(time), "{text}");
        }
        assert_eq!(duration::format(Duration::from_secs(330)), "5m 30s");
        for size in [0, 1, 1000, 1024, 1 << 20, 3 << 30, u64::MAX] {
            let text = bytes::format(size);
            assert_eq!(bytes::parse(&text), Ok(size), "{text}");
        }
        assert_eq!(bytes::format(1 << 20), "1MiB");
    }

    #[test]
    fn what_is_not_a_time_or_a_size_is_refused() {
        for text in ["", "s", "-1", "-1s", "1 parsec", "nan", "inf", "1e30"] {
            assert!(duration::parse(text).is_err(), "{text}");
        }
        for text in ["", "-1", "1.5MiB", "MiB", "1kib", "99999999999GiB"] {
            assert!(bytes::parse(text).is_err(), "{text}");
        }
    }
}
