//! An owner: the public side of a key.

use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Whose a thing is.
///
/// It is written `owner-` and 16 hexadecimal digits, the start of the key's hash. That is enough to
/// tell the keys of one server apart, and says nothing about a key that was made at random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner([u8; 8]);

const PREFIX: &str = "owner-";

impl Owner {
    /// Returns the owner of a key.
    pub(crate) fn of_key(key: &[u8]) -> Self {
        let digest = digest(&SHA256, key);
        let start = digest.as_ref().first_chunk();
        Self(*start.expect("a SHA-256 digest has 32 bytes"))
    }

    /// Returns a number for the key that every JSON reader keeps exactly.
    pub(crate) fn number(self) -> u64 {
        u64::from_be_bytes(self.0) >> 11
    }

    /// Returns an address that leads nowhere, for clients that want one.
    pub(crate) fn email(self) -> String {
        format!("{self}@localhost")
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `owner-` and 16 hexadecimal digits")]
pub(crate) struct NotAnOwner;

impl FromStr for Owner {
    type Err = NotAnOwner;

    fn from_str(text: &str) -> Result<Self, NotAnOwner> {
        let digits = text.strip_prefix(PREFIX).ok_or(NotAnOwner)?;
        let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != 16 || !digits.bytes().all(is_hex) {
            return Err(NotAnOwner);
        }
        let number = u64::from_str_radix(digits, 16).map_err(|_| NotAnOwner)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl Serialize for Owner {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Owner {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_being_written() {
        let owner = Owner::of_key(b"tml-one");
        assert_eq!(owner.to_string().parse(), Ok(owner));
        assert_eq!(owner.to_string().len(), 22);
        assert_ne!(owner, Owner::of_key(b"tml-two"));
        for text in ["", "owner-", "owner-12", "owner-+123456789abcdef", "OWNER"] {
            assert_eq!(text.parse::<Owner>(), Err(NotAnOwner), "{text}");
        }
    }
}
