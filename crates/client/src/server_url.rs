//! Where servers are: the hosted service, and this machine.

use std::net::IpAddr;
use url::Url;

/// The API of the hosted service.
pub const HOSTED: &str = "https://tinker.thinkingmachines.dev/services/tinker-prod";
/// The web console of the hosted service.
pub const HOSTED_CONSOLE: &str = "https://tinker.thinkingmachines.ai";
/// The domains of the hosted service.
const HOSTED_DOMAINS: [&str; 2] = ["thinkingmachines.dev", "thinkingmachines.ai"];

/// Returns the server's URL as a client without settings uses it: `TINKER_BASE_URL`, else the hosted
/// service. There is no slash at its end.
pub fn from_env() -> String {
    let set = std::env::var("TINKER_BASE_URL").ok();
    let set = set.filter(|url| !url.is_empty());
    set.as_deref()
        .unwrap_or(HOSTED)
        .trim_end_matches('/')
        .to_owned()
}

/// Returns whether this can be the URL of a server: it starts with `http://` or `https://` and has a host.
pub fn is_valid(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| is_http(&url))
}

/// Returns whether a server is the hosted service, which charges for what it does.
pub fn is_hosted(url: &str) -> bool {
    let host = host(url).unwrap_or_default();
    let host = host.trim_end_matches('.');
    let ours = |domain: &&str| host == *domain || host.ends_with(&format!(".{domain}"));
    HOSTED_DOMAINS.iter().any(ours)
}

/// Returns whether a server is on this machine.
pub fn is_loopback(url: &str) -> bool {
    host(url).is_some_and(|host| is_loopback_host(&host))
}

/// Returns whether a host is this machine.
pub(crate) fn is_loopback_host(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    match address.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

pub(crate) fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

fn host(url: &str) -> Option<String> {
    Url::parse(url).ok()?.host_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hosted_service_charges() {
        for url in [
            HOSTED,
            HOSTED_CONSOLE,
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
            "http://tinkrs.localhost:8000",
        ] {
            assert!(is_loopback(url), "{url}");
        }
        for url in [
            HOSTED,
            "http://10.0.0.1",
            "http://127.0.0.1.example.org",
            "x",
        ] {
            assert!(!is_loopback(url), "{url}");
        }
    }
}
