//! The studio's pages, as `tinkrs-studio` makes them.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tinkrs_studio::{assets, pages};

use super::headers;
use super::visitor::Visitor;
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::InPath;

/// The key that the command line uses on its own machine. It is in the documents, so a page may show it.
const LOCAL_KEY: &str = "tml-local";

/// The page that asks for a key. `next` is the page to go to afterwards, a path of this server.
pub(crate) fn login(why: Option<&str>, next: &str) -> Response {
    headers::page(pages::login(why, next))
}

pub(crate) async fn runs(State(server): State<Server>, visitor: Visitor) -> Response {
    let is_local = visitor.owner() == Owner::of_key(LOCAL_KEY.as_bytes());
    headers::page(pages::runs(
        server.has_demo(),
        is_local.then_some(LOCAL_KEY),
    ))
}

pub(crate) async fn run(
    State(server): State<Server>,
    visitor: Visitor,
    InPath(text): InPath<String>,
) -> Response {
    let is_shared = visitor.shared_run().is_some();
    let found = || -> Result<_, ApiError> {
        let mut registry = server.registry();
        let id = registry.run_id(visitor.owner(), &text)?;
        let run = registry.run(visitor.owner(), &id)?;
        let name = run.record.name.as_ref().map(ToString::to_string);
        Ok((id, name))
    };
    match found() {
        Ok((id, name)) => {
            let name = name.as_deref().unwrap_or(id.as_str());
            headers::page(pages::run(id.as_str(), name, is_shared))
        }
        Err(error) => missing(error, &format!("There is no run `{text}` of yours.")),
    }
}

/// Answers with a page where there is nothing to show, and as the API does where something is wrong.
pub(crate) fn missing(error: ApiError, words: &str) -> Response {
    let plain = error.into_response();
    if plain.status() != StatusCode::NOT_FOUND {
        return plain;
    }
    let mut response = headers::page(pages::refused(words));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

pub(crate) async fn playground(_: Visitor) -> Response {
    headers::page(pages::playground())
}

pub(crate) async fn server(_: Visitor) -> Response {
    headers::page(pages::server())
}

/// Sends a file whose name changes with its content, so that it is asked for once.
pub(crate) async fn asset(InPath(name): InPath<String>, request: HeaderMap) -> Response {
    let Some(asset) = assets::find(&name) else {
        return ApiError::not_found(format!("there is no asset `{name}`")).into_response();
    };
    let accepted = request.get(header::ACCEPT_ENCODING);
    let accepts_gzip = accepted
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.split(',').any(|one| one.trim().starts_with("gzip")));
    let body = if accepts_gzip {
        asset.gzip.as_slice()
    } else {
        asset.bytes.as_slice()
    };
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers::secure(headers);
    let fixed = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
        (header::VARY, "accept-encoding"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if accepts_gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}
