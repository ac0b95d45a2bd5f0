//! What a token says about itself.
//!
//! Claims are read without checking the signature: the server checks it, and the client only
//! wants to know when to ask for the next token and whom to greet.

use super::{AuthError, Secret};
use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};
use tinkrs_types::service::WhoAmI;

/// Some issuers pad the segments of a token, although the standard forbids it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The claims of a token.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    /// Reads the claims, or `None` if this is not a token.
    pub(super) fn read(token: &Secret) -> Option<Self> {
        let payload = BASE64.decode(token.expose().split('.').nth(1)?).ok()?;
        serde_json::from_slice(&payload).ok().map(Self)
    }

    /// Returns when the token expires, in Unix seconds.
    pub(super) fn expiry(&self) -> Option<i64> {
        let seconds = self.0.get("exp")?;
        // A fraction of a second is cut off, which can only make the token seem older.
        seconds.as_i64().or_else(|| Some(seconds.as_f64()? as i64))
    }

    fn text(&self, name: &str) -> Option<&str> {
        let text = self.0.get(name)?.as_str()?;
        (!text.is_empty()).then_some(text)
    }
}

/// Says whose token this is.
///
/// Without `exchanged`, the token was supplied by the user, and is trusted to name its owner only
/// if it was issued by the service that issues exchanged ones.
pub(crate) fn whoami(token: &Secret, exchanged: bool) -> Result<WhoAmI, AuthError> {
    let claims = Claims::read(token).ok_or(AuthError::NoIdentity("it is a key, not a token"))?;
    let issuer = claims.text("iss").unwrap_or_default();
    if !exchanged && !issuer.starts_with("passport-") {
        return Err(AuthError::NoIdentity("it is not a token of this service"));
    }
    let user = claims.text("sub");
    let organization = claims.text("org_id");
    let user = user.ok_or(AuthError::NoIdentity("it has no claim `sub`"))?;
    let organization = organization.ok_or(AuthError::NoIdentity("it has no claim `org_id`"))?;
    let mut identity = WhoAmI::new(user, format!("tml:organization:{organization}"));
    identity.email = claims.text("email").map(str::to_owned);
    Ok(identity)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use serde_json::json;

    /// A token with these claims, and a signature that nobody checks.
    pub(in crate::auth) fn token(claims: &Value) -> Secret {
        let part = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        let header = part(r#"{"alg":"none"}"#);
        Secret::from(format!("{header}.{}.signature", part(&claims.to_string())))
    }

    #[test]
    fn the_expiry_is_the_only_claim_that_matters_for_freshness() {
        let expiry = |token: &Secret| Claims::read(token)?.expiry();
        let cases = [
            (json!({"exp": 1_700_000_000}), Some(1_700_000_000)),
            (json!({"exp": 1_700_000_000.9}), Some(1_700_000_000)),
            (json!({"exp": 5, "sub": 7, "email": null}), Some(5)),
            (json!({"exp": "soon"}), None),
            (json!({"sub": "x"}), None),
            (json!([1]), None),
        ];
        for (claims, expected) in cases {
            assert_eq!(expiry(&token(&claims)), expected, "{claims}");
        }
        for text in ["", "tml-key", "eyJ", "a.b", "a.!!.c", "..", "é.é.é"] {
            assert_eq!(expiry(&text.into()), None, "{text}");
        }
        let padded = Secret::from("h.eyJleHAiOjF9fQ==.s");
        assert_eq!(
            expiry(&padded),
            None,
            "padding is fine, but this is not JSON"
        );
        let padded = Secret::from("h.eyJleHAiOjEwfQ==.s");
        assert_eq!(expiry(&padded), Some(10));
    }

    #[test]
    fn the_owner_is_in_the_claims() {
        let claims = json!({"sub": "tml:user:1", "org_id": "o-2", "email": "a@b.c"});
        let owner = whoami(&token(&claims), true).unwrap();
        assert_eq!(owner.user_urn, "tml:user:1");
        assert_eq!(owner.org_urn, "tml:organization:o-2");
        assert_eq!(owner.email.as_deref(), Some("a@b.c"));

        for email in [json!(""), Value::Null] {
            let claims = json!({"sub": "u", "org_id": "o", "email": email});
            assert_eq!(whoami(&token(&claims), true).unwrap().email, None);
        }
    }

    #[test]
    fn a_supplied_token_names_its_owner_only_if_the_service_issued_it() {
        let claims = |issuer: &str| json!({"sub": "u", "org_id": "o", "iss": issuer});
        assert!(whoami(&token(&claims("passport-prod")), false).is_ok());
        for issuer in ["", "elsewhere", "my-passport-"] {
            let error = whoami(&token(&claims(issuer)), false).unwrap_err();
            assert!(matches!(error, AuthError::NoIdentity(_)), "{issuer}");
        }
    }

    #[test]
    fn a_token_without_an_owner_is_an_error_that_says_what_is_missing() {
        let cases = [
            (Secret::from("tml-hidden"), "a key"),
            (token(&json!({"org_id": "o"})), "`sub`"),
            (token(&json!({"sub": "u"})), "`org_id`"),
        ];
        for (token, expected) in cases {
            let error = whoami(&token, true).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hidden"), "{error}");
        }
    }
}
