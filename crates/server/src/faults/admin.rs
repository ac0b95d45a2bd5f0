//! The route that shows and changes the rules of a running server.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tinkrs_wire::ErrorBody;

use super::{DOCUMENT_BYTES, Faults, Peer};
use crate::error::{ApiError, chain};

/// Where the rules are.
pub(super) const PATH: &str = "/admin/faults";

/// Returns the route: `GET` shows the rules and their counts, `PUT` replaces them, `DELETE` ends them.
///
/// It answers callers on this machine only. The router adds the check of keys where there is a list
/// of them.
pub(crate) fn admin(faults: Faults) -> Router {
    Router::new()
        .route(PATH, get(show).put(replace).delete(clear))
        .layer(DefaultBodyLimit::max(DOCUMENT_BYTES))
        .layer(middleware::from_fn(only_local))
        .with_state(faults)
}

async fn show(State(faults): State<Faults>) -> Response {
    let body = faults.document().to_string();
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn replace(State(faults): State<Faults>, body: Bytes) -> Result<Response, ApiError> {
    match faults.replace(&body) {
        Ok(()) => Ok(show(State(faults)).await),
        Err(error) => Err(ApiError::bad_request(chain(&error))),
    }
}

async fn clear(State(faults): State<Faults>) -> Response {
    faults.clear();
    show(State(faults)).await
}

async fn only_local(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>();
    if peer.is_some_and(|ConnectInfo(peer)| peer.is_local()) {
        return next.run(request).await;
    }
    let detail = "this is for callers on the machine of the server only";
    refuse(StatusCode::FORBIDDEN, detail)
}

pub(super) fn refuse(status: StatusCode, detail: &str) -> Response {
    let body = serde_json::to_vec(&ErrorBody::new(detail));
    let body = body.expect("a text is always written as JSON");
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
