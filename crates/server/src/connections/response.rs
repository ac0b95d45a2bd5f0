//! Noticing when a response has been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// A body that calls something when it has been sent, or is given up.
pub(super) struct WithEnd {
    body: Body,
    end: Option<Box<dyn FnOnce() + Send>>,
}

impl WithEnd {
    pub(super) fn new(body: Body, end: impl FnOnce() + Send + 'static) -> Self {
        let end = Some(Box::new(end) as Box<_>);
        Self { body, end }
    }
}

impl HttpBody for WithEnd {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for WithEnd {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}
