//! Small encodings of text that several crates need.

use std::fmt::Write;

/// Writes bytes in hexadecimal, in lower case.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes all text");
    }
    text
}

/// Escapes text so that it is one segment of a URL: all but unreserved characters.
pub fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            write!(encoded, "%{byte:02X}").expect("a string takes all text");
        }
    }
    encoded
}

/// Makes a UUID of version 4 of random bits.
pub fn uuid_v4(random: u128) -> String {
    let bits = random & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let mut text = format!("{bits:032x}");
    for place in [20, 16, 12, 8] {
        text.insert(place, '-');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_names_are_written_in_plain_characters() {
        assert_eq!(hex(&[0, 10, 255]), "000aff");
        assert_eq!(percent_encode("a/b?c-_.~é "), "a%2Fb%3Fc-_.~%C3%A9%20");
    }

    #[test]
    fn a_uuid_says_that_it_is_random() {
        assert_eq!(uuid_v4(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid_v4(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
