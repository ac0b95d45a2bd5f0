//! The studio's pages.

use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use tinkrs_wire::endpoint;

use super::headers;
use super::visitor::Visitor;
use crate::error::ApiError;
use crate::extract::InPath;

/// The page that asks for a key. `next` is the page to go to afterwards, a path of this server.
pub(crate) fn login(why: Option<&str>, next: &str) -> Response {
    headers::page(frame(
        "Log in",
        &html! {
            @if let Some(why) = why { p role="alert" { (why) } }
            form method="post" action=(endpoint::LOGIN.path) {
                label { "API key " input type="password" name="key" autocomplete="current-password" required; }
                input type="hidden" name="next" value=(next);
                button { "Log in" }
            }
        },
    ))
}

pub(crate) async fn runs(_: Visitor) -> Response {
    headers::page(frame("Runs", &html! {}))
}

pub(crate) async fn run(visitor: Visitor, InPath(id): InPath<String>) -> Response {
    let _ = (visitor.owner(), visitor.shared_run());
    headers::page(frame(&id, &html! {}))
}

pub(crate) async fn playground(_: Visitor) -> Response {
    headers::page(frame("Playground", &html! {}))
}

pub(crate) async fn server(_: Visitor) -> Response {
    headers::page(frame("Server", &html! {}))
}

pub(crate) async fn asset(InPath(name): InPath<String>) -> Response {
    ApiError::not_found(format!("there is no asset `{name}`")).into_response()
}

fn frame(title: &str, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (title) }
            }
            body { h1 { (title) } (content) }
        }
    }
}
