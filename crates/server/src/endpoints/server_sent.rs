//! Streams of server-sent events.
//!
//! An event is made when the connection has room for it, so that a slow reader has nothing waiting here but tokens.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use tinkrs_wire::header as names;

/// What a stream is made of.
pub(crate) trait Events: Send + 'static {
    /// Waits for the next events, as they are sent; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// Answers with a stream of events. If the client hangs up, `events` is dropped.
pub(crate) fn respond(events: impl Events) -> Response {
    let events = stream::unfold(events, |mut events| async move {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(bytes), events))
    });
    let headers = [
        (header::CONTENT_TYPE, names::EVENT_STREAM),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

/// Writes an event without a name.
pub(crate) fn data(to: &mut Vec<u8>, value: &impl Serialize) {
    to.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *to, value).expect("events have text keys");
    to.extend_from_slice(b"\n\n");
}

/// Writes an event with a name.
pub(crate) fn named(to: &mut Vec<u8>, name: &str, value: &impl Serialize) {
    to.extend_from_slice(b"event: ");
    to.extend_from_slice(name.as_bytes());
    to.push(b'\n');
    data(to, value);
}
