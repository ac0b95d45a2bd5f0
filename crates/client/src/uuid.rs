//! Random identifiers.

/// Returns a random UUID, version 4, as text.
pub(crate) fn v4() -> String {
    let bits = fastrand::u128(..) & !(0xf << 76) & !(0b11 << 62) | (0x4 << 76) | (0b10 << 62);
    let hex = format!("{bits:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_says_that_it_is_random() {
        let id = super::v4();
        assert_eq!(id.len(), 36);
        assert_eq!(&id[14..15], "4");
        assert!(matches!(&id[19..20], "8" | "9" | "a" | "b"), "{id}");
    }
}
