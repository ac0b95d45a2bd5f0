//! What a browser is given instead of a key: the signed word that it may act for an owner, or read one run.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jiff::Timestamp;
use ring::hmac::{self, Key};
use tinkrs_types::ModelId;

use super::{Denied, Owner};

/// The longest value that is looked at; ours have about 200 characters.
const COOKIE_BYTES: usize = 1 << 10;

/// What the holder of a cookie may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Whose things it is about.
    pub(crate) owner: Owner,
    /// The one run that may be read, and nothing else; without it, everything that the owner may do.
    pub(crate) run: Option<ModelId>,
    /// For how long, if it was signed: a key is good for as long as it is taken.
    pub(crate) signed: Option<Signed>,
}

impl Pass {
    /// What the holder of an owner's key may do.
    pub(crate) fn of_key(owner: Owner) -> Self {
        Self {
            owner,
            run: None,
            signed: None,
        }
    }
}

/// When a pass was signed, and until when it is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signed {
    pub(crate) issued: Timestamp,
    pub(crate) expires: Timestamp,
}

impl Signed {
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.expires.as_second() <= now.as_second()
    }
}

/// Writes a pass for an owner, or for one run of that owner.
pub(super) fn issue(key: &Key, owner: Owner, run: Option<&ModelId>, times: Signed) -> String {
    let run = run.map_or("", ModelId::as_str);
    // No part has a dot, so no two passes are written alike.
    let signed = format!(
        "{}.{}.{owner}.{}",
        times.issued.as_millisecond(),
        times.expires.as_second(),
        BASE64.encode(run)
    );
    let signature = BASE64.encode(hmac::sign(key, signed.as_bytes()));
    format!("{signed}.{signature}")
}

/// Reads a pass. Nothing of it is believed before its signature is known to be ours.
pub(super) fn verify(key: &Key, value: &str, now: Timestamp) -> Result<Pass, Denied> {
    if value.len() > COOKIE_BYTES {
        return Err(Denied::Forged);
    }
    let (signed, signature) = value.rsplit_once('.').ok_or(Denied::Forged)?;
    let signature = BASE64.decode(signature).map_err(|_| Denied::Forged)?;
    hmac::verify(key, signed.as_bytes(), &signature).map_err(|_| Denied::Forged)?;
    let mut parts = signed.split('.');
    let mut part = || parts.next().ok_or(Denied::Forged);
    let (issued, expires, owner, run) = (part()?, part()?, part()?, part()?);
    let issued = issued.parse().map_err(|_| Denied::Forged)?;
    let issued = Timestamp::from_millisecond(issued).map_err(|_| Denied::Forged)?;
    let expires = expires.parse().map_err(|_| Denied::Forged)?;
    let expires = Timestamp::from_second(expires).map_err(|_| Denied::Forged)?;
    let times = Signed { issued, expires };
    if times.is_over(now) {
        return Err(Denied::Expired);
    }
    let run = BASE64.decode(run).map_err(|_| Denied::Forged)?;
    let run = String::from_utf8(run).map_err(|_| Denied::Forged)?;
    Ok(Pass {
        owner: owner.parse().map_err(|_| Denied::Forged)?,
        run: (!run.is_empty()).then(|| ModelId::new(run)),
        signed: Some(times),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::signing_keys::SigningKeys;

    fn second(number: i64) -> Timestamp {
        Timestamp::from_second(number).unwrap()
    }

    #[test]
    fn a_pass_is_what_it_was_until_it_expires() {
        let keys = SigningKeys::new(&[1; 32]);
        let owner = Owner::of_key(b"tml-one");
        for run in [None, Some(ModelId::new("a.b:train:0"))] {
            let times = Signed {
                issued: second(7),
                expires: second(100),
            };
            let value = issue(keys.cookies(), owner, run.as_ref(), times);
            let pass = Pass {
                owner,
                run,
                signed: Some(times),
            };
            assert!(!value.contains("tml-") && !value.contains([';', ' ', '"']));
            let read = verify(keys.cookies(), &value, second(99));
            assert_eq!(read, Ok(pass));
            let late = verify(keys.cookies(), &value, second(100));
            assert_eq!(late, Err(Denied::Expired));
            for key in [keys.tokens(), keys.links()] {
                assert_eq!(verify(key, &value, second(0)), Err(Denied::Forged));
            }
        }
    }

    #[test]
    fn a_pass_changed_anywhere_is_forged() {
        let keys = SigningKeys::new(&[1; 32]);
        let (owner, run) = (Owner::of_key(b"tml-one"), ModelId::new("r"));
        let times = Signed {
            issued: second(7),
            expires: second(100),
        };
        let value = issue(keys.cookies(), owner, Some(&run), times);
        for index in 0..value.len() {
            let mut changed = value.clone().into_bytes();
            changed[index] = if changed[index] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            let result = verify(keys.cookies(), &changed, second(0));
            assert_eq!(result, Err(Denied::Forged), "{changed}");
            let cut = verify(keys.cookies(), &value[..index], second(0));
            assert_eq!(cut, Err(Denied::Forged));
        }
        let long = verify(keys.cookies(), &"x".repeat(1 << 20), second(0));
        assert_eq!(long, Err(Denied::Forged));
    }
}
