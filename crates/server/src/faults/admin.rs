//! The endpoint that shows and changes the rules of a running server.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRef, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tinkrs_wire::ErrorBody;

use super::{DOCUMENT_BYTES, Faults};
use crate::Server;
use crate::connections::Peer;
use crate::error::{ApiError, chain};

/// Lets only callers on this machine use the routes that show and change the rules, and reads no more
/// than a document of rules may have. The router adds the check of keys where there is a list of them.
pub(crate) fn for_local_callers<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    routes
        .layer(DefaultBodyLimit::max(DOCUMENT_BYTES))
        .layer(middleware::from_fn(only_local))
}

/// Shows the rules and their counts.
pub(crate) async fn show(State(faults): State<Faults>) -> Response {
    let body = faults.document().to_string();
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Replaces the rules.
pub(crate) async fn replace(
    State(faults): State<Faults>,
    body: Bytes,
) -> Result<Response, ApiError> {
    match faults.replace(&body) {
        Ok(()) => Ok(show(State(faults)).await),
        Err(error) => Err(ApiError::bad_request(chain(&error))),
    }
}

/// Ends all rules.
pub(crate) async fn clear(State(faults): State<Faults>) -> Response {
    faults.clear();
    show(State(faults)).await
}

impl FromRef<Server> for Faults {
    fn from_ref(server: &Server) -> Self {
        server.faults().clone()
    }
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
