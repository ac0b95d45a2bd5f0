//! Who the client is: finding a credential, keeping it secret, keeping it fresh.
//!
//! [`resolve()`] decides which credential to use. It is a pure function over [`Credentials`], so
//! that every rule of precedence is a line in a table of its tests. What it finds is a
//! [`CredentialSource`]: a key, a token, or a [`CredentialCommand`] to run. Keys that were
//! stored by `tinkrs auth login` live in a [`CredentialStore`].
//!
//! Some servers want the credential exchanged for a short-lived token. `TokenCache` holds that
//! token and exchanges it again before it expires.
//!
//! Invariant: a credential is only ever held in a [`Secret`]. It is overwritten when dropped, and
//! no message, `Debug` output or log line of this module contains it.

mod error;
mod secret;

mod command;
mod resolve;
mod store;

pub(crate) mod claims;

pub(crate) mod token_cache;

pub use command::CredentialCommand;
pub use error::{AuthError, KeyOrigin};
pub use resolve::{CredentialPolicy, CredentialSource, Credentials, resolve, resolve_from_env};
pub use secret::Secret;
pub use store::{CredentialStore, KeyKind, StoredCredentials, StoredKey};
pub use tinkrs_wire::op::get_api_key::{KeyDetails, OrgDetails, UserDetails};
