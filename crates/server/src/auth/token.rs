//! Tokens: JWTs that stand for a key for an hour.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jiff::{SignedDuration, Timestamp};
use ring::hmac::{self, Key};
use serde::{Deserialize, Serialize};

use super::{Denied, ORGANIZATION, Owner};

/// How long a token lasts. Clients replace it five minutes earlier.
const LIFETIME: SignedDuration = SignedDuration::from_hours(1);
/// Clients answer `whoami` only from tokens of an issuer that starts with `passport-`.
const ISSUER: &str = "passport-tinkrs";
/// The only header that is issued, and so the only one that is read.
const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;
/// How the official service names users.
const USER: &str = "tml:organization_user:";
/// The longest token that is looked at; ours have about 300 characters.
const TOKEN_BYTES: usize = 8 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    org_id: String,
    email: String,
    iat: i64,
    exp: i64,
}

/// Returns whether a credential has the form of a token.
pub(super) fn is_token(credential: &[u8]) -> bool {
    let is_visible = credential.iter().all(u8::is_ascii_graphic);
    credential.starts_with(b"eyJ") && credential.len() <= TOKEN_BYTES && is_visible
}

/// Returns whether a token names this kind of server as its issuer. It may lie.
pub(super) fn claims_to_be_ours(token: &[u8]) -> bool {
    parts(token).is_some_and(|parts| claims(parts.payload).is_some_and(|it| it.iss == ISSUER))
}

pub(super) fn issue(key: &Key, owner: Owner, now: Timestamp) -> String {
    let exp = now.saturating_add(LIFETIME).unwrap_or(Timestamp::MAX);
    let claims = Claims {
        iss: ISSUER.to_owned(),
        sub: format!("{USER}{owner}"),
        org_id: ORGANIZATION.to_owned(),
        email: owner.email(),
        iat: now.as_second(),
        exp: exp.as_second(),
    };
    let claims = serde_json::to_vec(&claims).expect("texts and numbers are always written as JSON");
    let signed = format!("{}.{}", BASE64.encode(HEADER), BASE64.encode(claims));
    let signature = BASE64.encode(hmac::sign(key, signed.as_bytes()));
    format!("{signed}.{signature}")
}

pub(super) fn verify(key: &Key, token: &[u8], now: Timestamp) -> Result<Owner, Denied> {
    let Parts {
        signed,
        header,
        payload,
        signature,
    } = parts(token).ok_or(Denied::Forged)?;
    let signature = BASE64.decode(signature).map_err(|_| Denied::Forged)?;
    // Nothing of the token is read before its signature is known to be ours; the comparison inside
    // takes the same time wherever the signatures differ.
    hmac::verify(key, signed, &signature).map_err(|_| Denied::Forged)?;
    if header != BASE64.encode(HEADER).as_bytes() {
        return Err(Denied::Forged);
    }
    let claims = claims(payload).ok_or(Denied::Forged)?;
    if claims.exp <= now.as_second() {
        return Err(Denied::Expired);
    }
    let owner = claims.sub.strip_prefix(USER).unwrap_or_default();
    owner.parse().map_err(|_| Denied::Forged)
}

struct Parts<'a> {
    signed: &'a [u8],
    header: &'a [u8],
    payload: &'a [u8],
    signature: &'a [u8],
}

fn parts(token: &[u8]) -> Option<Parts<'_>> {
    let mut parts = token.split(|byte| *byte == b'.');
    let (header, payload, signature) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then(|| Parts {
        signed: &token[..header.len() + 1 + payload.len()],
        header,
        payload,
        signature,
    })
}

fn claims(payload: &[u8]) -> Option<Claims> {
    serde_json::from_slice(&BASE64.decode(payload).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::signing_keys::SigningKeys;

    fn now() -> Timestamp {
        Timestamp::from_second(1_000_000).unwrap()
    }

    #[test]
    fn a_token_has_the_claims_that_clients_read() {
        let secret = SigningKeys::new(&[1; 32]);
        let owner = Owner::of_key(b"tml-one");
        let token = issue(secret.tokens(), owner, now());
        assert!(token.starts_with("eyJ") && is_token(token.as_bytes()));
        assert!(claims_to_be_ours(token.as_bytes()));
        let claims = claims(parts(token.as_bytes()).unwrap().payload).unwrap();
        assert_eq!(claims.exp, 1_003_600);
        assert_eq!(claims.sub, format!("tml:organization_user:{owner}"));
        assert!(claims.iss.starts_with("passport-") && claims.email.contains('@'));
    }

    #[test]
    fn a_token_changed_anywhere_is_forged() {
        let secret = SigningKeys::new(&[1; 32]);
        let token = issue(secret.tokens(), Owner::of_key(b"tml-one"), now()).into_bytes();
        assert!(verify(secret.tokens(), &token, now()).is_ok());
        for index in 0..token.len() {
            let mut changed = token.clone();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            let result = verify(secret.tokens(), &changed, now());
            assert_eq!(result, Err(Denied::Forged), "character {index}");
        }
        for length in 0..token.len() {
            let result = verify(secret.tokens(), &token[..length], now());
            assert_eq!(result, Err(Denied::Forged), "{length} characters");
        }
        let other = SigningKeys::new(&[2; 32]);
        for key in [other.tokens(), secret.links()] {
            assert_eq!(verify(key, &token, now()), Err(Denied::Forged));
        }
    }

    #[test]
    fn a_token_without_a_signature_is_forged() {
        let secret = SigningKeys::new(&[1; 32]);
        let token = issue(secret.tokens(), Owner::of_key(b"tml-one"), now());
        let payload = token.split('.').nth(1).unwrap();
        let none = BASE64.encode(r#"{"alg":"none","typ":"JWT"}"#);
        for token in [format!("{none}.{payload}."), format!("{none}.{payload}")] {
            let result = verify(secret.tokens(), token.as_bytes(), now());
            assert_eq!(result, Err(Denied::Forged), "{token}");
        }
    }
}
