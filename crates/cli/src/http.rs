//! Plain HTTP for the few calls that are not the SDK's: who owns a key, is the server up, a file.

use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::Deserialize;
use tinkrs::auth::Secret;
use tinkrs::external::{HttpClient, HttpRequest, HttpResponse};
use tinkrs::server_url;
use tinkrs_wire::endpoint::{self, Endpoint};
use tinkrs_wire::header;
use tinkrs_wire::op::get_api_key::ApiKey;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks whose key this is.
pub(crate) async fn describe_key(key: &Secret) -> anyhow::Result<ApiKey> {
    let get = |url: &str| HttpClient::new(TIMEOUT).get(url);
    let response = key_call(&endpoint::GET_API_KEY, key, get).await?;
    let described = response.json().await;
    described.context("could not parse the server's response")
}

/// Deletes a key on the server.
pub(crate) async fn revoke_key(key: &Secret) -> anyhow::Result<()> {
    let delete = |url: &str| HttpClient::new(TIMEOUT).delete(url);
    key_call(&endpoint::DELETE_API_KEY, key, delete)
        .await
        .map(drop)
}

async fn key_call(
    endpoint: &Endpoint,
    key: &Secret,
    request: impl FnOnce(&str) -> HttpRequest,
) -> anyhow::Result<HttpResponse> {
    let url = server_url::from_env();
    let request = request(&format!("{url}{}", endpoint.path));
    let response = request.secret_header(header::API_KEY, key).send().await;
    let response = response.with_context(|| format!("could not reach {url}"))?;
    check_status(response).await
}

/// Turns a response with an error status into an error with the server's reason.
pub(crate) async fn check_status(response: HttpResponse) -> anyhow::Result<HttpResponse> {
    #[derive(Default, Deserialize)]
    struct ErrorBody {
        detail: Option<String>,
        error: Option<String>,
    }
    if response.is_success() {
        return Ok(response);
    }
    let (status, usual) = (response.status(), response.reason());
    let body: ErrorBody = response.json().await.unwrap_or_default();
    let reason = body.detail.or(body.error);
    let reason = reason.as_deref().or(usual).unwrap_or("no reason given");
    Err(anyhow!("status {status}: {reason}"))
}
