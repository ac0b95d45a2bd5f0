//! Web pages that may call the endpoints of other APIs: none, unless their origin is in the settings.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tinkrs_wire::endpoint::Dialect;

use crate::Server;

/// What pages may send: anything that clients do.
const HEADERS: &str = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, \
    anthropic-dangerous-direct-browser-access, openai-organization, openai-project, x-stainless-arch, \
    x-stainless-helper-method, x-stainless-lang, x-stainless-os, x-stainless-package-version, \
    x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout";

/// Tells a browser whether the page that sends a request may read the answer.
pub(crate) async fn allow(State(server): State<Server>, request: Request, next: Next) -> Response {
    let allowed = &server.shared().settings.cors_origin;
    let is_meant = Dialect::of_path(request.uri().path()) != Dialect::Tinker;
    let origin = request.headers().get(header::ORIGIN).cloned();
    let origin = origin.filter(|origin| {
        is_meant
            && allowed
                .iter()
                .any(|known| origin.as_bytes() == known.as_bytes())
    });
    let Some(origin) = origin else {
        return next.run(request).await;
    };
    let asks = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if asks {
        let mut response = (StatusCode::NO_CONTENT, Body::empty()).into_response();
        let headers = response.headers_mut();
        set(headers, header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST");
        set(headers, header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
        set(headers, header::ACCESS_CONTROL_MAX_AGE, "600");
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    response
}

fn set(headers: &mut HeaderMap, name: header::HeaderName, value: &'static str) {
    headers.insert(name, HeaderValue::from_static(value));
}
