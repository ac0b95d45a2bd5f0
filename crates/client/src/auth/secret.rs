use super::AuthError;
use bytes::Bytes;
use http::header::HeaderValue;
use std::fmt;
use zeroize::Zeroizing;

/// A key or a token: overwritten when dropped, and never printed.
///
/// ```
/// use tinkrs::auth::Secret;
///
/// let key = Secret::from("tml-1234");
/// assert_eq!(format!("{key:?}"), "Secret(..)");
/// assert_eq!(key.expose(), "tml-1234");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Returns the credential itself. Keep it out of messages and logs.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is nothing in it, which counts as no credential at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of a header that carries the credential.
    ///
    /// It is marked as sensitive, so HTTP libraries neither print nor index it, and like the
    /// secret its bytes are overwritten when the last clone is dropped.
    pub(crate) fn to_header(&self) -> Result<HeaderValue, AuthError> {
        let bytes = Bytes::from_owner(self.clone());
        let mut value = HeaderValue::from_maybe_shared(bytes).map_err(|_| AuthError::NotAHeader)?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl AsRef<[u8]> for Secret {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_the_secret_nor_its_header_is_printed() {
        let secret = Secret::from("tml-hidden");
        let header = secret.to_header().unwrap();
        assert!(header.is_sensitive());
        assert_eq!(header.as_bytes(), b"tml-hidden");
        for shown in [format!("{secret:?}"), format!("{header:?}")] {
            assert!(!shown.contains("hidden"), "{shown}");
        }
    }

    #[test]
    fn a_secret_that_no_header_can_carry_is_refused_without_being_shown() {
        for text in [
            "tml-hidden\r\nhost: elsewhere",
            "tml-hidden\0",
            "tml-hidden\u{7f}",
        ] {
            let error = Secret::from(text).to_header().unwrap_err();
            assert!(matches!(error, AuthError::NotAHeader), "{error}");
            assert!(!format!("{error} {error:?}").contains("hidden"));
        }
    }
}
