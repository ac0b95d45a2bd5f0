//! Traces of sessions, through links like those of downloads.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use tinkrs_types::SessionId;
use tinkrs_types::session::TraceExport;
use tinkrs_wire::endpoint;

use super::Plain;
use crate::Server;
use crate::error::ApiError;
use crate::extract::{Caller, InPath};
use crate::trace;

/// How long a link lasts.
const LINK_TIME: Duration = Duration::from_secs(3600);

/// A link to the trace of a session, which is made when somebody follows it.
pub(crate) async fn export(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(id): InPath<String>,
    headers: HeaderMap,
) -> Result<Plain<TraceExport>, ApiError> {
    let id = SessionId::new(id);
    server.registry().session(owner, &id)?;
    let expires = Timestamp::now().checked_add(LINK_TIME);
    let expires = expires.map_err(|error| ApiError::unavailable(error.to_string()))?;
    let url = server.signed_link(&headers, &endpoint::DOWNLOAD_TRACE.at(&id), expires)?;
    Ok(Plain(TraceExport::ready(url)))
}

/// Sends a trace.
pub(crate) async fn file(
    State(server): State<Server>,
    InPath(id): InPath<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let query = uri.query().unwrap_or_default();
    let checked = server.auth().check(uri.path(), query, Timestamp::now());
    checked.map_err(|bad| ApiError::forbidden(bad.to_string()))?;
    let id = SessionId::new(id);
    let made = tokio::task::spawn_blocking(move || {
        let spans = server.shared().store.spans(&id);
        spans.map(|spans| trace::encode(&spans))
    });
    let made = made.await;
    let trace = made.map_err(|error| ApiError::unavailable(error.to_string()))?;
    let headers = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((headers, trace?).into_response())
}
