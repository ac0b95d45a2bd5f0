//! What every page is answered with.

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

/// Everything comes from this server, and nothing is written into a page that would run.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Answers with a page.
pub(crate) fn page(markup: Markup) -> Response {
    let mut response = Html(markup.into_string()).into_response();
    secure(response.headers_mut());
    let never = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, never);
    response
}

/// Adds the headers that keep a page, or a part of one, to itself.
pub(crate) fn secure(headers: &mut HeaderMap) {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let same = HeaderValue::from_static("same-origin");
    headers.insert("cross-origin-opener-policy", same.clone());
    headers.insert("cross-origin-resource-policy", same);
}

/// Lets a form of the page say where it was sent from: with `no-referrer` it would be from nowhere.
pub(crate) fn tell_own_forms(response: &mut Response) {
    let same = HeaderValue::from_static("same-origin");
    response.headers_mut().insert(header::REFERRER_POLICY, same);
}

/// A page that goes to another one by itself. Unlike a redirect, that is a request of this site, which has its
/// cookies wherever the link to here was.
pub(crate) fn refresh(path: &str) -> Response {
    page(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content=(format!("0; url={path}"));
                title { "Tinkrs" }
            }
            body { p { a href=(path) { "Go on" } } }
        }
    })
}
