//! What matters for a server elsewhere: its URL, the credential, the server itself and its models.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use tinkrs::auth::{CredentialPolicy, CredentialSource, resolve_from_env};
use tinkrs::external::HttpClient;
use tinkrs::server_url;
use tinkrs_wire::endpoint;

use super::{Check, Status};
use crate::context::Context;
use crate::human::counted;
use crate::output;

/// How long a healthy server may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A clock that is off by more makes fresh tokens look expired.
const MAX_SKEW_SECONDS: i64 = 60;

/// Checks everything about a server elsewhere. `named` is its URL, if an option gave it.
pub(super) async fn checks(ctx: &Context, named: Option<&str>) -> Vec<Check> {
    let address = match named {
        Some(url) => url.to_owned(),
        None => server_url::from_env(),
    };
    let mut checks = vec![url(&address, named.is_some()), credential()];
    checks.extend(reach(&address).await);
    let is_clear = checks.iter().all(|check| check.status != Status::Failed);
    checks.push(if is_clear {
        models(ctx).await
    } else {
        Check::new("models", Status::Skipped, "needs a server and a credential")
    });
    checks
}

fn url(url: &str, is_named: bool) -> Check {
    let from = match std::env::var("TINKER_BASE_URL") {
        _ if is_named => "--base-url",
        Ok(set) if !set.is_empty() => "TINKER_BASE_URL",
        _ => "the hosted service, since TINKER_BASE_URL is not set",
    };
    let detail = format!("{url} ({from})");
    if server_url::is_valid(url) {
        return Check::new("url", Status::Ok, detail);
    }
    Check::new("url", Status::Failed, detail)
        .hint("a URL is something such as http://127.0.0.1:8000")
}

fn credential() -> Check {
    let set = |name| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
    let detail = match resolve_from_env(None, CredentialPolicy::Any) {
        Err(error) => {
            return Check::new(
                "credential",
                Status::Failed,
                output::one_line(&error.into()),
            )
            .hint("log in with `tinkrs auth login`, or set TINKER_API_KEY");
        }
        Ok(CredentialSource::Command(_)) => "the command in TINKER_CREDENTIAL_CMD",
        Ok(_) if set("TINKER_API_KEY") => "TINKER_API_KEY",
        Ok(_) => "the key that `tinkrs auth login` stored",
    };
    Check::new("credential", Status::Ok, detail)
}

/// Asks the server whether it is up.
pub(super) async fn server(url: &str) -> Check {
    let [server, _clock] = reach(url).await;
    server
}

/// Asks the server whether it is up, and what time it is there.
async fn reach(url: &str) -> [Check; 2] {
    let started = Instant::now();
    let response = async {
        let http = HttpClient::new(TIMEOUT);
        let request = http.get(&format!("{url}{}", endpoint::HEALTHZ.path)).send();
        Ok::<_, anyhow::Error>(tokio::time::timeout(TIMEOUT, request).await??)
    };
    let response = match response.await {
        Ok(response) => response,
        Err(error) => {
            let cause = error.root_cause().to_string();
            return [
                Check::new(
                    "server",
                    Status::Failed,
                    format!("could not reach {url}: {cause}"),
                )
                .hint("check the URL and the network, or start `tinkrs serve`; `--local` looks at this machine only"),
                Check::new("clock", Status::Skipped, "needs a server"),
            ];
        }
    };
    let took = started.elapsed().as_millis();
    let server = if response.is_success() {
        Check::new("server", Status::Ok, format!("answers in {took} ms"))
    } else {
        let status = format!("status {}", response.status());
        Check::new("server", Status::Failed, status)
            .hint("the server is up but not well, or the URL has the wrong path")
    };
    [server, clock(response.header("date"), Timestamp::now())]
}

/// Compares a server's `Date` with our time.
fn clock(date: Option<&str>, now: Timestamp) -> Check {
    let parsed = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
    let Some(time) = parsed else {
        return Check::new(
            "clock",
            Status::Skipped,
            "the server does not say what time it is",
        );
    };
    let skew = now.as_second() - time.as_second();
    let detail = match skew {
        0 => "the same as the server's".to_owned(),
        1.. => format!("{skew} s ahead of the server's"),
        _ => format!("{} s behind the server's", -skew),
    };
    if skew.abs() > MAX_SKEW_SECONDS {
        Check::new("clock", Status::Warning, detail)
            .hint("set this machine's clock: tokens and links may look expired")
    } else {
        Check::new("clock", Status::Ok, detail)
    }
}

async fn models(ctx: &Context) -> Check {
    let service = ctx.service();
    let access = async {
        service.check_access().await?;
        service.get_server_capabilities().await
    };
    let models = match tokio::time::timeout(3 * TIMEOUT, access).await {
        Err(_) => {
            return Check::new("models", Status::Failed, "the server does not answer")
                .hint("it may be overloaded: try again later");
        }
        Ok(Err(error)) => {
            let error = crate::hint::explain(error, String::new());
            let hint = error
                .downcast_ref::<crate::output::Hint>()
                .map(|hint| hint.0);
            let causes = error.chain().skip(1).map(ToString::to_string);
            let causes: Vec<_> = causes.filter(|cause| !cause.is_empty()).collect();
            let check = Check::new("models", Status::Failed, causes.join(": "));
            return Check { hint, ..check };
        }
        Ok(Ok(capabilities)) => capabilities.supported_models,
    };
    let names = models
        .iter()
        .filter_map(|model| model.model_name.as_deref());
    let first: Vec<_> = names.take(3).collect();
    let more = if models.len() > 3 { ", ..." } else { "" };
    let count = counted(models.len() as u64, "model");
    if models.is_empty() {
        let detail = "the server offers none to this account";
        return Check::new("models", Status::Warning, detail);
    }
    let detail = format!("{count}: {}{more}", first.join(", "));
    Check::new("models", Status::Ok, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_may_be_off_by_a_minute() {
        let now: Timestamp = "2026-11-16T03:18:09Z".parse().unwrap();
        let cases = [
            (Some("Mon, 16 Nov 2026 03:18:09 GMT"), Status::Ok),
            (Some("Mon, 16 Nov 2026 03:17:09 GMT"), Status::Ok),
            (Some("Mon, 16 Nov 2026 03:20:09 GMT"), Status::Warning),
            (Some("Mon, 16 Nov 2026 01:18:09 GMT"), Status::Warning),
            (Some("now"), Status::Skipped),
            (None, Status::Skipped),
        ];
        for (date, expected) in cases {
            assert_eq!(clock(date, now).status, expected, "{date:?}");
        }
    }
}
