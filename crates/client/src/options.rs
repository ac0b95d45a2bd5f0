//! What a user may set, gathered before anything is connected.

use crate::Error;
use crate::auth::{CredentialPolicy, CredentialSource, Secret, resolve_from_env};
use crate::connection::QueueListener;
use crate::connection::message::MessageListener;
use crate::connection::notice::RetryListener;
use crate::limiter::BackpressureScope;
use crate::server_url;
use std::collections::BTreeMap;
use std::time::Duration;
use tinkrs_types::{ProjectId, UserMetadata};
use tinkrs_wire::header;
use url::Url;

/// Settings of a service client. See the builder for their meaning.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) base_url: Option<String>,
    pub(crate) api_key: Option<Secret>,
    pub(crate) project_id: Option<ProjectId>,
    pub(crate) user_metadata: UserMetadata,
    pub(crate) display_name: Option<String>,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) backpressure: BackpressureScope,
    pub(crate) http_timeout: Option<Duration>,
    pub(crate) max_retry_time: Option<Duration>,
    pub(crate) queue_listener: Option<QueueListener>,
    pub(crate) retry_listener: Option<RetryListener>,
    pub(crate) message_listener: Option<MessageListener>,
    pub(crate) telemetry: Option<bool>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            base_url: None,
            api_key: None,
            project_id: None,
            user_metadata: UserMetadata::new(),
            display_name: None,
            tags: None,
            headers: BTreeMap::new(),
            backpressure: BackpressureScope::Account,
            http_timeout: None,
            max_retry_time: None,
            queue_listener: None,
            retry_listener: None,
            message_listener: None,
            telemetry: None,
        }
    }
}

impl Options {
    /// Returns where the server is: the setting, else `TINKER_BASE_URL`, else the hosted service.
    pub(crate) fn base_url(&self) -> Result<Url, Error> {
        let text = self.base_url.clone().filter(|url| !url.is_empty());
        let text = text.unwrap_or_else(server_url::from_env);
        let text = text.trim_end_matches('/');
        let refused = |why: &str| Error::Setup {
            message: format!("base URL `{text}`: {why}"),
        };
        let url: Url = text.parse().map_err(|_| refused("not a URL"))?;
        if !server_url::is_http(&url) {
            let expected = "expected one that starts with `http://` or `https://`";
            return Err(refused(expected));
        }
        Ok(url)
    }

    pub(crate) fn credential_source(
        &self,
        policy: CredentialPolicy,
    ) -> Result<CredentialSource, Error> {
        Ok(resolve_from_env(self.api_key.clone(), policy)?)
    }

    pub(crate) fn project_id(&self) -> Option<ProjectId> {
        self.project_id
            .clone()
            .or_else(|| variable("TINKER_PROJECT_ID").map(Into::into))
    }

    /// Returns the session's tags. The variable is split as the official client splits it: at
    /// commas, without trimming.
    pub(crate) fn tags(&self) -> Vec<String> {
        let from_env = || {
            let text = std::env::var("TINKER_TAGS").ok()?;
            let mut tags: Vec<String> = text.split(',').map(str::to_owned).collect();
            tags.sort();
            tags.dedup();
            Some(tags)
        };
        self.tags.clone().or_else(from_env).unwrap_or_default()
    }

    /// Returns the headers that every request carries besides our own. The caller's win.
    pub(crate) fn extra_headers(&self) -> BTreeMap<String, String> {
        let mut headers = BTreeMap::new();
        for (name, from) in [
            (header::CF_ACCESS_CLIENT_ID, "CLOUDFLARE_ACCESS_CLIENT_ID"),
            (
                header::CF_ACCESS_CLIENT_SECRET,
                "CLOUDFLARE_ACCESS_CLIENT_SECRET",
            ),
        ] {
            headers.extend(variable(from).map(|value| (name.to_owned(), value)));
        }
        let own = self
            .headers
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
        headers.extend(own);
        headers
    }

    /// Returns whether to report about this client; the setting wins over `TINKER_TELEMETRY`.
    pub(crate) fn telemetry(&self) -> bool {
        let from_env = || match std::env::var("TINKER_TELEMETRY") {
            Ok(value) => matches!(value.to_lowercase().as_str(), "1" | "true" | "yes" | "on"),
            Err(_) => true,
        };
        self.telemetry.unwrap_or_else(from_env)
    }
}

/// Reads an environment variable; an empty one counts as unset.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_loses_its_trailing_slashes_and_keeps_its_path() {
        let url = |text: &str| {
            Options {
                base_url: Some(text.to_owned()),
                ..Options::default()
            }
            .base_url()
        };
        assert_eq!(
            url("http://127.0.0.1:8000/svc//").unwrap().as_str(),
            "http://127.0.0.1:8000/svc"
        );
        for bad in ["localhost:8000", "ftp://x", "http://", "::"] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }
}
