//! Which credential to use when there are several.

use super::{AuthError, CredentialCommand, CredentialStore, KeyOrigin, Secret};

/// The places where a credential may be found, each of them optional.
///
/// Empty texts count as absent.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// A key or token that the caller passed.
    pub argument: Option<Secret>,
    /// The key or token in `TINKER_API_KEY`.
    pub environment: Option<Secret>,
    /// The command in `TINKER_CREDENTIAL_CMD`.
    pub command: Option<CredentialCommand>,
}

impl Credentials {
    /// Reads the environment, and puts `argument` before it.
    pub fn from_env(argument: Option<Secret>) -> Self {
        let read = |name| std::env::var(name).ok();
        Self {
            argument,
            environment: read("TINKER_API_KEY").map(Secret::from),
            command: read("TINKER_CREDENTIAL_CMD").map(CredentialCommand::from),
        }
    }
}

/// What kinds of credential will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CredentialPolicy {
    /// Any kind. Holds until the server's settings are known.
    #[default]
    Any,
    /// A token, or the credential command: the server wants dynamic credentials.
    Dynamic,
    /// A key or a token, but not the credential command: the server exchanges no tokens.
    Static,
}

/// The credential to use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CredentialSource {
    /// A key, `tml-…`.
    Key(Secret),
    /// A token, `eyJ…`, which is a dynamic credential already.
    Token(Secret),
    /// A command to run each time a credential is needed.
    Command(CredentialCommand),
}

impl CredentialSource {
    /// Returns the credential, running the command if it comes from one.
    ///
    /// # Errors
    /// If the command does not print a credential.
    pub async fn credential(&self) -> Result<Secret, AuthError> {
        match self {
            Self::Key(secret) | Self::Token(secret) => Ok(secret.clone()),
            Self::Command(command) => command.run().await,
        }
    }

    /// Returns the key or token, or `None` for a command, which is not run.
    pub fn fixed(&self) -> Option<&Secret> {
        match self {
            Self::Key(secret) | Self::Token(secret) => Some(secret),
            Self::Command(_) => None,
        }
    }

    /// Sorts a key or token by its prefix.
    fn from_secret(secret: Secret, origin: KeyOrigin) -> Result<Self, AuthError> {
        if secret.expose().starts_with("eyJ") {
            Ok(Self::Token(secret))
        } else if secret.expose().starts_with("tml-") {
            Ok(Self::Key(secret))
        } else {
            Err(AuthError::BadPrefix(origin))
        }
    }
}

/// Chooses a credential: a key or token, then the command, then the stored default key.
///
/// A key with a bad prefix gives way to the command, but not to the stored key: silently using
/// another account than the one that was asked for would be worse than failing. `stored` is
/// called only if it is needed, so that a broken file is no obstacle to those who do not use it.
///
/// ```
/// use tinkrs::auth::{CredentialPolicy, CredentialSource, Credentials, Secret, resolve};
///
/// let given = Credentials {
///     environment: Some("tml-1234".into()),
///     ..Credentials::default()
/// };
/// let source = resolve(&given, || Ok(None), CredentialPolicy::Any)?;
/// assert_eq!(source, CredentialSource::Key("tml-1234".into()));
/// # Ok::<(), tinkrs::auth::AuthError>(())
/// ```
///
/// # Errors
/// If there is no credential of a kind that the policy allows, if a key has a bad prefix, or if
/// `stored` fails.
pub fn resolve(
    given: &Credentials,
    stored: impl FnOnce() -> Result<Option<Secret>, AuthError>,
    policy: CredentialPolicy,
) -> Result<CredentialSource, AuthError> {
    let fixed = present(&given.argument)
        .map(|secret| (secret, KeyOrigin::Argument))
        .or_else(|| Some((present(&given.environment)?, KeyOrigin::Environment)))
        .map(|(secret, origin)| CredentialSource::from_secret(secret, origin));
    let command = given.command.clone().filter(|command| !command.is_empty());

    match (policy, fixed, command) {
        (_, Some(Ok(token @ CredentialSource::Token(_))), _) => Ok(token),

        (CredentialPolicy::Dynamic, _, Some(command)) => Ok(CredentialSource::Command(command)),
        (CredentialPolicy::Dynamic, _, None) => Err(AuthError::CommandRequired),

        (_, Some(Ok(key)), _) => Ok(key),
        (CredentialPolicy::Any, _, Some(command)) => Ok(CredentialSource::Command(command)),
        (_, Some(Err(bad_prefix)), _) => Err(bad_prefix),

        (_, None, command) => match present(&stored()?) {
            Some(secret) => CredentialSource::from_secret(secret, KeyOrigin::Store),
            None if command.is_some() => Err(AuthError::KeyRequired),
            None => Err(AuthError::Missing),
        },
    }
}

/// Drops the line break that secrets often have when they come from a file, and empty texts.
fn present(secret: &Option<Secret>) -> Option<Secret> {
    let text = secret.as_ref()?.expose().trim();
    (!text.is_empty()).then(|| Secret::from(text))
}

/// [`resolve`]s with what is in the environment and in the user's [`CredentialStore`].
///
/// This is a local lookup: a credential command is found, but not run.
///
/// # Errors
/// As [`resolve`], and if the store is needed and cannot be read.
pub fn resolve_from_env(
    argument: Option<Secret>,
    policy: CredentialPolicy,
) -> Result<CredentialSource, AuthError> {
    let stored = || {
        CredentialStore::of_user()?
            .load()
            .map(|kept| kept.default_secret())
    };
    resolve(&Credentials::from_env(argument), stored, policy)
}

#[cfg(test)]
mod tests {
    use super::CredentialPolicy::{Any, Dynamic, Static};
    use super::*;

    /// What a case expects: the source by kind and text, or the error by its name.
    fn outcome(
        argument: &str,
        environment: &str,
        command: &str,
        stored: &str,
        policy: CredentialPolicy,
    ) -> String {
        let given = Credentials {
            argument: Some(argument.into()),
            environment: Some(environment.into()),
            command: Some(command.into()),
        };
        match resolve(&given, || Ok(Some(stored.into())), policy) {
            Ok(CredentialSource::Key(secret)) => format!("key {}", secret.expose()),
            Ok(CredentialSource::Token(secret)) => format!("token {}", secret.expose()),
            Ok(CredentialSource::Command(_)) => "command".to_owned(),
            Err(AuthError::BadPrefix(origin)) => format!("bad prefix {origin:?}"),
            Err(error) => format!("{error:?}"),
        }
    }

    #[test]
    fn each_combination_has_one_credential() {
        // Argument, environment, command, stored; an empty text is an absent one.
        let cases = [
            (Any, ["tml-a", "tml-e", "cmd", "tml-s"], "key tml-a"),
            (Any, ["", "tml-e", "cmd", "tml-s"], "key tml-e"),
            (Any, [" ", "tml-e\n", "", ""], "key tml-e"),
            (Any, ["eyJa", "tml-e", "cmd", "tml-s"], "token eyJa"),
            (Any, ["", "eyJe", "cmd", ""], "token eyJe"),
            // An explicit key hides the environment's, even if that one is a token.
            (Any, ["tml-a", "eyJe", "", ""], "key tml-a"),
            (Any, ["sk-a", "tml-e", "", ""], "bad prefix Argument"),
            (Any, ["sk-a", "tml-e", "cmd", ""], "command"),
            (Any, ["", "sk-e", "", "tml-s"], "bad prefix Environment"),
            (Any, ["", "sk-e", "cmd", "tml-s"], "command"),
            (Any, ["", "", "cmd", "tml-s"], "command"),
            (Any, ["", "", "", "tml-s"], "key tml-s"),
            (Any, ["", "", "", "eyJs"], "token eyJs"),
            (Any, ["", "", "", "sk-s"], "bad prefix Store"),
            (Any, ["", "", "", ""], "Missing"),
            (Dynamic, ["eyJa", "", "", ""], "token eyJa"),
            (Dynamic, ["", "eyJe", "cmd", ""], "token eyJe"),
            (Dynamic, ["tml-a", "", "cmd", ""], "command"),
            (Dynamic, ["sk-a", "", "cmd", ""], "command"),
            (Dynamic, ["tml-a", "tml-e", "", "tml-s"], "CommandRequired"),
            (Dynamic, ["", "", "", "eyJs"], "CommandRequired"),
            (Static, ["tml-a", "", "cmd", ""], "key tml-a"),
            (Static, ["eyJa", "", "", ""], "token eyJa"),
            (Static, ["sk-a", "", "cmd", "tml-s"], "bad prefix Argument"),
            (Static, ["", "", "cmd", "tml-s"], "key tml-s"),
            (Static, ["", "", "cmd", ""], "KeyRequired"),
            (Static, ["", "", "", ""], "Missing"),
        ];
        for (policy, [argument, environment, command, stored], expected) in cases {
            let found = outcome(argument, environment, command, stored, policy);
            let case = format!("{policy:?}: {argument:?} {environment:?} {command:?} {stored:?}");
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn a_broken_store_hinders_only_those_who_need_it() {
        let broken = || Err(AuthError::NoHome);
        let mut given = Credentials {
            environment: Some("tml-e".into()),
            ..Credentials::default()
        };
        assert!(resolve(&given, broken, Any).is_ok());
        given.environment = None;
        let error = resolve(&given, broken, Any).unwrap_err();
        assert!(matches!(error, AuthError::NoHome), "{error}");
    }

    #[test]
    fn a_refused_key_is_not_shown() {
        let given = Credentials {
            argument: Some("sk-hidden".into()),
            ..Credentials::default()
        };
        let error = resolve(&given, || Ok(None), Any).unwrap_err();
        let shown = format!("{error} {error:?} {given:?}");
        assert!(!shown.contains("hidden"), "{shown}");
    }
}
