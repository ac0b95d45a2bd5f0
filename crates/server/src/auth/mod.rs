//! Who is asking: keys, tokens, admin keys, cookies and signed links.
//!
//! A caller is an [`Owner`], known by the hash of a key. With a key file, only its keys are taken;
//! without one, any well-formed key is an owner of its own. [`Auth::admit`] is the one way from a
//! credential to an owner, whether the credential is a key or a token that was issued for one.
//!
//! Invariants: no key is kept, printed or compared as text, only hashes are, and all of them in a
//! time that does not depend on where they differ; tokens, cookies and links are signed with keys of their
//! own, derived from one secret in the data folder, so that one can never pass for the other.

mod attempts;
mod cookie;
mod keys;
mod link;
mod logged_out;
mod once;
mod owner;
mod revoked;
mod signing_keys;
mod token;

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tinkrs_types::ModelId;
use tinkrs_wire::op::get_api_key::{ApiKey, KeyDetails, OrgDetails, UserDetails};

pub(crate) use cookie::{Pass, Signed};
pub(crate) use keys::KeyFileError;
pub(crate) use link::BadLink;
pub(crate) use owner::Owner;

use attempts::Attempts;
use keys::Keys;
use logged_out::LoggedOut;
use once::OneTime;
use revoked::Revoked;
use signing_keys::SigningKeys;

/// What the organization of every owner is called.
const ORGANIZATION: &str = "local";

/// Why the server cannot know its callers.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthError {
    /// The key file cannot be used.
    #[error("could not use the key file {}", path.display())]
    KeyFile { path: PathBuf, source: KeyFileError },

    /// A file in the data folder cannot be used.
    #[error("could not use {}", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Why a credential is not taken. The text is shown to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    /// It is neither a key nor a token.
    #[error("`X-API-Key` must start with `tml-` or `eyJ`")]
    Malformed,
    /// It is not in the key file.
    #[error("`X-API-Key` is not a key of this server")]
    Unknown,
    /// The token was not issued by this server.
    #[error("`X-API-Key` is not a token of this server")]
    Forged,
    /// The token's hour is over.
    #[error("`X-API-Key` is a token that has expired")]
    Expired,
    /// The key was revoked.
    #[error("`X-API-Key` was revoked")]
    Revoked,
    /// It is not an admin key.
    #[error("`X-API-Key` is not an admin key of this server")]
    NotAdmin,
    /// There are no admin keys.
    #[error("this server has no admin keys: `--admin-key-file` names a file of them")]
    NoAdmin,
}

/// Everything that tells owners apart.
#[derive(Debug)]
pub(crate) struct Auth {
    keys: Keys,
    /// Those who may change how the server behaves, if there are any. They own nothing by that.
    admins: Option<Keys>,
    revoked: Revoked,
    signing_keys: SigningKeys,
    one_time: OneTime,
    logged_out: LoggedOut,
    attempts: Attempts,
}

impl Auth {
    /// Reads the files of keys and of admin keys, as far as they exist, and the secret of the data folder,
    /// which is made now if it is missing.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or written, or a key file has a line that is no key.
    pub(crate) fn open(
        data: &Path,
        key_file: Option<&Path>,
        admin_key_file: Option<&Path>,
    ) -> Result<Self, AuthError> {
        let load = |path: &Path| {
            Keys::load(path).map_err(|source| AuthError::KeyFile {
                path: path.to_owned(),
                source,
            })
        };
        let keys = key_file.map_or(Ok(Keys::Any), load)?;
        let admins = admin_key_file.map(load).transpose()?;
        let file = |name: &str| data.join(name);
        let failed = |path: PathBuf| move |source| AuthError::File { path, source };
        let (secret, revoked) = (file("secret"), file("revoked-keys"));
        let logged_out = file("logged-out");
        Ok(Self {
            keys,
            admins,
            signing_keys: SigningKeys::open(&secret).map_err(failed(secret))?,
            revoked: Revoked::open(&revoked).map_err(failed(revoked))?,
            one_time: OneTime::default(),
            logged_out: LoggedOut::open(&logged_out).map_err(failed(logged_out))?,
            attempts: Attempts::default(),
        })
    }

    /// Returns whether only the keys of a file are taken. Without one, the server belongs on a
    /// loopback address.
    pub(crate) fn is_restricted(&self) -> bool {
        matches!(self.keys, Keys::Listed(_))
    }

    /// Returns whose credential this is.
    ///
    /// # Errors
    ///
    /// When it has no owner.
    pub(crate) fn admit(&self, credential: &[u8], now: Timestamp) -> Result<Owner, Denied> {
        let owner = if keys::is_key(credential) {
            self.keys.owner(credential).ok_or(Denied::Unknown)
        } else if !token::is_token(credential) {
            Err(Denied::Malformed)
        } else if !self.is_restricted() && !token::claims_to_be_ours(credential) {
            // A token of another service, which some clients are configured with, is as good a key
            // as any where every key is taken.
            Ok(Owner::of_key(credential))
        } else {
            token::verify(self.signing_keys.tokens(), credential, now)
        }?;
        self.check_owner(owner)
    }

    /// Checks that an owner's key is still taken.
    fn check_owner(&self, owner: Owner) -> Result<Owner, Denied> {
        // A token outlives neither the line of its key in the file nor the key itself.
        if !self.keys.takes(owner) {
            return Err(Denied::Unknown);
        }
        if self.revoked.contains(owner) {
            return Err(Denied::Revoked);
        }
        Ok(owner)
    }

    /// Writes a cookie for an owner, or for one run of that owner, that is good until `expires`.
    pub(crate) fn issue_cookie(
        &self,
        owner: Owner,
        run: Option<&ModelId>,
        expires: Timestamp,
    ) -> String {
        let issued = Timestamp::now();
        let times = Signed { issued, expires };
        cookie::issue(self.signing_keys.cookies(), owner, run, times)
    }

    /// Returns what the holder of a cookie may do.
    ///
    /// # Errors
    ///
    /// When it was not issued here, is too old, its owner logged out everywhere since, or its key is not taken any
    /// more.
    pub(crate) fn admit_cookie(&self, value: &str, now: Timestamp) -> Result<Pass, Denied> {
        let pass = cookie::verify(self.signing_keys.cookies(), value, now)?;
        self.check_pass(&pass, now)?;
        Ok(pass)
    }

    /// Checks that whoever was admitted would be now. A connection that stays open asks again and again.
    ///
    /// # Errors
    ///
    /// When the key is not taken any more, or a cookie or link has ended.
    pub(crate) fn check_pass(&self, pass: &Pass, now: Timestamp) -> Result<(), Denied> {
        self.check_owner(pass.owner)?;
        let is_good = |signed: &Signed| {
            !signed.is_over(now) && self.logged_out.takes(pass.owner, signed.issued)
        };
        if pass.signed.as_ref().is_none_or(is_good) {
            Ok(())
        } else {
            Err(Denied::Expired)
        }
    }

    /// Takes no cookie and no link any more that an owner has until now, also after a restart.
    ///
    /// # Errors
    ///
    /// When that could not be written down; they are then taken as before.
    pub(crate) fn log_out_everywhere(&self, owner: Owner, now: Timestamp) -> std::io::Result<()> {
        self.logged_out.set(owner, now)?;
        self.one_time.forget(owner);
        Ok(())
    }

    /// Returns from where logins failed.
    pub(crate) fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    /// Makes a token that logs in once, if the system has random numbers.
    pub(crate) fn issue_once(&self, owner: Owner, now: Timestamp) -> Option<String> {
        self.one_time.issue(owner, now)
    }

    /// Returns whose one-time token this is. It is used up by that.
    pub(crate) fn redeem_once(&self, token: &str, now: Timestamp) -> Option<Owner> {
        let owner = self.one_time.redeem(token, now)?;
        self.check_owner(owner).ok()
    }

    /// Checks that this is an admin key.
    ///
    /// # Errors
    ///
    /// When it is not, or there are none.
    pub(crate) fn admit_admin(&self, credential: &[u8]) -> Result<(), Denied> {
        let admins = self.admins.as_ref().ok_or(Denied::NoAdmin)?;
        match admins.owner(credential) {
            Some(_) => Ok(()),
            None => Err(Denied::NotAdmin),
        }
    }

    /// Issues a token for an owner. It lasts an hour.
    pub(crate) fn issue(&self, owner: Owner, now: Timestamp) -> String {
        token::issue(self.signing_keys.tokens(), owner, now)
    }

    /// Describes the key of an owner, as `GET /auth/apikey/me` answers it.
    pub(crate) fn describe(&self, owner: Owner) -> ApiKey {
        ApiKey {
            key_id: owner.number(),
            name: self.keys.name(owner).unwrap_or("local key").to_owned(),
            note: String::new(),
            details: KeyDetails {
                org_details: OrgDetails {
                    name: ORGANIZATION.to_owned(),
                },
                user_details: UserDetails {
                    email: owner.email(),
                },
            },
        }
    }

    /// Takes no key or token of this owner any more, also after a restart.
    ///
    /// # Errors
    ///
    /// When that could not be written down; the owner is then admitted as before.
    pub(crate) fn revoke(&self, owner: Owner) -> std::io::Result<()> {
        self.revoked.add(owner)
    }

    /// Returns the query that lets anyone fetch `path` until `expires`.
    pub(crate) fn sign(&self, path: &str, expires: Timestamp) -> String {
        link::sign(self.signing_keys.links(), path, expires)
    }

    /// Checks the query of a link.
    ///
    /// # Errors
    ///
    /// When the link was not made by this server for this path, or is too old.
    pub(crate) fn check(&self, path: &str, query: &str, now: Timestamp) -> Result<(), BadLink> {
        link::check(self.signing_keys.links(), path, query, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(number: i64) -> Timestamp {
        Timestamp::from_second(number).unwrap()
    }

    fn listed(data: &Path) -> Auth {
        let file = data.join("keys");
        std::fs::write(&file, "tml-one ana\ntml-two\n").unwrap();
        Auth::open(data, Some(&file), None).unwrap()
    }

    #[test]
    fn a_key_and_its_token_are_the_same_owner_across_restarts() {
        let data = tempfile::tempdir().unwrap();
        for open in [listed, |data: &Path| Auth::open(data, None, None).unwrap()] {
            let auth = open(data.path());
            let owner = auth.admit(b"tml-one", second(0)).unwrap();
            let token = auth.issue(owner, second(0));
            let again = open(data.path());
            assert_eq!(again.admit(token.as_bytes(), second(3599)), Ok(owner));
            let expired = again.admit(token.as_bytes(), second(3600));
            assert_eq!(expired, Err(Denied::Expired));
            assert_ne!(again.admit(b"tml-two", second(0)), Ok(owner));
        }
    }

    #[test]
    fn only_listed_keys_are_taken_where_there_is_a_list() {
        let data = tempfile::tempdir().unwrap();
        let (open, listed) = (
            Auth::open(data.path(), None, None).unwrap(),
            listed(data.path()),
        );
        assert!(listed.is_restricted() && !open.is_restricted());
        let foreign = b"eyJhbGciOiJub25lIn0.eyJpc3MiOiJzb21lb25lIn0.sig".as_slice();
        let cases = [
            (b"tml-three".as_slice(), true, Err(Denied::Unknown)),
            (foreign, true, Err(Denied::Forged)),
            (b"sk-1", false, Err(Denied::Malformed)),
            (b"tml-", false, Err(Denied::Malformed)),
            (b"", false, Err(Denied::Malformed)),
        ];
        for (credential, opens, refused) in cases {
            let text = String::from_utf8_lossy(credential);
            assert_eq!(listed.admit(credential, second(0)), refused, "{text}");
            assert_eq!(open.admit(credential, second(0)).is_ok(), opens, "{text}");
        }
    }

    #[test]
    fn admin_keys_are_of_their_own() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(
            listed(data.path()).admit_admin(b"tml-one"),
            Err(Denied::NoAdmin)
        );
        let (keys, admins) = (data.path().join("keys"), data.path().join("admins"));
        std::fs::write(&admins, "tml-boss\n").unwrap();
        for key_file in [None, Some(keys.as_path())] {
            let auth = Auth::open(data.path(), key_file, Some(&admins)).unwrap();
            assert_eq!(auth.admit_admin(b"tml-boss"), Ok(()));
            for other in [b"tml-one".as_slice(), b"tml-", b""] {
                assert_eq!(auth.admit_admin(other), Err(Denied::NotAdmin));
            }
        }
        let auth = Auth::open(data.path(), Some(&keys), Some(&admins)).unwrap();
        assert_eq!(auth.admit(b"tml-boss", second(0)), Err(Denied::Unknown));
    }

    #[test]
    fn a_revoked_key_stays_revoked_and_takes_its_tokens_along() {
        let data = tempfile::tempdir().unwrap();
        let auth = listed(data.path());
        let owner = auth.admit(b"tml-one", second(0)).unwrap();
        let token = auth.issue(owner, second(0));
        auth.revoke(owner).unwrap();
        for auth in [auth, listed(data.path())] {
            for credential in [b"tml-one".as_slice(), token.as_bytes()] {
                assert_eq!(auth.admit(credential, second(1)), Err(Denied::Revoked));
            }
            assert!(auth.admit(b"tml-two", second(1)).is_ok());
        }
    }

    #[test]
    fn a_token_ends_when_its_key_leaves_the_file() {
        let data = tempfile::tempdir().unwrap();
        let auth = listed(data.path());
        let owner = auth.admit(b"tml-one", second(0)).unwrap();
        let token = auth.issue(owner, second(0));
        let file = data.path().join("keys");
        std::fs::write(&file, "tml-two").unwrap();
        let again = Auth::open(data.path(), Some(&file), None).unwrap();
        let result = again.admit(token.as_bytes(), second(1));
        assert_eq!(result, Err(Denied::Unknown));
    }

    #[test]
    fn a_key_is_described_without_itself() {
        let data = tempfile::tempdir().unwrap();
        let auth = listed(data.path());
        let owner = auth.admit(b"tml-one", second(0)).unwrap();
        let described = auth.describe(owner);
        assert_eq!(described.name, "ana");
        // Clients read numbers as doubles; a larger one would change.
        assert!(described.key_id < 1 << 53, "{}", described.key_id);
        let two = auth.admit(b"tml-two", second(0)).unwrap();
        assert_eq!(auth.describe(two).name, "local key");
        for text in [format!("{auth:?}"), format!("{described:?} {owner:?}")] {
            assert!(!text.contains("tml-"), "{text}");
        }
    }

    #[test]
    fn what_was_admitted_ends_with_its_time_its_key_and_a_logout() {
        let data = tempfile::tempdir().unwrap();
        let auth = listed(data.path());
        let owner = auth.admit(b"tml-one", second(0)).unwrap();
        let run = ModelId::new("r");
        let now = Timestamp::now();
        let later = now + jiff::SignedDuration::from_secs(60);
        let pass = |run| auth.admit_cookie(&auth.issue_cookie(owner, run, later), now);
        let (login, link) = (pass(None).unwrap(), pass(Some(&run)).unwrap());
        let key = Pass::of_key(owner);
        for pass in [&login, &link] {
            assert_eq!(auth.check_pass(pass, now), Ok(()));
            assert_eq!(auth.check_pass(pass, later), Err(Denied::Expired));
        }
        assert_eq!(auth.check_pass(&key, later), Ok(()));
        let once = auth.issue_once(owner, now).unwrap();
        auth.log_out_everywhere(owner, Timestamp::now()).unwrap();
        assert_eq!(auth.check_pass(&login, now), Err(Denied::Expired));
        assert_eq!(auth.check_pass(&link, now), Err(Denied::Expired));
        assert_eq!(auth.redeem_once(&once, now), None);
        assert_eq!(auth.check_pass(&key, now), Ok(()));
        auth.revoke(owner).unwrap();
        assert_eq!(auth.check_pass(&key, now), Err(Denied::Revoked));
    }

    #[test]
    fn a_line_of_the_key_file_that_is_no_key_is_an_error_that_hides_it() {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join("keys");
        std::fs::write(&file, "tml-one\nsecret-two\n").unwrap();
        let error = Auth::open(data.path(), Some(&file), None).unwrap_err();
        let text = crate::error::chain(&error);
        assert!(text.contains("line 2") && text.contains("keys"), "{text}");
        assert!(!text.contains("secret-two"), "{text}");
    }
}
