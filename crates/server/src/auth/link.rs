//! Links that anyone may follow for a while, without a key.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jiff::Timestamp;
use ring::hmac::{self, Key};

/// Why a link does not work. The text is shown to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadLink {
    /// It is not one of ours, or not for this path.
    #[error("this link was not made by this server")]
    Forged,
    /// Its time is over.
    #[error("this link has expired: ask for a new one")]
    Expired,
}

/// Returns the query that opens `path` until `expires`.
pub(super) fn sign(key: &Key, path: &str, expires: Timestamp) -> String {
    let expires = expires.as_second().to_string();
    let signature = hmac::sign(key, &signed(path, &expires));
    format!("expires={expires}&signature={}", BASE64.encode(signature))
}

/// Checks a query. It must be as [`sign`] made it, for the path as it was signed.
pub(super) fn check(key: &Key, path: &str, query: &str, now: Timestamp) -> Result<(), BadLink> {
    let parameters = query
        .strip_prefix("expires=")
        .and_then(|rest| rest.split_once("&signature="));
    let (expires, signature) = parameters.ok_or(BadLink::Forged)?;
    let signature = BASE64.decode(signature).map_err(|_| BadLink::Forged)?;
    hmac::verify(key, &signed(path, expires), &signature).map_err(|_| BadLink::Forged)?;
    let expires: i64 = expires.parse().map_err(|_| BadLink::Forged)?;
    if expires > now.as_second() {
        Ok(())
    } else {
        Err(BadLink::Expired)
    }
}

/// The time comes first and has no line break, so no two pairs are written alike.
fn signed(path: &str, expires: &str) -> Vec<u8> {
    format!("{expires}\n{path}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::signing_keys::SigningKeys;

    fn second(number: i64) -> Timestamp {
        Timestamp::from_second(number).unwrap()
    }

    #[test]
    fn a_link_opens_its_path_until_it_expires() {
        let secret = SigningKeys::new(&[1; 32]);
        let query = sign(secret.links(), "/files/a", second(100));
        let check = |path, query: &str, now| check(secret.links(), path, query, second(now));
        assert_eq!(check("/files/a", &query, 99), Ok(()));
        assert_eq!(check("/files/a", &query, 100), Err(BadLink::Expired));
        assert_eq!(check("/files/b", &query, 99), Err(BadLink::Forged));
        let later = query.replace("expires=100", "expires=999");
        let extended = format!("{query}&x=1");
        for query in ["", "expires=100", "signature=", later.as_str(), &extended] {
            assert_eq!(
                check("/files/a", query, 99),
                Err(BadLink::Forged),
                "{query}"
            );
        }
    }

    #[test]
    fn a_link_of_another_folder_is_forged() {
        let query = sign(SigningKeys::new(&[2; 32]).links(), "/files/a", second(100));
        let secret = SigningKeys::new(&[1; 32]);
        let result = check(secret.links(), "/files/a", &query, second(0));
        assert_eq!(result, Err(BadLink::Forged));
    }
}
