//! What the endpoints do, one file for each group of them.
//!
//! A handler decodes, calls one method of [`Server`](crate::Server) and encodes; the methods are
//! next to their handlers.

pub(crate) mod admin;
pub(crate) mod checkpoints;
pub(crate) mod console;
pub(crate) mod copies;
pub(crate) mod downloads;
pub(crate) mod futures;
mod import_bounds;
pub(crate) mod imports;
pub(crate) mod keys;
pub(crate) mod listings;
pub(crate) mod losses;
pub(crate) mod models;
pub(crate) mod sampling;
pub(crate) mod service;
pub(crate) mod session_listings;
pub(crate) mod sessions;
pub(crate) mod tokenizers;
pub(crate) mod traces;
pub(crate) mod training;
pub(crate) mod weights;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tinkrs_wire::Body;
use tinkrs_wire::header::DEPRECATION_NOTE;

use crate::error::ApiError;

/// A JSON answer without a tag.
pub(crate) struct Plain<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Plain<T> {
    fn into_response(self) -> Response {
        json(serde_json::to_vec(&self.0).expect("answers have text keys"))
    }
}

/// An answer with a note for whoever wrote the program, which clients show. The header that they read it from is
/// the one for deprecations.
pub(crate) struct Noted<T>(pub(crate) T, pub(crate) Option<&'static str>);

impl<T: IntoResponse> IntoResponse for Noted<T> {
    fn into_response(self) -> Response {
        let mut response = self.0.into_response();
        if let Some(note) = self.1 {
            let note = HeaderValue::from_static(note);
            response.headers_mut().insert(DEPRECATION_NOTE, note);
        }
        response
    }
}

/// A JSON answer with its `type`.
pub(crate) struct Tagged<T>(pub(crate) T);

impl<T: Body> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        json(self.0.encode())
    }
}

/// The one project of the server: everything is in it.
const PROJECT: &str = "local";

/// Refuses any other project.
fn check_project(id: &str) -> Result<(), ApiError> {
    match id {
        PROJECT => Ok(()),
        _ => Err(ApiError::forbidden(format!(
            "`project_id`: found `{id}`, expected `{PROJECT}`, the only project of this server"
        ))),
    }
}

fn json(bytes: impl Into<axum::body::Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], bytes.into()).into_response()
}
