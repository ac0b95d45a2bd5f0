//! Plain HTTP for the few calls that are not the SDK's: who owns a key, is the server up, a file.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::Deserialize;
use tinkrs::auth::Secret;
use tinkrs_wire::endpoint::{self, Endpoint};
use tinkrs_wire::header;
use tinkrs_wire::op::get_api_key::ApiKey;

/// Where the SDK finds the server unless it is told.
const HOSTED: &str = "https://tinker.thinkingmachines.dev/services/tinker-prod";
/// Where people look at their account.
pub(crate) const CONSOLE: &str = "https://tinker.thinkingmachines.ai";

/// Returns where the server is, as the SDK decides it.
pub(crate) fn base_url() -> String {
    let set = std::env::var("TINKER_BASE_URL").ok();
    let set = set.filter(|url| !url.is_empty());
    let url = set.as_deref().unwrap_or(HOSTED);
    url.trim_end_matches('/').to_owned()
}

/// Returns whether a server is the hosted service, which charges for what it does.
pub(crate) fn is_hosted(url: &str) -> bool {
    let url = reqwest::Url::parse(url).ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str);
    let host = host.unwrap_or_default().trim_end_matches('.');
    let domains = ["thinkingmachines.dev", "thinkingmachines.ai"];
    let ours = |domain: &&str| host == *domain || host.ends_with(&format!(".{domain}"));
    domains.iter().any(ours)
}

/// Returns whether a server is on this machine.
fn is_here(url: &str) -> bool {
    let url = reqwest::Url::parse(url).ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str);
    host.is_some_and(|host| {
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

/// Returns a client of a server that sends nothing but what it is told to. A server on this machine is
/// reached directly, like the SDK does it: no proxy finds it.
pub(crate) fn http(url: &str, timeout: Duration) -> anyhow::Result<reqwest::Client> {
    // It may have been installed before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = match is_here(url) {
        true => reqwest::Client::builder().no_proxy(),
        false => reqwest::Client::builder(),
    };
    builder
        .user_agent(concat!("tinkrs/", env!("CARGO_PKG_VERSION")))
        .read_timeout(timeout)
        .connect_timeout(timeout)
        .build()
        .context("could not set up HTTP")
}

/// Asks whose key this is.
pub(crate) async fn describe_key(key: &Secret) -> anyhow::Result<ApiKey> {
    let answer = key_call(&endpoint::GET_API_KEY, key).await?;
    answer
        .json()
        .await
        .context("the server's answer is not one")
}

/// Deletes a key on the server.
pub(crate) async fn revoke_key(key: &Secret) -> anyhow::Result<()> {
    key_call(&endpoint::DELETE_API_KEY, key).await.map(drop)
}

async fn key_call(endpoint: &Endpoint, key: &Secret) -> anyhow::Result<reqwest::Response> {
    let url = base_url();
    let mut value = reqwest::header::HeaderValue::from_str(key.expose())
        .map_err(|_| anyhow!("the key contains characters that no key has"))?;
    value.set_sensitive(true);
    let answer = http(&url, Duration::from_secs(30))?
        .request(endpoint.method.clone(), format!("{url}{}", endpoint.path))
        .header(header::API_KEY, value)
        .send()
        .await
        .map_err(reqwest::Error::without_url)
        .with_context(|| format!("could not reach {url}"))?;
    refusal(answer).await
}

/// Turns an answer that is a refusal into an error with the server's reason.
pub(crate) async fn refusal(answer: reqwest::Response) -> anyhow::Result<reqwest::Response> {
    #[derive(Default, Deserialize)]
    struct Refusal {
        detail: Option<String>,
        error: Option<String>,
    }
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let refusal: Refusal = answer.json().await.unwrap_or_default();
    let reason = refusal.detail.or(refusal.error);
    let reason = reason.as_deref().or(status.canonical_reason());
    Err(anyhow!(
        "status {}: {}",
        status.as_u16(),
        reason.unwrap_or("no reason given")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hosted_service_charges() {
        for url in [
            HOSTED,
            CONSOLE,
            "HTTPS://Tinker.ThinkingMachines.dev:443/x",
            "https://me:secret@tinker.thinkingmachines.dev./",
        ] {
            assert!(is_hosted(url), "{url}");
        }
        for url in [
            "http://127.0.0.1:8000",
            "https://thinkingmachines.dev.example.org/x",
            "https://example.org/thinkingmachines.dev",
        ] {
            assert!(!is_hosted(url), "{url}");
        }
    }

    #[test]
    fn loopback_addresses_are_on_this_machine() {
        for url in [
            "http://127.0.0.1:8000/x",
            "http://[::1]:1",
            "http://localhost",
        ] {
            assert!(is_here(url), "{url}");
        }
        for url in [
            HOSTED,
            "http://10.0.0.1",
            "http://127.0.0.1.example.org",
            "x",
        ] {
            assert!(!is_here(url), "{url}");
        }
    }
}
