//! Which server a command uses: the options that say so, and the decision.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tinkrs::auth::{AuthError, CredentialPolicy, resolve_from_env};
use tinkrs::server_url::is_loopback;
use tinkrs::{ServiceClient, ServiceClientBuilder};

use crate::notices;

/// Where this machine keeps everything, unless another folder is named.
pub(crate) const DATA_DIR: &str = "tinkrs-data";

/// The key of the one owner of everything that commands on this machine make.
pub(crate) const LOCAL_KEY: &str = "tml-local";

/// Which server to use
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
pub(crate) struct ServerArgs {
    /// Use this machine, even if TINKER_BASE_URL or a key is set
    #[arg(
        long,
        global = true,
        conflicts_with = "base_url",
        help_heading = "Server"
    )]
    local: bool,

    /// Use the server at this URL. Without it, the one of TINKER_BASE_URL; without that, the hosted
    /// service if there is a key and no model of this machine is named, else this machine
    #[arg(long, value_name = "URL", global = true, help_heading = "Server")]
    base_url: Option<String>,

    /// Use this machine, with what is in this folder. Default: tinkrs-data
    #[arg(long, value_name = "DIR", global = true, help_heading = "Server")]
    data_dir: Option<PathBuf>,
}

/// A server, as far as the options and the environment say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Choice {
    Local,
    Url(String),
    Hosted,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// As the environment says.
    Environment,
    /// At a URL, with the key of the environment, or on this machine the local owner's.
    Url(String),
    /// At a URL of this machine, as the owner of what is here.
    Local(String),
}

impl Target {
    /// Returns a client's settings.
    pub(crate) fn client(&self) -> ServiceClientBuilder {
        let client = notices::listen(ServiceClient::builder());
        match self {
            Self::Environment => client,
            // Without a key of one's own, the local owner's will do: `tinkrs serve` takes any.
            Self::Url(url) if is_loopback(url) && !has_credential() => {
                client.base_url(url).api_key(LOCAL_KEY).telemetry(false)
            }
            Self::Url(url) => client.base_url(url),
            Self::Local(url) => client.base_url(url).api_key(LOCAL_KEY).telemetry(false),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Environment => tinkrs::server_url::from_env(),
            Self::Url(url) | Self::Local(url) => url.clone(),
        }
    }
}

/// What the environment says about servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    url: Option<String>,
    /// Whether there is a key that the hosted service could know.
    has_key: bool,
}

impl Environment {
    pub(crate) fn read() -> Self {
        let url = std::env::var("TINKER_BASE_URL").ok();
        let is_local = std::env::var("TINKER_API_KEY").is_ok_and(|key| key.trim() == LOCAL_KEY);
        Self {
            url: url.filter(|url| !url.is_empty()),
            has_key: has_credential() && !is_local,
        }
    }
}

/// Whether there is a key, or a way to get one.
fn has_credential() -> bool {
    // One that is no use is still meant to be used: the client says what is wrong with it.
    let credential = resolve_from_env(None, CredentialPolicy::Any);
    !matches!(credential, Err(AuthError::Missing | AuthError::NoHome))
}

impl ServerArgs {
    /// Names a data folder on this machine.
    pub(crate) fn at(data_dir: PathBuf) -> Self {
        Self {
            local: true,
            base_url: None,
            data_dir: Some(data_dir),
        }
    }

    /// Decides on a server: what was asked for, else hosted if there is a key for it, else this machine.
    pub(crate) fn choose(&self, names_local_model: bool, environment: &Environment) -> Choice {
        match (&self.base_url, &environment.url) {
            (Some(url), _) => Choice::Url(url.clone()),
            _ if self.local || self.data_dir.is_some() => Choice::Local,
            (None, Some(url)) => Choice::Url(url.clone()),
            (None, None) if environment.has_key && !names_local_model => Choice::Hosted,
            (None, None) => Choice::Local,
        }
    }

    /// Returns what has to be typed for another command to use this machine with the same data.
    pub(crate) fn typed_for_local(&self, environment: &Environment) -> String {
        match &self.data_dir {
            Some(folder) => format!(" --data-dir {}", quoted(&folder.to_string_lossy())),
            None if environment.has_key || environment.url.is_some() => " --local".to_owned(),
            None => String::new(),
        }
    }

    /// Returns what has to be typed for another command to use the same server elsewhere.
    pub(crate) fn typed_for_url(&self) -> String {
        let url = self.base_url.as_deref();
        url.map_or(String::new(), |url| format!(" --base-url {}", quoted(url)))
    }

    /// Returns the URL that was typed.
    pub(crate) fn base_url(&self) -> Option<&str> {
        self.base_url.as_deref()
    }

    /// Returns the folder of this machine.
    pub(crate) fn data_dir(&self) -> &Path {
        self.data_dir.as_deref().unwrap_or(Path::new(DATA_DIR))
    }
}

/// Writes a word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_billed_by_surprise() {
        let nothing = Environment::default();
        let url = |has_key| Environment {
            url: Some("http://a".to_owned()),
            has_key,
        };
        let key = Environment {
            url: None,
            has_key: true,
        };
        let plain = ServerArgs::default();
        let local = ServerArgs {
            local: true,
            ..ServerArgs::default()
        };
        let folder = ServerArgs {
            data_dir: Some("d".into()),
            ..ServerArgs::default()
        };
        let named = ServerArgs {
            base_url: Some("http://a".to_owned()),
            data_dir: Some("d".into()),
            ..ServerArgs::default()
        };
        let chosen = Choice::Url("http://a".to_owned());
        for (args, is_local_model, environment, expected) in [
            (&plain, false, &nothing, &Choice::Local),
            (&plain, false, &key, &Choice::Hosted),
            // A model that is here is used here, even if the hosted service has one of the same name.
            (&plain, true, &key, &Choice::Local),
            (&plain, false, &url(true), &chosen),
            (&plain, true, &url(false), &chosen),
            (&local, false, &url(true), &Choice::Local),
            (&folder, false, &url(true), &Choice::Local),
            (&folder, false, &key, &Choice::Local),
            (&named, true, &key, &chosen),
        ] {
            let choice = args.choose(is_local_model, environment);
            assert_eq!(
                &choice, expected,
                "{args:?}, {is_local_model}, {environment:?}"
            );
        }
    }
}
