//! The Hugging Face Hub: where it is, what a repository has, and files from it.
//!
//! [`Hub`] says where and as whom, from the same variables as the Hub's own tools. A [`Repository`] is one commit:
//! its files are known by size and digest before they are downloaded, and a download that has another one is thrown
//! away. What belongs to a tokenizer goes into the cache that those tools have (`cache.rs`), in their layout.

mod cache;
mod error;
mod repository;

pub(crate) use cache::{newest_commit, repository_folder};
pub use error::HubError;
pub use repository::{RemoteFile, Repository};

use crate::auth::Secret;
use std::ffi::OsString;
use std::path::PathBuf;
use tinkrs_chat::HubFolders;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Where the Hub is, who asks, and where downloads are kept.
///
/// ```
/// use tinkrs::hub::Hub;
///
/// let mirror = Hub::at("https://hub.example.org").with_cache("/srv/models");
/// assert_eq!(mirror.endpoint(), "https://hub.example.org");
/// ```
#[derive(Clone, Debug)]
pub struct Hub {
    endpoint: String,
    token: Option<Secret>,
    cache: Option<PathBuf>,
    offline: bool,
}

impl Hub {
    /// Takes everything from the environment, as the Hub's own tools do: `HF_ENDPOINT`, `HF_TOKEN` or the token that
    /// they have stored, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`.
    #[must_use]
    pub fn from_env() -> Self {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// Takes everything from variables. One that is empty counts as unset.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name)?.into_string().ok();
        let folders = HubFolders::from_variables(&variable);
        let token = text("HF_TOKEN").or_else(|| {
            let file = set("HF_TOKEN_PATH").map(PathBuf::from);
            let file = file.or_else(|| Some(folders.home.as_ref()?.join("token")))?;
            std::fs::read_to_string(file).ok()
        });
        let token = token.as_deref().map(str::trim);
        let hub = Self {
            token: token.filter(|token| !token.is_empty()).map(Secret::from),
            cache: folders.cache,
            ..Self::at(text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()))
        };
        let offline = text("HF_HUB_OFFLINE").or_else(|| text("TRANSFORMERS_OFFLINE"));
        hub.offline(offline.is_some_and(|value| is_yes(&value)))
    }

    /// Names a Hub, without a token and without a cache.
    pub fn at(endpoint: impl Into<String>) -> Self {
        let endpoint: String = endpoint.into();
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: None,
            cache: None,
            offline: false,
        }
    }

    /// Sets the token. It is sent to the Hub and not to where the Hub redirects.
    #[must_use]
    pub fn with_token(mut self, token: Secret) -> Self {
        self.token = Some(token);
        self
    }

    /// Sets the folder that downloads are kept in, in the layout of the Hub's own tools.
    #[must_use]
    pub fn with_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }

    /// Sets whether only what is in the cache is used.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Returns the Hub's address, without a slash at the end.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the token, if there is one.
    pub fn token(&self) -> Option<&Secret> {
        self.token.as_ref()
    }

    /// Returns the folder that downloads are kept in.
    pub fn cache(&self) -> Option<&PathBuf> {
        self.cache.as_ref()
    }

    /// Returns whether only what is in the cache is used.
    pub fn is_offline(&self) -> bool {
        self.offline
    }
}

/// Reads a switch as the Hub's own tools do.
fn is_yes(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

/// Returns whether this can be the name of a repository: `name` or `owner/name`.
pub(crate) fn is_repository(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_part =
        |part: &str| !part.is_empty() && !part.starts_with(['.', '-']) && part.chars().all(fits);
    name.len() <= 200 && name.matches('/').count() <= 1 && name.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(variables: &[(&str, &str)]) -> Hub {
        Hub::from_variables(|name| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_environment_means_what_it_means_for_the_hubs_own_tools() {
        let default = hub(&[("HOME", "/nowhere"), ("HF_ENDPOINT", ""), ("HF_TOKEN", "")]);
        assert_eq!(default.endpoint(), "https://huggingface.co");
        assert!(default.token().is_none() && !default.is_offline());
        let cache = default.cache().unwrap();
        assert_eq!(cache, &PathBuf::from("/nowhere/.cache/huggingface/hub"));

        let set = hub(&[("HF_ENDPOINT", "http://mirror/"), ("HF_TOKEN", " hf_x\n")]);
        assert_eq!(set.endpoint(), "http://mirror");
        assert_eq!(set.token().unwrap().expose(), "hf_x");
        assert!(!format!("{set:?}").contains("hf_x"));
        assert_eq!(set.cache(), None);
        for (name, value, offline) in [
            ("HF_HUB_OFFLINE", "1", true),
            ("HF_HUB_OFFLINE", "True", true),
            ("TRANSFORMERS_OFFLINE", "yes", true),
            ("HF_HUB_OFFLINE", "0", false),
            ("HF_HUB_OFFLINE", "", false),
        ] {
            assert_eq!(
                hub(&[(name, value)]).is_offline(),
                offline,
                "{name}={value}"
            );
        }
    }

    #[test]
    fn the_token_may_be_the_one_that_the_hubs_tool_has_stored() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_stored\n").unwrap();
        std::fs::write(home.path().join("other"), "hf_other").unwrap();
        let folder = home.path().to_str().unwrap();
        let stored = hub(&[("HF_HOME", folder)]);
        assert_eq!(stored.token().unwrap().expose(), "hf_stored");
        let other = format!("{folder}/other");
        let other = hub(&[("HF_HOME", folder), ("HF_TOKEN_PATH", &other)]);
        assert_eq!(other.token().unwrap().expose(), "hf_other");
    }

    #[test]
    fn a_repository_has_a_name_that_fits_into_an_address() {
        for name in ["gpt2", "Qwen/Qwen3-0.6B", "a/b_c.d"] {
            assert!(is_repository(name), "{name}");
        }
        for name in [
            "", "/a", "a/", "a/b/c", "../a", "a/..", "a b", "a?b", "a/-b",
        ] {
            assert!(!is_repository(name), "{name}");
        }
    }
}
