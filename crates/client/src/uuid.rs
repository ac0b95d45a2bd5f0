//! Random identifiers.

/// Returns a random UUID, version 4, as text.
pub(crate) fn v4() -> String {
    let bits = fastrand::u128(..) & !(0xf << 76) & !(0b11 << 62) | (0x4 << 76) | (0b10 << 62);
    let mut text = String::with_capacity(36);
    for nibble in 0..32 {
        if matches!(nibble, 8 | 12 | 16 | 20) {
            text.push('-');
        }
        let digit = (bits >> (124 - 4 * nibble)) & 0xf;
        text.push(char::from(b"0123456789abcdef"[digit as usize]));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_says_that_it_is_random() {
        let id = super::v4();
        assert_eq!(id.len(), 36);
        let dashes: Vec<usize> = id.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!(dashes, [8, 13, 18, 23], "{id}");
        assert_eq!(&id[14..15], "4");
        assert!(matches!(&id[19..20], "8" | "9" | "a" | "b"), "{id}");
    }
}
